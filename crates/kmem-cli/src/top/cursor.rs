//! The row that the user chose on the screen, and the part of the rows that is shown.

use ratatui::crossterm::event::KeyCode;

use super::view::Row;

/// Rows that a page key goes on.
const PAGE: isize = 10;

/// The chosen row. None is chosen until the first key.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    key: Option<String>,
    /// Its number in the rows, where it was last.
    at: usize,
    /// Number of the first row that is shown.
    first: usize,
}

impl Cursor {
    /// Obeys a key. Returns false if it is none of the cursor's.
    pub(super) fn take(&mut self, key: KeyCode, rows: &[Row]) -> bool {
        let Some(step) = step(key) else { return false };
        let next = match self.row(rows) {
            Some(at) => at.saturating_add_signed(step),
            None if key == KeyCode::End => usize::MAX,
            None => 0,
        };
        self.at = next.min(rows.len().saturating_sub(1));
        self.key = rows.get(self.at).map(|row| row.key.clone());
        true
    }

    /// Chooses no row, and shows the first ones.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// True while a row is chosen.
    pub(super) fn is_on(&self) -> bool {
        self.key.is_some()
    }

    /// Number of the chosen row. A row that is gone gives its place to the next one.
    pub(super) fn row(&self, rows: &[Row]) -> Option<usize> {
        let key = self.key.as_ref()?;
        let found = rows.iter().position(|row| row.key == *key);
        let last = rows.len().checked_sub(1)?;
        Some(found.unwrap_or(self.at.min(last)))
    }

    /// Number of the first row to show where `height` rows fit, so that the chosen one is shown.
    pub(super) fn scroll(&mut self, rows: &[Row], height: usize) -> usize {
        let most = rows.len().saturating_sub(height);
        self.first = match self.row(rows) {
            None => 0,
            Some(at) if at < self.first => at,
            Some(at) => self.first.max((at + 1).saturating_sub(height)),
        };
        self.first = self.first.min(most);
        self.first
    }
}

/// Number of rows or lines that a key goes on; none for other keys.
pub(super) fn step(key: KeyCode) -> Option<isize> {
    Some(match key {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -PAGE,
        KeyCode::PageDown => PAGE,
        KeyCode::Home => isize::MIN,
        KeyCode::End => isize::MAX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &[&str]) -> Vec<Row> {
        names.iter().map(|&name| Row { key: name.to_owned(), ..Row::default() }).collect()
    }

    #[test]
    fn the_chosen_row_stays_chosen_when_rows_change_places() {
        let mut cursor = Cursor::default();
        let before = rows(&["a", "b", "c"]);
        assert_eq!(cursor.row(&before), None);
        for _ in 0..3 {
            assert!(cursor.take(KeyCode::Down, &before));
        }
        assert_eq!(cursor.row(&before), Some(2));
        assert_eq!(cursor.row(&rows(&["c", "b", "a"])), Some(0));
        // It is gone: the last row has its place.
        assert_eq!(cursor.row(&rows(&["a", "b"])), Some(1));
        assert_eq!(cursor.row(&[]), None);
        assert!(!cursor.take(KeyCode::Char('q'), &before));
        cursor.clear();
        assert_eq!(cursor.row(&before), None);
    }

    #[test]
    fn the_chosen_row_is_always_shown() {
        let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = rows(&names);
        let mut cursor = Cursor::default();
        assert_eq!(cursor.scroll(&all, 10), 0);
        for (key, first) in [
            (KeyCode::End, 20),
            (KeyCode::Up, 20),
            (KeyCode::PageUp, 18),
            (KeyCode::PageUp, 8),
            (KeyCode::Down, 8),
            (KeyCode::Home, 0),
            (KeyCode::PageDown, 1),
        ] {
            assert!(cursor.take(key, &all));
            assert_eq!(cursor.scroll(&all, 10), first, "{key:?}");
        }
        assert_eq!(cursor.scroll(&all, 40), 0);
    }
}
