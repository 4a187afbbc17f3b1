//! The screen of `kmem top`: it fits the terminal, is drawn anew every second, and obeys keys.

use std::ops::Range;
use std::time::{Duration, Instant};
use std::{env, io};

use kmem_snapshot::sites::Order;
use kmem_snapshot::{ReadFailure, Reading};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget as _, Wrap};

use super::Branches;
use super::cursor::{self, Cursor};
use super::details::{self, History};
use super::search::Search;
use super::view::{self, Choice, View, change, shorten};

/// Time from the end of a reading to the next one.
const PERIOD: Duration = Duration::from_secs(1);
/// A narrower screen leaves columns out.
const NARROW: u16 = 70;
/// A page of text may have this many lines.
const MOST_LINES: u16 = 512;
/// Width of a column of numbers.
const NUMBER: u16 = 10;

const KEYS: &str = "q quit   ? help   / filter   g view   s sort   t tree   ↓ choose   p pause";

const HELP: &str = "\
q       quit
/       rows with a text (Esc: all again)
g       sites, processes, groups, modules, classes
s       sort: by size, by objects, by name
t       a tree of callers, a tree of sources, or rows
p       pause, and go on
↓ ↑     choose a row, or go on in a page (also j, k, Page Down, End; Esc: none)
Enter   details of the chosen call site
?       this page

A text is looked for in names, files, functions and modules. A tree keeps \
the callers of what it finds.

SIZE    live bytes
DELTA   change since the reading before
OBJECTS live objects, or mapped: memory outside of the heap";

/// The state of the screen.
struct Screen {
    choice: Choice,
    search: Search,
    reading: Reading,
    before: Option<Reading>,
    history: History,
    cursor: Cursor,
    /// True while the page about the chosen row is shown.
    details: bool,
    help: bool,
    /// Number of the first line that is shown of a page: of the help, or about the chosen row.
    line: usize,
    paused: bool,
    /// False where the user wants none: <https://no-color.org>.
    colored: bool,
}

/// How the user left the screen, or why it ended.
pub(super) enum End {
    /// The user quit.
    Quit,
    /// A reading failed.
    Failed(ReadFailure),
}

/// Shows readings, the `first` one at once, until the user quits or a reading fails.
///
/// # Errors
///
/// Errors of the terminal.
pub(super) fn run(
    choice: Choice,
    first: Reading,
    mut read: impl FnMut() -> Result<Reading, ReadFailure>,
) -> io::Result<End> {
    let mut terminal = ratatui::try_init()?;
    let colored = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(choice, first, colored);
    let mut last = Instant::now();
    let end = loop {
        let view = screen.view();
        if let Err(error) = terminal.draw(|frame| screen.draw(&view, frame)) {
            break Err(error);
        }
        match wait(PERIOD.saturating_sub(last.elapsed())) {
            Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                if screen.quits_at(key, &view.rows) {
                    break Ok(End::Quit);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) if screen.paused => last = Instant::now(),
            Ok(None) => {
                match read() {
                    Ok(reading) => screen.take(reading),
                    Err(failure) => break Ok(End::Failed(failure)),
                }
                // A process with many mappings takes long to read, and rests as long as others.
                last = Instant::now();
            }
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore()?;
    end
}

/// Waits for an event; none if there is none in time.
fn wait(time: Duration) -> io::Result<Option<Event>> {
    if event::poll(time)? { event::read().map(Some) } else { Ok(None) }
}

impl Screen {
    fn new(choice: Choice, first: Reading, colored: bool) -> Self {
        let mut history = History::default();
        history.add(&first);
        Self {
            choice,
            search: Search::default(),
            reading: first,
            before: None,
            history,
            cursor: Cursor::default(),
            details: false,
            help: false,
            line: 0,
            paused: false,
            colored,
        }
    }

    fn take(&mut self, reading: Reading) {
        self.history.add(&reading);
        self.before = Some(std::mem::replace(&mut self.reading, reading));
    }

    fn view(&self) -> View {
        View::of(&self.reading, self.before.as_ref(), self.choice, &self.search)
    }

    /// Obeys a key, where these rows are shown. Returns whether it quits.
    fn quits_at(&mut self, key: KeyEvent, rows: &[view::Row]) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            _ if self.search.is_typing() => self.search.take(key),
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc if self.details => self.details = false,
            KeyCode::Esc if self.cursor.is_on() => self.cursor.clear(),
            KeyCode::Esc if self.search.is_on() => self.search.clear(),
            KeyCode::Esc => return true,
            KeyCode::Char('/') => {
                self.help = false;
                self.search.open();
            }
            KeyCode::Char('g') => {
                self.choice.tree = None;
                self.choice.unit = self.choice.unit.next(&self.reading);
            }
            KeyCode::Char('?' | 'h') => {
                self.help = !self.help;
                self.line = 0;
            }
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                self.choice.order = match self.choice.order {
                    Order::Size | Order::Pinned => Order::Calls,
                    Order::Calls => Order::Tag,
                    Order::Tag => Order::Size,
                };
            }
            KeyCode::Char('t') => self.choice.tree = Branches::after(self.choice.tree),
            KeyCode::Enter if self.details => self.details = false,
            KeyCode::Enter => {
                self.details = self.cursor.is_on();
                self.line = 0;
            }
            other if self.help || self.details => {
                let step = cursor::step(other).unwrap_or_default();
                self.line = self.line.saturating_add_signed(step);
            }
            other => {
                self.cursor.take(other, rows);
            }
        }
        false
    }

    /// The lines of the help, or of the page about the chosen row; none where rows are shown.
    fn page(&self, view: &View, width: u16) -> Option<Vec<String>> {
        if self.help {
            let notes = view.notes.iter().flat_map(|note| ["", note.as_str()]);
            return Some(HELP.lines().chain(notes).map(str::to_owned).collect());
        }
        let row = self.cursor.row(&view.rows).filter(|_| self.details)?;
        let row = view.rows.get(row)?;
        let of_site = details::lines(&self.reading, &self.history, &row.key, usize::from(width));
        Some(of_site.unwrap_or_else(|| vec![row.name.trim().to_owned(), row.cells.join("  ")]))
    }

    fn draw(&mut self, view: &View, frame: &mut Frame<'_>) {
        let area = frame.area();
        let accounting = Paragraph::new(view.accounting.as_str()).wrap(Wrap { trim: true });
        // The rows have at least half of the screen.
        let lines = height_of(&accounting, area.width).min(area.height / 4);
        let parts = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(lines),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [title, sums, rows, keys] = parts.areas(area);
        frame.render_widget(Line::from(view.title.as_str()).bold(), title);
        frame.render_widget(accounting.dim(), sums);
        let more = if let Some(page) = self.page(view, rows.width) {
            self.draw_page(page, frame, rows)
        } else {
            // The head takes a line.
            let height = usize::from(rows.height.saturating_sub(1));
            let first = self.cursor.scroll(&view.rows, height);
            let chosen = self.cursor.row(&view.rows);
            let shown = first..view.rows.len().min(first + height);
            frame.render_widget(table(view, rows.width, shown, chosen, self.colored), rows);
            false
        };
        frame.render_widget(Line::from(self.last_line(view, keys.width, more)).reversed(), keys);
    }

    /// Draws the part of a page that fits, from the line on to which the user went. Returns whether
    /// there are lines below.
    fn draw_page(&mut self, page: Vec<String>, frame: &mut Frame<'_>, area: Rect) -> bool {
        let text: Text<'_> = page.into_iter().map(Line::from).collect();
        let page = Paragraph::new(text).wrap(Wrap { trim: false });
        let most = usize::from(height_of(&page, area.width).saturating_sub(area.height));
        self.line = self.line.min(most);
        frame.render_widget(page.scroll((self.line as u16, 0)), area);
        self.line < most
    }

    /// The lowest line: the filter while it is typed, or the state and the keys.
    fn last_line(&self, view: &View, width: u16, more: bool) -> String {
        if self.search.is_typing() {
            return self.search.line(usize::from(width));
        }
        let notes = (!view.notes.is_empty()).then(|| format!("{} notes", view.notes.len()));
        let parts = [
            self.search.state(view.rows.len(), view.all),
            more.then(|| "↓ more".to_owned()),
            self.paused.then(|| "PAUSED".to_owned()),
            Some(KEYS.to_owned()),
            notes,
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("   ")
    }
}

/// Number of lines that a text takes at a width, up to [`MOST_LINES`].
fn height_of(text: &Paragraph<'_>, width: u16) -> u16 {
    let area = Rect::new(0, 0, width.max(1), MOST_LINES);
    let mut buffer = Buffer::empty(area);
    text.render(area, &mut buffer);
    let is_empty = |y| (0..area.width).all(|x| buffer[(x, y)].symbol() == " ");
    (0..MOST_LINES).rev().find(|&y| !is_empty(y)).map_or(0, |last| last + 1)
}

/// The table of the rows that are `shown`, for a width that it fills.
fn table<'a>(
    view: &'a View,
    width: u16,
    shown_rows: Range<usize>,
    chosen: Option<usize>,
    colored: bool,
) -> Table<'a> {
    let narrow = width < NARROW;
    let shown: Vec<usize> =
        (0..view.columns.len()).filter(|&at| !(narrow && view.columns[at].optional)).collect();
    let numbers = (shown.len() as u16 + 1) * (NUMBER + 1);
    let texts = usize::from(width.saturating_sub(numbers));
    let longest = view.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    // A narrow screen has no room for places; a wide one gives them what names leave.
    let name = if narrow { texts } else { longest.max(view.names.len()).min((texts / 2).max(8)) };
    let place = (!narrow).then(|| texts.saturating_sub(name + 1));

    let right = |text: &str| Cell::from(format!("{text:>width$}", width = usize::from(NUMBER)));
    let mut head: Vec<Cell<'_>> = shown.iter().map(|&at| right(view.columns[at].name)).collect();
    head.insert(1, right("DELTA"));
    head.push(Cell::from(view.names));
    head.extend(place.map(|_| Cell::from("WHERE")));
    let rows = shown_rows.filter_map(|at| Some((at, view.rows.get(at)?))).map(|(at, row)| {
        let mut cells: Vec<Cell<'_>> = shown.iter().map(|&at| right(&row.cells[at])).collect();
        let color = if row.delta > 0 { Color::Red } else { Color::Green };
        let style = if colored { Style::new().fg(color) } else { Style::new() };
        cells.insert(1, right(&change(row.delta)).style(style));
        let by_place = narrow && row.known_by_place;
        cells.push(Cell::from(shorten(if by_place { &row.place } else { &row.name }, name)));
        cells.extend(place.map(|width| Cell::from(shorten(&row.place, width)).dim()));
        let style = if chosen == Some(at) { Style::new().reversed() } else { Style::new() };
        Row::new(cells).style(style)
    });
    let mut widths = vec![Constraint::Length(NUMBER); shown.len() + 1];
    widths.extend([Some(name), place].into_iter().flatten().map(|w| Constraint::Length(w as u16)));
    Table::new(rows, widths).header(Row::new(head).bold()).column_spacing(1)
}

#[cfg(test)]
mod tests {
    use kmem_snapshot::sites::{Mapped, Origin, Site};
    use kmem_snapshot::symbols::Place;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::top::By;
    use crate::top::sums::Unit;
    use crate::top::view::{Column, Row};

    fn view() -> View {
        let row = |number: i64| Row {
            bytes: number << 20,
            delta: if number % 2 == 0 { -4096 } else { 1 << 20 },
            cells: vec![format!("{number}.0 MiB"), "1234567".to_owned()],
            name: format!("std::vector<std::string>::a_rather_long_name_{number}"),
            place: format!("/usr/src/build/deep/directory/of/a/project/source_{number}.cc:1234"),
            ..Row::default()
        };
        View {
            title: "server (pid 12): 5.0 GiB in 123456 objects, 40 call sites".to_owned(),
            accounting: "tracked 900.4 MiB + cached 101.3 MiB + overhead 88.7 MiB + unaccounted \
                         11.5 MiB = resident 1101.9 MiB"
                .to_owned(),
            notes: vec!["a note".to_owned()],
            columns: vec![
                Column { name: "SIZE", optional: false },
                Column { name: "OBJECTS", optional: true },
            ],
            names: "FUNCTION",
            rows: (0..40).rev().map(row).collect(),
            all: 40,
        }
    }

    fn screen() -> Screen {
        let (by, unit, order) = (By::Size, Unit::Site, Order::Size);
        let choice = Choice { by, tree: None, unit, order, least: i64::MIN };
        Screen::new(choice, Reading::default(), true)
    }

    fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        drawn(screen, &view(), width, height)
    }

    fn drawn(screen: &mut Screen, view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(view, frame)).expect("a drawing");
        let buffer = terminal.backend().buffer();
        let text = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| text(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_fits_80_columns_and_24_lines() {
        let lines = lines(&mut screen(), 80, 24);
        assert!(lines[0].starts_with("server (pid 12): 5.0 GiB"), "{lines:#?}");
        assert!(lines[1].starts_with("tracked 900.4 MiB"), "{lines:#?}");
        assert!(lines[2].ends_with("resident 1101.9 MiB"), "{lines:#?}");
        let head: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(head, ["SIZE", "DELTA", "OBJECTS", "FUNCTION", "WHERE"]);
        assert!(lines[4].trim_start().starts_with("39.0 MiB   +1.0 MiB    1234567"), "{lines:#?}");
        assert!(lines[4].ends_with("source_39.cc:1234"), "{lines:#?}");
        assert!(lines[22].trim_start().starts_with("21.0 MiB"), "{lines:#?}");
        assert!(lines[23].starts_with(KEYS), "{lines:#?}");
    }

    #[test]
    fn the_screen_fits_40_columns_and_15_lines() {
        let lines = lines(&mut screen(), 40, 15);
        assert!(lines[0].starts_with("server (pid 12): 5.0 GiB"), "{lines:#?}");
        let at = lines.iter().position(|line| line.contains("SIZE")).expect("a head");
        assert!(at <= 4, "{lines:#?}");
        assert_eq!(lines[at].split_whitespace().collect::<Vec<_>>(), ["SIZE", "DELTA", "FUNCTION"]);
        assert!(lines[at + 1].trim_start().starts_with("39.0 MiB   +1.0 MiB"), "{lines:#?}");
        assert!(lines[at + 1].ends_with("name_39"), "{lines:#?}");
        assert!(lines[14].starts_with("q quit"), "{lines:#?}");
    }

    /// A screen with an object, mapped memory that has grown since the reading before, and code.
    fn mapped() -> Screen {
        let row = |origin, bytes, mapped| Site { bytes, mapped, calls: 7, ..Site::new(origin) };
        let place = |function: &str| {
            Origin::Place(Place { function: Some(function.to_owned()), ..Place::default() })
        };
        let code = "/usr/lib/a/rather/long/path/of/a/library/libengine.so.1";
        let reading = |mapped: u64| {
            let mut of = Reading::default();
            of.sites = vec![row(place("keep"), 64 << 20, None)];
            let pool = row(place("pool"), mapped.cast_signed(), Some(mapped));
            let code = Origin::Mapped(Mapped::Code(code.to_owned()));
            of.mappings = vec![pool, row(code, 32 << 20, Some(64 << 20))];
            of
        };
        let (reading, before) = (reading(128 << 20), Some(reading(96 << 20)));
        Screen { reading, before, ..screen() }
    }

    #[test]
    fn mapped_memory_keeps_the_layout_of_80_columns_and_24_lines() {
        let mut screen = mapped();
        let view = screen.view();
        let lines = drawn(&mut screen, &view, 80, 24);
        let at = lines.iter().position(|line| line.contains("OBJECTS")).expect("a head");
        let rows: Vec<&str> = lines[at + 1..at + 4].iter().map(|line| line.trim()).collect();
        assert!(rows[0].starts_with("128.0 MiB  +32.0 MiB     mapped pool"), "{lines:#?}");
        assert!(rows[1].starts_with("64.0 MiB                     7 keep"), "{lines:#?}");
        assert!(rows[2].starts_with("32.0 MiB                mapped code "), "{lines:#?}");
        assert!(rows[2].ends_with("libengine.so.1"), "{lines:#?}");
        assert!(lines[23].starts_with(KEYS), "{lines:#?}");
    }

    #[test]
    fn mapped_memory_keeps_the_layout_of_40_columns_and_15_lines() {
        let mut screen = mapped();
        let view = screen.view();
        let lines = drawn(&mut screen, &view, 40, 15);
        let at = lines.iter().position(|line| line.contains("DELTA")).expect("a head");
        assert!(lines[at + 1].trim().starts_with("128.0 MiB  +32.0 MiB pool"), "{lines:#?}");
        // The name of all code is the same: the path is what tells it apart.
        assert!(lines[at + 3].ends_with("engine.so.1"), "{lines:#?}");
        assert!(lines[14].starts_with("q quit"), "{lines:#?}");
    }

    #[test]
    fn a_page_that_is_higher_than_the_screen_is_shown_from_the_line_that_was_chosen() {
        let mut screen = screen();
        let press = |screen: &mut Screen, code| {
            assert!(!screen.quits_at(KeyEvent::from(code), &[]));
            lines(screen, 80, 12)
        };
        let first = press(&mut screen, KeyCode::Char('?'));
        assert!(first[3].starts_with("q       quit"), "{first:#?}");
        assert!(first[11].starts_with("↓ more   q quit"), "{first:#?}");
        let next = press(&mut screen, KeyCode::Down);
        assert_eq!(next[3], first[4]);
        let last = press(&mut screen, KeyCode::End);
        assert!(last[10].contains("a note") && last[11].starts_with("q quit"), "{last:#?}");
        assert_ne!(press(&mut screen, KeyCode::Up), last);
        assert_eq!(press(&mut screen, KeyCode::Home), first);
        // The rows behind it stay as they were, and a page begins at its first line.
        press(&mut screen, KeyCode::End);
        assert!(press(&mut screen, KeyCode::Esc).iter().any(|line| line.contains("39.0 MiB")));
        assert_eq!(press(&mut screen, KeyCode::Char('?')), first);
    }

    #[test]
    fn a_screen_of_one_cell_is_no_failure() {
        for (width, height) in [(1, 1), (2, 3), (12, 4), (300, 2)] {
            lines(&mut screen(), width, height);
        }
    }

    #[test]
    fn keys_sort_show_help_pause_and_quit() {
        let mut screen = screen();
        let press =
            |screen: &mut Screen, key| screen.quits_at(KeyEvent::from(KeyCode::Char(key)), &[]);
        for order in [Order::Calls, Order::Tag, Order::Size] {
            assert!(!press(&mut screen, 's'));
            assert_eq!(screen.choice.order, order);
        }
        assert!(!press(&mut screen, '?'));
        assert!(lines(&mut screen, 80, 24).iter().any(|line| line.contains("a note")));
        for tree in [Some(Branches::Callers), Some(Branches::Source), None] {
            assert!(!press(&mut screen, 't'));
            assert_eq!(screen.choice.tree, tree);
        }
        assert!(!press(&mut screen, 'p') && screen.paused);
        assert!(press(&mut screen, 'q'));
    }
}
