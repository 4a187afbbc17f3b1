//! The filter of the screen: a text that is typed at its lowest line, and the rows that have it.

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::view::{Row, shorten};

/// Most characters of the text where other things share its line.
const SHOWN: usize = 16;

/// The text, and whether it is being typed.
#[derive(Debug, Default)]
pub(super) struct Search {
    text: String,
    typing: bool,
}

impl Search {
    /// Opens the line. The text goes on from where it was.
    pub(super) fn open(&mut self) {
        self.typing = true;
    }

    /// True while keys are letters of the text.
    pub(super) fn is_typing(&self) -> bool {
        self.typing
    }

    /// True while rows are left out.
    pub(super) fn is_on(&self) -> bool {
        !self.text.is_empty()
    }

    /// Shows all rows again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes a key while the line is open.
    pub(super) fn take(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => self.clear(),
            KeyCode::Backspace => {
                self.text.pop();
            }
            KeyCode::Char(letter) => self.text.push(letter),
            _ => {}
        }
    }

    /// The line while it is open, for a width in characters: the end of the text stays in sight.
    pub(super) fn line(&self, width: usize) -> String {
        let room = width.saturating_sub(2);
        let skipped = self.text.chars().count().saturating_sub(room);
        let text: String = self.text.chars().skip(skipped).collect();
        format!("/{text}_   Enter keeps, Esc shows all")
    }

    /// The state for the line of keys: the text, and how many of all rows have it.
    pub(super) fn state(&self, rows: usize, all: usize) -> Option<String> {
        self.is_on().then(|| format!("/{}: {rows} of {all} rows", shorten(&self.text, SHOWN)))
    }

    /// Keeps the rows that have the text, in any case of letters, and the callers above them.
    pub(super) fn choose(&self, rows: &mut Vec<Row>) {
        let text = self.text.to_lowercase();
        // Rows of a tree come below their callers, so from the end a caller is the next row with
        // less depth.
        let mut above = 0;
        let mut kept: Vec<bool> = Vec::with_capacity(rows.len());
        for row in rows.iter().rev() {
            let has = |of: &String| of.to_lowercase().contains(&text);
            let keep = row.depth < above || has(&row.name) || row.known_as.iter().any(has);
            if keep {
                above = row.depth;
            }
            kept.push(keep);
        }
        rows.retain(|_| kept.pop().unwrap_or(true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(depth: usize, name: &str, known_as: &str) -> Row {
        Row { depth, name: name.to_owned(), known_as: vec![known_as.to_owned()], ..Row::default() }
    }

    fn chosen(text: &str, rows: &[(usize, &str, &str)]) -> Vec<String> {
        let mut rows = rows.iter().map(|&(depth, name, known)| row(depth, name, known)).collect();
        let search = Search { text: text.to_owned(), typing: false };
        search.choose(&mut rows);
        rows.into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn a_row_has_the_text_in_any_of_its_names_and_in_any_case() {
        let rows = [(0, "load", "/src/index.c:9"), (0, "Index::of", "app"), (0, "other", "app")];
        assert_eq!(chosen("index", &rows), ["load", "Index::of"]);
        assert_eq!(chosen("APP", &rows), ["Index::of", "other"]);
        assert_eq!(chosen("", &rows).len(), 3);
        assert!(chosen("none", &rows).is_empty());
    }

    #[test]
    fn a_row_of_a_tree_keeps_its_callers_and_no_others() {
        let rows = [
            (0, "main", ""),
            (1, "load", ""),
            (2, "leaf", ""),
            (2, "wanted", ""),
            (3, "callee", ""),
            (1, "other", ""),
            (0, "thread", ""),
            (1, "wanted too", ""),
        ];
        assert_eq!(chosen("wanted", &rows), ["main", "load", "wanted", "thread", "wanted too"]);
    }

    #[test]
    fn a_long_text_keeps_its_end_in_sight() {
        let text = "a".repeat(50) + "end";
        let search = Search { text, typing: true };
        assert!(search.line(20).starts_with(&format!("/{}end_", "a".repeat(15))));
        let state = search.state(1, 2).expect("a text");
        assert!(state.ends_with("end: 1 of 2 rows") && state.chars().count() < 40, "{state}");
    }
}
