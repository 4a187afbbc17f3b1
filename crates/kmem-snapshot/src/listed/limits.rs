//! The most that a list can make its reader keep.
//!
//! A file is hostile, and a small one can name many things: `{}` is a frame of JSON. So each row
//! draws on these limits when it is added, before the next one is read.

use kmem_layout::site::MAX_DEPTH;
use kmem_layout::word::TAG_BITS;

use super::Key;
use crate::budget::Budget;
use crate::sites::{Chain, Site};
use crate::symbols::Place;

/// Most rows of a list: eight times the call sites of a process.
const MAX_ROWS: usize = 8 << TAG_BITS;
/// Most tags of a list: as many as rows.
pub(super) const MAX_TAGS: usize = MAX_ROWS;
/// Most chains of callers in a row: one for each tag of a process.
pub(super) const MAX_CHAINS: usize = 1 << TAG_BITS;
/// Most frames in a chain of callers.
pub(super) const MAX_CHAIN: usize = MAX_DEPTH as usize;
/// Most frames in a list: those of the longest chains of a process.
const MAX_FRAMES: usize = MAX_CHAIN * MAX_CHAINS;

/// Counts and memory that are left.
#[derive(Debug)]
pub(super) struct Limits {
    rows: Limit,
    tags: Limit,
    frames: Limit,
    /// Memory of rows, frames and names.
    budget: Budget,
}

#[derive(Debug)]
struct Limit {
    left: usize,
    most: usize,
    what: &'static str,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(MAX_ROWS, MAX_TAGS, MAX_FRAMES, Budget::default())
    }
}

impl Limits {
    pub(super) fn new(rows: usize, tags: usize, frames: usize, budget: Budget) -> Self {
        Self {
            rows: Limit::new(rows, "rows"),
            tags: Limit::new(tags, "tags"),
            frames: Limit::new(frames, "frames in the chains of callers"),
            budget,
        }
    }

    /// Draws a row that has no other one of its place. Its names are kept in the key, too.
    pub(super) fn row(&mut self, key: &Key) -> Result<(), String> {
        self.rows.draw(1)?;
        let (_, module, location, function) = key;
        let names = module.len() + location.len() + function.len();
        self.memory(size_of::<Site>() + size_of::<(Key, usize)>() + 2 * names)
    }

    /// Draws the tags and the chains of a row.
    pub(super) fn parts(&mut self, site: &Site) -> Result<(), String> {
        self.tags.draw(site.tags.len())?;
        self.memory(size_of_val(&site.tags[..]))?;
        site.chains.iter().try_for_each(|chain| self.chain(chain))
    }

    fn chain(&mut self, chain: &Chain) -> Result<(), String> {
        self.frames.draw(chain.frames.len())?;
        let names = chain.frames.iter().map(|frame| names(frame)).sum::<usize>();
        // A frame has a pointer to it, and two counts before it.
        let frame = size_of::<Place>() + 3 * size_of::<usize>();
        self.memory(size_of::<Chain>() + chain.frames.len() * frame + names)
    }

    fn memory(&self, bytes: usize) -> Result<(), String> {
        self.budget.memory(bytes as u64).map_err(|over| over.to_string())
    }
}

/// Bytes of the names of a place.
fn names(place: &Place) -> usize {
    let file = place.source.as_ref().map_or(0, |(file, _)| file.len());
    place.module.len() + file + place.function.as_ref().map_or(0, String::len)
}

impl Limit {
    fn new(most: usize, what: &'static str) -> Self {
        Self { left: most, most, what }
    }

    fn draw(&mut self, count: usize) -> Result<(), String> {
        let left = self.left.checked_sub(count);
        self.left = left.ok_or_else(|| format!("more than {} {}", self.most, self.what))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::listed::List;
    use crate::sites::Origin;

    /// The error of a list that may have two rows, four tags, six frames and 4 KiB.
    fn refusal(sites: impl IntoIterator<Item = Site>) -> Option<String> {
        let limits = Limits::new(2, 4, 6, Budget::new(4096, 0));
        let mut list = List { limits, ..List::default() };
        sites.into_iter().try_for_each(|site| list.add(site)).err()
    }

    fn site(file: &str) -> Site {
        let source = Some((file.to_owned(), 1));
        Site::new(Origin::Place(Place { source, ..Place::default() }))
    }

    fn of_frames(counts: &[usize], name: &str) -> Site {
        let place = Arc::new(Place { module: name.to_owned(), ..Place::default() });
        let chain = |&count: &usize| Chain {
            tag: 8,
            bytes: 0,
            calls: 0,
            frames: vec![Arc::clone(&place); count],
        };
        Site { chains: counts.iter().map(chain).collect(), ..site("a.c") }
    }

    #[test]
    fn rows_of_all_kinds_have_one_limit() {
        let mapped = Site { mapped: Some(1), ..site("a.c") };
        assert_eq!(refusal([site("a.c"), mapped.clone(), site("a.c"), mapped.clone()]), None);
        let over = refusal([site("a.c"), mapped, site("b.c")]);
        assert_eq!(over.as_deref(), Some("more than 2 rows"));
    }

    #[test]
    fn tags_and_frames_are_counted_over_all_rows_of_a_place() {
        let tags = |count| Site { tags: vec![8; count], ..site("a.c") };
        assert_eq!(refusal([tags(2), tags(2)]), None);
        assert_eq!(refusal([tags(2), tags(3)]).as_deref(), Some("more than 4 tags"));
        assert_eq!(refusal([of_frames(&[1, 2], ""), of_frames(&[3], "")]), None);
        let over = refusal([of_frames(&[1, 2], ""), of_frames(&[4], "")]);
        assert_eq!(over.as_deref(), Some("more than 6 frames in the chains of callers"));
    }

    #[test]
    fn names_of_rows_and_of_frames_draw_on_the_budget() {
        let budget = Some("above the budget of a reading, 4.0 KiB of memory");
        // A name of a row is kept twice.
        assert_eq!(refusal([site(&"x".repeat(1500))]), None);
        assert_eq!(refusal([site(&"x".repeat(2000))]).as_deref(), budget);
        assert_eq!(refusal([of_frames(&[2], &"x".repeat(800))]), None);
        assert_eq!(refusal([of_frames(&[2], &"x".repeat(2000))]).as_deref(), budget);
        assert_eq!(
            refusal([of_frames(&[1], ""), of_frames(&[1], &"x".repeat(4000))]).as_deref(),
            budget
        );
    }
}
