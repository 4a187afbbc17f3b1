//! Access to memory, and accesses that the hardware refused.

/// Access to committed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It can be read and written.
    All,
    /// It cannot be used, and keeps its contents. The range becomes a mapping of its own.
    None,
    /// It cannot be used, and loses its contents. Marks in the page tables say so, which take no
    /// mapping. A platform may have none.
    Marked,
    /// Marked memory can be used again, and reads as zero. Other memory stays as it is.
    Unmarked,
}

/// An access of the program that the hardware refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedAccess {
    /// The address.
    pub at: usize,
    /// Address of the instruction.
    pub instruction: usize,
    /// True if it writes, false if it reads; `None`: not known.
    pub is_write: Option<bool>,
}

/// The report of an access that the hardware refused.
pub trait AccessReport {
    /// Says what is known about the access. Returns for the fault to take its course.
    ///
    /// Context: a signal handler between any two instructions of the program. `value` is that of
    /// [`Process::report_accesses`](super::Process::report_accesses).
    fn report(value: usize, access: RefusedAccess);
}
