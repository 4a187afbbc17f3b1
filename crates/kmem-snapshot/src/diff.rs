//! Changes of live memory by place, between two readings of any kinds.
//!
//! Rows of one place are compared as one. A place is a module, a file, a line and a function, of a
//! static tag or of a call. A call without a source is known by module and offset. Names are
//! compared as allocinfo text spells them, so that a text matches a process.
//!
//! ```
//! use kmem_snapshot::diff::{Diff, State};
//! use kmem_snapshot::sites::{Origin, Site};
//!
//! let of = |bytes, calls| [Site { bytes, calls, ..Site::new(Origin::NotTagged) }];
//! let diff = Diff::of(&of(64, 1), &of(4096, 3));
//! assert_eq!((diff.changes[0].delta().bytes, diff.delta().bytes), (4032, 4032));
//! assert_eq!(diff.changes[0].state(), State::Changed);
//! ```

mod json;

use std::collections::HashMap;
use std::iter::Sum;
use std::ops::{Add, Sub};

use serde::Serialize;

use crate::escape::word;
use crate::sites::{Order, Origin, Site};

/// Live memory. 128 bits hold the sums and the differences of all readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Held {
    /// Bytes.
    pub bytes: i128,
    /// Objects.
    pub calls: i128,
}

impl Held {
    fn of(site: &Site) -> Self {
        // A kernel writes -1 as 2^64 - 1.
        Self { bytes: site.bytes.into(), calls: site.calls.cast_signed().into() }
    }

    /// True for none.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }
}

impl Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, calls: self.calls + other.calls }
    }
}

impl Sub for Held {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { bytes: self.bytes - other.bytes, calls: self.calls - other.calls }
    }
}

impl Sum for Held {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The place held nothing before.
    New,
    /// The place holds nothing afterwards.
    Gone,
    /// The place held memory before, and does afterwards.
    Changed,
}

impl State {
    /// The kind in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Gone => "gone",
            Self::Changed => "changed",
        }
    }
}

/// The change of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The place.
    pub origin: Origin,
    /// Its memory before.
    pub before: Held,
    /// Its memory afterwards.
    pub after: Held,
}

impl Change {
    /// The memory that was added; negative where memory was freed.
    #[must_use]
    pub fn delta(&self) -> Held {
        self.after - self.before
    }

    /// Kind of the change.
    #[must_use]
    pub fn state(&self) -> State {
        if self.before.is_zero() {
            State::New
        } else if self.after.is_zero() {
            State::Gone
        } else {
            State::Changed
        }
    }
}

/// The difference of two readings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// Places whose memory changed, in order of size. Their deltas add up to that of the sums.
    pub changes: Vec<Change>,
    /// Sum of all rows before.
    pub before: Held,
    /// Sum of all rows afterwards.
    pub after: Held,
}

impl Diff {
    /// Compares rows.
    #[must_use]
    pub fn of(before: &[Site], after: &[Site]) -> Self {
        let mut all: Vec<Change> = Vec::new();
        let mut known = HashMap::new();
        let rows = before.iter().map(|site| (site, Held::of(site), Held::default()));
        let rows = rows.chain(after.iter().map(|site| (site, Held::default(), Held::of(site))));
        for (site, before, after) in rows {
            let at = *known.entry(key(&site.origin)).or_insert(all.len());
            if at == all.len() {
                all.push(Change { origin: site.origin.clone(), before, after });
            } else {
                all[at].before = all[at].before + before;
                all[at].after = all[at].after + after;
            }
        }
        let sum = |sites: &[Site]| sites.iter().map(Held::of).sum();
        all.retain(|change| !change.delta().is_zero());
        let mut this = Self { changes: all, before: sum(before), after: sum(after) };
        this.sort(Order::Size);
        this
    }

    /// The memory that was added.
    #[must_use]
    pub fn delta(&self) -> Held {
        self.after - self.before
    }

    /// Sorts the changes, the largest first whatever their sign, or by name.
    pub fn sort(&mut self, order: Order) {
        self.changes.sort_by_cached_key(|change| {
            let Held { bytes, calls } = change.delta();
            let (bytes, calls) = (-bytes.abs(), -calls.abs());
            let size = match order {
                Order::Size | Order::Pinned => (bytes, calls),
                Order::Calls => (calls, bytes),
                Order::Tag => (0, 0),
            };
            (size, change.origin.function().to_owned(), change.origin.location())
        });
    }
}

/// Equal for two rows of one place: module, file, line and function.
fn key(origin: &Origin) -> (String, String, u32, String) {
    if let Origin::Place(place) = origin
        && place.source.is_none()
    {
        return (String::new(), word(&place.in_module()).into_owned(), 0, String::new());
    }
    let tag = origin.tag();
    let text = |name: &str| word(name).into_owned();
    let module = tag.module.as_deref().map_or_else(String::new, text);
    (module, text(&tag.file), tag.line, text(&tag.function))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::books::StaticTag;
    use crate::symbols::Place;

    fn call(function: Option<&str>, source: Option<u32>) -> Origin {
        Origin::Place(Place {
            module: "libx.so".into(),
            main: false,
            offset: 0x10,
            address: 0,
            function: function.map(Into::into),
            source: source.map(|line| ("/src/a.c".into(), line)),
        })
    }

    fn row(origin: Origin, bytes: i64, calls: u64) -> Site {
        Site { bytes, calls, ..Site::new(origin) }
    }

    #[test]
    fn rows_of_one_place_are_one_change_whatever_their_kind() {
        let tag = StaticTag {
            module: "libx.so".into(),
            file: "/src/a.c".into(),
            line: 7,
            function: "f<A, B>".into(),
        };
        let text = Origin::Static(Arc::new(StaticTag { function: "f<A,B>".into(), ..tag.clone() }));
        let own = Origin::Static(Arc::new(tag));
        let before = [row(text, 10, 1), row(call(Some("f<A, B>"), Some(7)), 5, 1)];
        let diff = Diff::of(&before, &[row(own, 40, 2)]);
        assert_eq!(diff.changes.len(), 1);
        assert_eq!(diff.changes[0].delta(), Held { bytes: 25, calls: 0 });
    }

    #[test]
    fn a_call_without_a_source_is_known_by_its_offset() {
        let diff = Diff::of(
            &[row(call(None, None), 10, 1)],
            &[row(call(Some("f"), None), 30, 3), row(call(Some("f"), Some(1)), 1, 1)],
        );
        let found: Vec<_> = diff.changes.iter().map(|of| (of.delta().bytes, of.state())).collect();
        assert_eq!(found, [(20, State::Changed), (1, State::New)]);
    }

    #[test]
    fn changes_come_by_size_whatever_their_sign_and_equal_rows_are_none() {
        let line = |line, bytes| row(call(Some("f"), Some(line)), bytes, 1);
        let before = [line(1, 100), line(2, 7), line(3, 50), line(4, -8)];
        let after = [line(2, 7), line(3, 60), line(4, i64::MAX), line(5, 20)];
        let diff = Diff::of(&before, &after);
        let states: Vec<_> = diff.changes.iter().map(Change::state).collect();
        assert_eq!(states, [State::Changed, State::Gone, State::New, State::Changed]);
        assert_eq!(diff.changes[0].delta().bytes, i128::from(i64::MAX) + 8);
        let sum: Held = diff.changes.iter().map(Change::delta).sum();
        assert_eq!(sum, diff.delta());
        assert_eq!(sum, Held { bytes: i128::from(i64::MAX) - 62, calls: 0 });
    }

    #[test]
    fn the_largest_number_of_objects_stands_for_minus_one() {
        let diff = Diff::of(&[row(Origin::NotTagged, -8, u64::MAX)], &[]);
        assert_eq!(diff.delta(), Held { bytes: 8, calls: 1 });
    }
}
