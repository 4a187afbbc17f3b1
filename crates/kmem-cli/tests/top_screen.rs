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
fn keys_sort_show_a_tree_pause_and_help() {
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
    terminal.wait_for(|lines| line_of(lines, "FUNCTION").is_some());
    terminal.press(b'p');
    terminal.wait_for(|lines| lines[23].ends_with("   PAUSED"));
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
