//! The budget of a reading: the most memory and work that a target can cost its reader.
//!
//! All counts, lengths and names in a process, a core or a file are hostile. Each table has a bound
//! of its own, and a target can have thousands of tables. So all parts of a reading draw on one
//! budget. A part that does not fit is left out, and a remark says so.
//!
//! | | unit | default |
//! |---|---|---|
//! | memory | bytes that the reader keeps: tables, texts, sections, names | 2 GiB |
//! | work | bytes copied or expanded; one step of a parser counts as 16 bytes | 16 GiB |
//!
//! The names of each file draw on a share, which is half of what is left. So one file cannot take
//! the names of all others.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::report::size_u;

/// Default of the most memory, in bytes.
pub const MEMORY: u64 = 2 << 30;
/// Default of the most work, in bytes.
pub const WORK: u64 = 16 << 30;
/// Work of one step of a parser, in bytes.
pub(crate) const STEP: u64 = 16;
/// Remarks that are kept; further ones are counted.
const MAX_REMARKS: usize = 16;

/// Memory and work that are left of one reading. Clones draw on the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Limits,
    /// Bytes that are left.
    memory: Cell<u64>,
    /// Bytes that are left.
    work: Cell<u64>,
    /// Memory that was drawn and not given back, in bytes.
    kept: Cell<u64>,
    refused: Cell<Option<OverBudget>>,
    remarks: RefCell<Remarks>,
    /// The budget that this one is a share of.
    whole: Option<Budget>,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    memory: u64,
    work: u64,
}

#[derive(Debug, Default)]
struct Remarks {
    texts: Vec<String>,
    more: u64,
}

/// The part of a budget that is used up. It displays as the limit of the whole reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverBudget {
    /// The memory, and its limit in bytes.
    Memory(u64),
    /// The work, and its limit in bytes.
    Work(u64),
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, what) = match self {
            Self::Memory(limit) => (limit, "memory"),
            Self::Work(limit) => (limit, "work"),
        };
        write!(f, "above the budget of a reading, {} of {what}", size_u(*limit))
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(MEMORY, WORK)
    }
}

impl Budget {
    /// A budget of `memory` bytes of memory and `work` bytes of work.
    #[must_use]
    pub fn new(memory: u64, work: u64) -> Self {
        Self::of(Limits { memory, work }, memory, work, None)
    }

    fn of(limits: Limits, memory: u64, work: u64, whole: Option<Self>) -> Self {
        Self(Rc::new(Inner {
            limits,
            memory: Cell::new(memory),
            work: Cell::new(work),
            kept: Cell::default(),
            refused: Cell::default(),
            remarks: RefCell::default(),
            whole,
        }))
    }

    /// A share of half of what is left. What it draws is also drawn from this budget.
    pub(crate) fn share(&self) -> Self {
        let (memory, work) = (self.0.memory.get() / 2, self.0.work.get() / 2);
        Self::of(self.0.limits, memory, work, Some(self.clone()))
    }

    /// Draws memory. On failure nothing is drawn.
    pub(crate) fn memory(&self, bytes: u64) -> Result<(), OverBudget> {
        let over = OverBudget::Memory(self.0.limits.memory);
        self.draw(|inner| &inner.memory, bytes, over)?;
        self.keep(bytes.cast_signed());
        Ok(())
    }

    /// Draws work. On failure nothing is drawn.
    pub(crate) fn work(&self, bytes: u64) -> Result<(), OverBudget> {
        self.draw(|inner| &inner.work, bytes, OverBudget::Work(self.0.limits.work))
    }

    /// Draws the memory and the work of a copy that is kept.
    pub(crate) fn copy(&self, bytes: u64) -> Result<(), OverBudget> {
        self.memory(bytes)?;
        self.work(bytes).inspect_err(|_| self.give_back(bytes))
    }

    fn draw(
        &self,
        part: impl Fn(&Inner) -> &Cell<u64> + Copy,
        bytes: u64,
        over: OverBudget,
    ) -> Result<(), OverBudget> {
        let left = part(&self.0);
        let whole = self.0.whole.as_ref();
        let rest = left.get().checked_sub(bytes).ok_or(over);
        let rest = rest.and_then(|rest| {
            whole.map_or(Ok(()), |whole| whole.draw(part, bytes, over))?;
            Ok(rest)
        });
        let rest = rest.inspect_err(|&over| self.0.refused.set(Some(over)))?;
        left.set(rest);
        Ok(())
    }

    fn keep(&self, bytes: i64) {
        self.0.kept.set(self.0.kept.get().saturating_add_signed(bytes));
    }

    /// Gives memory back that is no longer kept.
    pub(crate) fn give_back(&self, bytes: u64) {
        let bytes = bytes.min(self.0.kept.get());
        self.0.memory.set(self.0.memory.get() + bytes);
        self.keep(-bytes.cast_signed());
        if let Some(whole) = &self.0.whole {
            whole.0.memory.set(whole.0.memory.get() + bytes);
        }
    }

    /// Memory that was drawn and not given back, in bytes.
    pub(crate) fn kept(&self) -> u64 {
        self.0.kept.get()
    }

    /// Memory that is left, in bytes.
    pub(crate) fn memory_left(&self) -> u64 {
        let whole = self.0.whole.as_ref().map_or(u64::MAX, Self::memory_left);
        self.0.memory.get().min(whole)
    }

    /// The part that a draw failed for, since the last call of this function.
    pub(crate) fn refused(&self) -> Option<OverBudget> {
        self.0.refused.take()
    }

    /// Keeps a sentence about a part that was left out.
    pub(crate) fn remark(&self, text: String) {
        let mut remarks = self.0.remarks.borrow_mut();
        if remarks.texts.len() < MAX_REMARKS {
            remarks.texts.push(text);
        } else {
            remarks.more += 1;
        }
    }

    /// Sentences about the parts that were left out.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let remarks = self.0.remarks.borrow();
        let more = (remarks.more != 0)
            .then(|| format!("{} more parts of the reading are left out", remarks.more));
        remarks.texts.iter().cloned().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_that_does_not_fit_takes_nothing() {
        let budget = Budget::new(100, 50);
        assert_eq!(budget.memory(101), Err(OverBudget::Memory(100)));
        assert_eq!(budget.copy(60), Err(OverBudget::Work(50)));
        assert_eq!(budget.memory_left(), 100);
        assert_eq!(budget.copy(50), Ok(()));
        assert_eq!(budget.refused(), Some(OverBudget::Work(50)));
        assert_eq!(budget.refused(), None);
        budget.give_back(1000);
        assert_eq!(budget.memory_left(), 100);
        assert_eq!(budget.memory(u64::MAX), Err(OverBudget::Memory(100)));
    }

    #[test]
    fn a_share_is_half_of_what_is_left_and_draws_on_the_whole() {
        let budget = Budget::new(100, 100);
        let share = budget.share();
        assert_eq!(share.memory(51), Err(OverBudget::Memory(100)));
        assert_eq!((share.copy(30), budget.memory_left()), (Ok(()), 70));
        share.give_back(share.kept());
        assert_eq!((share.memory_left(), budget.memory_left()), (50, 100));
        // The whole may be used up before the share is.
        assert_eq!(budget.memory(80), Ok(()));
        assert_eq!(share.memory(30), Err(OverBudget::Memory(100)));
        assert_eq!((share.memory_left(), budget.memory_left()), (20, 20));
    }

    #[test]
    fn remarks_are_kept_up_to_a_bound() {
        let budget = Budget::default();
        (0..20).for_each(|n| budget.remark(n.to_string()));
        let remarks = budget.remarks();
        assert_eq!(remarks.len(), 17);
        assert_eq!(remarks[16], "4 more parts of the reading are left out");
    }
}
