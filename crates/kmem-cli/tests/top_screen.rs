//! The screen of `kmem top`, on a terminal.

mod program;

use program::Program;
use program::terminal::Terminal;

/// Shows `books wait` on a terminal of this size; none where there is no terminal.
fn top(size: (usize, usize), options: &str, no_color: &str) -> Option<(Program, Terminal)> {
    let program = Program::start("books", &[], &["wait"], "");
    let args = format!("top {options} -p {}", program.pid());
    Some((program, Terminal::start(size, &args, no_color)?))
}

/// Number of the line with a row of this function.
fn line_of(lines: &[String], function: &str) -> Option<usize> {
    let is_row = |line: &String| line.split_whitespace().any(|word| word == function);
    lines.iter().position(is_row)
}

/// True when the rows of these functions are on the screen, in this order.
fn in_order(lines: &[String], first: &str, second: &str) -> bool {
    let both = line_of(lines, first).zip(line_of(lines, second));
    both.is_some_and(|(first, second)| first < second)
}

#[test]
fn it_has_a_screen_of_its_own_which_it_leaves_at_a_key() {
    let Some((_program, mut terminal)) = top((24, 80), "", "") else { return };
    terminal.wait_for(|lines| line_of(lines, "large").is_some());
    let drawn = terminal.quit();
    let (enter, leave) = ("\x1b[?1049h", "\x1b[?1049l");
    assert!(drawn.find(enter) < drawn.find(leave) && drawn.contains(enter), "{drawn}");
}

#[test]
fn keys_sort_show_trees_pause_and_help() {
    let Some((_program, mut terminal)) = top((24, 80), "--no-mmap", "") else { return };
    let is_titled = |lines: &[String], title| lines.iter().any(|line| line.ends_with(title));
    // The largest row first, and at a key that of most objects.
    terminal.wait_for(|lines| in_order(lines, "large", "leak") && is_titled(lines, "WHERE"));
    terminal.press(b's');
    terminal.wait_for(|lines| in_order(lines, "leak", "large"));
    terminal.press(b't');
    let lines = terminal.wait_for(|lines| lines.iter().any(|line| line.contains("CALL TREE")));
    assert!(line_of(&lines, "FUNCTION").is_none(), "{lines:#?}");
    terminal.press(b't');
    let has = |lines: &[String], text| lines.iter().any(|line| line.contains(text));
    terminal.wait_for(|lines| has(lines, " SOURCE TREE ") && has(lines, "   books.c"));
    terminal.press(b't');
    terminal.wait_for(|lines| line_of(lines, "FUNCTION").is_some());
    terminal.press(b'p');
    terminal.wait_for(|lines| lines[23].starts_with("PAUSED   "));
    terminal.press(b'?');
    let lines = terminal.wait_for(|lines| is_titled(lines, "pause, and go on"));
    assert!(line_of(&lines, "leak").is_none(), "{lines:#?}");
    terminal.press(b'?');
    terminal.wait_for(|lines| line_of(lines, "leak").is_some());
    terminal.press(b'p');
    terminal.wait_for(|lines| !lines[23].contains("PAUSED"));
    terminal.quit();
}

#[test]
fn mapped_memory_is_on_a_wide_and_on_a_narrow_screen() {
    for (size, is_wide) in [((24, 80), true), ((15, 40), false)] {
        let Some((_program, mut terminal)) = top(size, "", "") else { return };
        let has_keys = |lines: &[String]| lines[size.0 - 1].starts_with("q quit");
        let code = |lines: &[String]| lines.iter().position(|line| line.ends_with("libc.so.6"));
        let lines = terminal.wait_for(|lines| code(lines).is_some() && has_keys(lines));
        let row = &lines[code(&lines).unwrap()];
        assert_eq!(row.contains("  mapped code "), is_wide, "{lines:#?}");
        let head = lines.iter().position(|line| line.trim_start().starts_with("SIZE")).unwrap();
        // The head and the sums have at most a part of the screen.
        assert!(head <= 1 + size.0 / 4, "{lines:#?}");
        assert_eq!(line_of(&lines, "OBJECTS").is_some(), is_wide, "{lines:#?}");
        assert!(line_of(&lines, "large").is_some_and(|at| at > head), "{lines:#?}");
        terminal.quit();
    }
}

/// Types a text.
fn type_in(terminal: &mut Terminal, text: &str) {
    text.bytes().for_each(|key| terminal.press(key));
}

#[test]
fn a_text_that_is_typed_chooses_rows_until_it_is_given_up() {
    for (rows, columns) in [(24, 80), (15, 40)] {
        let Some((_program, mut terminal)) = top((rows, columns), "", "") else { return };
        let has = |lines: &[String], function| line_of(lines, function).is_some();
        let last = rows - 1;
        terminal.wait_for(|lines| has(lines, "leak") && has(lines, "large"));
        // Keys are letters now: q does not quit, and s does not sort.
        type_in(&mut terminal, "/Qs\x7f\x7fLEAK");
        let lines = terminal.wait_for(|lines| lines[last].starts_with("/LEAK_"));
        assert!(has(&lines, "leak") && !has(&lines, "large"), "{lines:#?}");
        terminal.press(b'\r');
        terminal.wait_for(|lines| lines[last].starts_with("/LEAK: 1 of "));
        // It holds in the readings and the views that follow.
        type_in(&mut terminal, "g");
        terminal.wait_for(|lines| lines[last].starts_with("/LEAK: 0 of "));
        type_in(&mut terminal, "t");
        let lines = terminal.wait_for(|lines| lines.iter().any(|l| l.contains("CALL TREE")));
        assert!(has(&lines, "leak") && !has(&lines, "large"), "{lines:#?}");
        type_in(&mut terminal, "ttggg");
        terminal.wait_for(|lines| lines[last].starts_with("/LEAK: 1 of "));
        // Escape shows all rows, and so it does while the text is typed.
        terminal.press(b'\x1b');
        terminal.wait_for(|lines| has(lines, "large") && lines[last].starts_with("q quit"));
        type_in(&mut terminal, "/libc.so");
        let file = |lines: &[String]| lines.iter().any(|line| line.ends_with("libc.so.6"));
        terminal.wait_for(|lines| file(lines) && !has(lines, "large"));
        terminal.press(b'\x1b');
        terminal.wait_for(|lines| has(lines, "large"));
        terminal.quit();
    }
}

#[test]
fn a_key_goes_from_sites_to_groups_modules_and_size_classes() {
    for ((rows, columns), is_wide) in [((24, 80), true), ((15, 40), false)] {
        let Some((_program, mut terminal)) = top((rows, columns), "", "") else { return };
        // Each view has a title, and a row that the program fills.
        for (title, row, is_left_out) in [
            ("FUNCTION", "large", "/"),
            ("GROUP", "/", "large"),
            ("MODULE", "books", "/"),
            ("CLASS", "kmalloc-112", "books"),
            ("FUNCTION", "large", "kmalloc-112"),
        ] {
            let lines = terminal
                .wait_for(|lines| line_of(lines, title).is_some() && line_of(lines, row).is_some());
            let head = &lines[line_of(&lines, title).unwrap()];
            assert_eq!(head.contains("SLABS"), is_wide && title == "CLASS", "{lines:#?}");
            let at = line_of(&lines, title).unwrap();
            assert!(line_of(&lines[at..rows - 1], is_left_out).is_none(), "{lines:#?}");
            terminal.press(b'g');
        }
        terminal.quit();
    }
    // Groups are the first view of rows by group. A class does not know what a filter chose.
    let Some((_program, mut terminal)) = top((24, 80), "--by group --function large", "") else {
        return;
    };
    for title in ["GROUP", "MODULE", "FUNCTION", "GROUP"] {
        terminal.wait_for(|lines| line_of(lines, title).is_some());
        terminal.press(b'g');
    }
    terminal.quit();
}

/// True if the text sets a colour of letters or of their background.
fn has_color(drawn: &str) -> bool {
    let codes = drawn.split("\x1b[").skip(1).filter_map(|code| {
        let end = code.find(|char: char| !char.is_ascii_digit() && char != ';')?;
        code[end..].starts_with('m').then_some(&code[..end])
    });
    let is_color = |number: &str| {
        let number = number.parse().unwrap_or(0);
        matches!(number, 30..=38 | 40..=48 | 90..=97 | 100..=107)
    };
    codes.flat_map(|code| code.split(';')).any(is_color)
}

#[test]
fn it_has_colors_unless_no_color_says_otherwise() {
    // An empty variable says nothing, see https://no-color.org.
    for (no_color, expected) in [("", true), ("1", false)] {
        let Some((_program, mut terminal)) = top((24, 80), "", no_color) else { return };
        terminal.wait_for(|lines| line_of(lines, "large").is_some());
        let drawn = terminal.quit();
        assert_eq!(has_color(&drawn), expected, "{drawn:?}");
        // Bold letters are no colour, and stay.
        assert!(drawn.contains("\x1b[1m"), "{drawn:?}");
    }
}

#[test]
fn a_row_is_chosen_by_keys_and_has_a_page_of_its_own() {
    for size in [(24, 80), (15, 40)] {
        let Some((_program, mut terminal)) = top(size, "--no-mmap", "") else { return };
        let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
        terminal.wait_for(|lines| line_of(lines, "leak").is_some());
        // The second of the rows by size is `leak`.
        type_in(&mut terminal, "jj\r");
        let lines = terminal.wait_for(|lines| has(lines, "HISTORY  "));
        assert!(has(&lines, "books.c:15") && has(&lines, "in books"), "{lines:#?}");
        assert!(has(&lines, "SIZE     109.4 KiB in 1000 objects,"), "{lines:#?}");
        assert!(has(&lines, "PINNED   ") && has(&lines, "average"), "{lines:#?}");
        // A low screen shows the rest of the page further down.
        type_in(&mut terminal, "jjjj");
        let sizes = "SIZES     109.4 KiB      1000  of 112 B";
        let lines = terminal.wait_for(|lines| has(lines, sizes));
        assert!(line_of(&lines, "large").is_none(), "{lines:#?}");
        terminal.press(b'\r');
        terminal.wait_for(|lines| line_of(lines, "large").is_some());
        // An arrow is three bytes, of which the first alone is another key: so a letter goes up.
        type_in(&mut terminal, "k\r");
        terminal.wait_for(|lines| has(lines, "HISTORY  ") && has(lines, "large"));
        terminal.press(b'q');
    }
}
