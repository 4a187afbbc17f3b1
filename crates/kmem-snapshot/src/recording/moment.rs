//! One moment of a recording, and its difference from another one.

use std::iter;

use super::wire::Changes;
use crate::books::{Accounting, Parts, Tables};

/// Terms of the account.
const TERMS: usize = 14;

/// Live objects of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Live bytes; of memory outside of the heap, bytes in memory.
    pub bytes: i64,
    /// Live objects; of memory outside of the heap, ranges.
    pub calls: u64,
    /// Address space of memory outside of the heap.
    pub mapped: u64,
}

/// One moment. Rows, groups and classes go by their numbers in the recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moment {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Live objects of each row.
    pub rows: Vec<Held>,
    /// Live bytes and objects of each group itself.
    pub groups: Vec<(i64, u64)>,
    /// Of each size class: live objects, slabs, and slabs with a live object.
    pub classes: Vec<[u64; 3]>,
    /// Slabs that changed while they were read.
    pub torn: u64,
    account: [i64; TERMS],
}

/// The difference of two counts, which may wrap around.
fn delta(now: u64, before: u64) -> i64 {
    now.wrapping_sub(before).cast_signed()
}

/// Numbers, each as the count of those passed over since the last one.
#[derive(Default)]
struct Gaps {
    next: u32,
    gaps: Vec<u32>,
}

impl Gaps {
    fn push(&mut self, number: usize) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.gaps.push(number.saturating_sub(self.next));
        self.next = number.saturating_add(1);
    }
}

/// The numbers that gaps stand for. An error for one that is not below `end`.
fn numbers(gaps: &[u32], end: usize) -> Result<Vec<usize>, String> {
    let mut next = 0_usize;
    let number = |&gap: &u32| {
        let number = next.saturating_add(gap as usize);
        next = number.saturating_add(1);
        if number < end { Ok(number) } else { Err(format!("number {number} has no name")) }
    };
    gaps.iter().map(number).collect()
}

/// Checks that a column has a value for each number.
fn column<T>(values: &[T], numbers: &[usize]) -> Result<(), String> {
    if values.len() == numbers.len() {
        return Ok(());
    }
    Err(format!("{} numbers have {} values", numbers.len(), values.len()))
}

impl Moment {
    /// The equation; none of a kernel.
    #[must_use]
    pub fn accounting(&self) -> Option<Accounting> {
        let term = |at: usize| self.account.get(at).map_or(0, |term| term.cast_unsigned());
        let maybe = |at: usize| term(at).checked_sub(1);
        (term(0) != 0).then(|| Accounting {
            tracked: term(1),
            cached: term(2),
            overhead: term(3),
            resident: term(4),
            tables: match term(5) {
                0 => Tables::Counted,
                1 => Tables::Estimated,
                _ => Tables::Unknown,
            },
            untouched: maybe(6),
            swapped: maybe(7),
            parts: (term(8) != 0).then(|| Parts {
                mappings: term(9),
                stacks: term(10),
                code: term(11),
                files: term(12),
            }),
            page_tables: maybe(13),
        })
    }

    /// Sets the equation.
    pub(crate) fn set_accounting(&mut self, of: &Accounting) {
        let maybe = |term: Option<u64>| term.map_or(0, |term| term.saturating_add(1));
        let parts = of.parts.unwrap_or_default();
        let tables = match of.tables {
            Tables::Counted => 0,
            Tables::Estimated => 1,
            Tables::Unknown => 2,
        };
        self.account = [
            1,
            of.tracked,
            of.cached,
            of.overhead,
            of.resident,
            tables,
            maybe(of.untouched),
            maybe(of.swapped),
            u64::from(of.parts.is_some()),
            parts.mappings,
            parts.stacks,
            parts.code,
            parts.files,
            maybe(of.page_tables),
        ]
        .map(u64::cast_signed);
    }

    /// Adds to a row.
    pub(crate) fn add(&mut self, row: u32, bytes: i64, calls: u64, mapped: u64) {
        let at = row as usize;
        if at >= self.rows.len() {
            self.rows.resize(at + 1, Held::default());
        }
        let Some(held) = self.rows.get_mut(at) else { return };
        held.bytes = held.bytes.saturating_add(bytes);
        // Modulo 2^64, because a kernel writes -1 as 2^64 - 1.
        held.calls = held.calls.wrapping_add(calls);
        held.mapped = held.mapped.saturating_add(mapped);
    }

    /// The changes since `before`.
    pub(super) fn since(&self, before: &Self) -> Changes {
        let mut changes = Changes { torn: self.torn, ..Changes::default() };
        let mut gaps = Gaps::default();
        for at in 0..self.rows.len().max(before.rows.len()) {
            let of = |moment: &Self| moment.rows.get(at).copied().unwrap_or_default();
            let (now, old) = (of(self), of(before));
            if now != old {
                gaps.push(at);
                changes.bytes.push(now.bytes.wrapping_sub(old.bytes));
                changes.calls.push(delta(now.calls, old.calls));
                changes.mapped.push(delta(now.mapped, old.mapped));
            }
        }
        if changes.mapped.iter().all(|&of| of == 0) {
            changes.mapped.clear();
        }
        changes.rows = gaps.gaps;
        let mut gaps = Gaps::default();
        for at in 0..self.groups.len().max(before.groups.len()) {
            let of = |moment: &Self| moment.groups.get(at).copied().unwrap_or_default();
            let (now, old) = (of(self), of(before));
            if now != old {
                gaps.push(at);
                changes.group_bytes.push(now.0.wrapping_sub(old.0));
                changes.group_calls.push(delta(now.1, old.1));
            }
        }
        changes.groups = gaps.gaps;
        let mut gaps = Gaps::default();
        for at in 0..self.classes.len().max(before.classes.len()) {
            let of = |moment: &Self| moment.classes.get(at).copied().unwrap_or_default();
            let (now, old) = (of(self), of(before));
            if now != old {
                gaps.push(at);
                let ([active, slabs, active_slabs], [old_active, old_slabs, old_active_slabs]) =
                    (now, old);
                changes.active.push(delta(active, old_active));
                changes.slabs.push(delta(slabs, old_slabs));
                changes.active_slabs.push(delta(active_slabs, old_active_slabs));
            }
        }
        changes.classes = gaps.gaps;
        let terms = self.account.iter().zip(before.account);
        changes.account = terms.map(|(now, old)| now.wrapping_sub(old)).collect();
        changes
    }

    /// Becomes the moment with these changes. `rows`, `groups` and `classes` are the counts of
    /// those that have names.
    pub(super) fn apply(
        &mut self,
        changes: &Changes,
        time_ns: u64,
        [rows, groups, classes]: [usize; 3],
    ) -> Result<(), String> {
        let named = numbers(&changes.rows, rows)?;
        column(&changes.bytes, &named)?;
        column(&changes.calls, &named)?;
        if !changes.mapped.is_empty() {
            column(&changes.mapped, &named)?;
        }
        if let Some(&last) = named.last() {
            self.rows.resize(self.rows.len().max(last + 1), Held::default());
        }
        let mapped = changes.mapped.iter().copied().chain(iter::repeat(0));
        let columns = changes.bytes.iter().zip(&changes.calls).zip(mapped);
        for (&at, ((&bytes, &calls), mapped)) in named.iter().zip(columns) {
            if let Some(held) = self.rows.get_mut(at) {
                held.bytes = held.bytes.wrapping_add(bytes);
                held.calls = held.calls.wrapping_add_signed(calls);
                held.mapped = held.mapped.wrapping_add_signed(mapped);
            }
        }
        let named = numbers(&changes.groups, groups)?;
        column(&changes.group_bytes, &named)?;
        column(&changes.group_calls, &named)?;
        if let Some(&last) = named.last() {
            self.groups.resize(self.groups.len().max(last + 1), (0, 0));
        }
        let columns = changes.group_bytes.iter().zip(&changes.group_calls);
        for (&at, (&more_bytes, &more_calls)) in named.iter().zip(columns) {
            if let Some((bytes, calls)) = self.groups.get_mut(at) {
                *bytes = bytes.wrapping_add(more_bytes);
                *calls = calls.wrapping_add_signed(more_calls);
            }
        }
        let named = numbers(&changes.classes, classes)?;
        let columns = [&changes.active, &changes.slabs, &changes.active_slabs];
        columns.iter().try_for_each(|values| column(values, &named))?;
        if let Some(&last) = named.last() {
            self.classes.resize(self.classes.len().max(last + 1), [0; 3]);
        }
        for (number, values) in columns.into_iter().enumerate() {
            for (&at, &more) in named.iter().zip(values) {
                if let Some(sum) = self.classes.get_mut(at).and_then(|of| of.get_mut(number)) {
                    *sum = sum.wrapping_add_signed(more);
                }
            }
        }
        for (term, change) in self.account.iter_mut().zip(&changes.account) {
            *term = term.wrapping_add(*change);
        }
        (self.torn, self.time_ns) = (changes.torn, time_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lead_from_one_moment_to_the_other() {
        let mut before = Moment { time_ns: 1, groups: vec![(1, 1), (5, 5)], ..Moment::default() };
        before.add(2, 64, 1, 0);
        before.add(5, 4096, 1, 8192);
        let mut after = Moment { time_ns: 2, classes: vec![[0; 3], [7, 2, 1]], ..before.clone() };
        after.rows[2] = Held::default();
        after.add(70, -64, u64::MAX, 0);
        after.groups = vec![(1, 1), (0, 0), (3, 3)];
        let parts = Some(Parts { stacks: 3, ..Parts::default() });
        let of = Accounting { resident: 9, untouched: Some(0), parts, ..Accounting::default() };
        after.set_accounting(&of);
        assert_eq!((before.accounting(), after.accounting()), (None, Some(of)));
        let changes = after.since(&before);
        assert_eq!(changes.rows, [2, 67], "only two rows differ");
        let mut now = before;
        now.apply(&changes, 2, [71, 3, 2]).unwrap();
        assert_eq!(now, after);
        for counts in [[70, 3, 2], [71, 2, 2], [71, 3, 1]] {
            let error = Moment::default().apply(&changes, 2, counts).unwrap_err();
            assert!(error.contains("has no name"), "{error}");
        }
        let short = Changes { calls: vec![1], ..changes };
        assert!(Moment::default().apply(&short, 2, [71, 3, 2]).is_err());
    }
}
