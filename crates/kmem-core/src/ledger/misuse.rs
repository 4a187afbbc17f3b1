//! The end of a program that misused memory, with a record in the black box.

use kmem_layout::blackbox::reason;
use kmem_layout::word::TAG_MASK;

use super::{Ledger, RECORD_WAIT_MS};
use crate::os::{Platform, RefusedAccess};
use crate::report::Fault;
use crate::request::Caller;
use crate::sync::spin;
use crate::units::TagId;

/// A misuse that was reported.
#[derive(Clone, Copy)]
pub(super) struct Misuse {
    /// The call site that last allocated the memory, if it is known.
    pub(super) holder: Option<TagId>,
    /// True if the call that found it is the wrong one. False if an earlier one may be.
    pub(super) is_here: bool,
}

impl<P: Platform> Ledger<P> {
    /// Reports a misuse of `call`, writes a record to the black box, and ends the program.
    #[cold]
    pub fn fault(&'static self, call: &str, at: usize, fault: Fault) -> ! {
        self.reporter().print_fault(call, at, fault);
        self.end_for(Misuse { holder: fault.last(), is_here: true });
    }

    /// Writes a record to the black box, and ends the program: the memory at an address was freed
    /// twice, which was reported. An earlier call may have been the wrong one.
    #[cold]
    #[inline(never)]
    pub fn end_for_double_free(&'static self, at: usize) -> ! {
        let holder = match self.heap.find(at) {
            Ok(live) => Some(TagId(live.word() & TAG_MASK)),
            Err(fault) => fault.last(),
        };
        self.end_for_damage(holder)
    }

    /// Writes a record to the black box, and ends the program for damage by an earlier misuse,
    /// which was reported. `holder` is the call site that last allocated the memory, if it is
    /// known.
    #[cold]
    pub fn end_for_damage(&'static self, holder: Option<TagId>) -> ! {
        self.end_for(Misuse { holder, is_here: false })
    }

    /// Reports an access of the program that the hardware refused, and writes a record to the black
    /// box. The signal ends the program, unless its handler does not.
    #[cold]
    pub fn report_access(&'static self, access: RefusedAccess, fault: Fault) {
        let RefusedAccess { at, instruction, is_write } = access;
        let call = match is_write {
            Some(true) => "write",
            Some(false) => "read",
            None => "access",
        };
        self.reporter().print_fault(call, at, fault);
        // A site is a return address, and the instruction lies in front of it.
        let word = self.word_for(Caller::at(instruction + 1));
        let misuse = Misuse { holder: fault.last(), is_here: true };
        self.record_misuse(misuse, || TagId(word & TAG_MASK));
    }

    /// Writes a record to the black box, and ends the program for a misuse, which was reported.
    #[cold]
    pub(super) fn end_for(&'static self, misuse: Misuse) -> ! {
        self.record_misuse(misuse, || self.tag_here());
        self.platform().fatal()
    }

    /// Writes a record of a misuse by the call that `call` returns to the black box.
    ///
    /// The calling thread may have stopped a CPU, and may hold a sheaf. A record waits for neither:
    /// it reads the words of the heap, and takes only the marks of the tally and of the box. If
    /// another thread has one of these, this one waits for a time. It does not wait for ever, since
    /// it may be in a handler that interrupted a record.
    #[cold]
    fn record_misuse(&'static self, misuse: Misuse, call: impl FnOnce() -> TagId) {
        let (platform, books) = (self.platform(), &self.books);
        if let Some(holder) = misuse.holder {
            books.blackbox.note_misused(books.sites.address(holder));
        }
        if books.are_kept() && books.blackbox.is_there() {
            books.blackbox.note_misuse(platform, &books.sites, call(), misuse.is_here);
        }
        let until = platform.now_ms() + RECORD_WAIT_MS;
        while !books.write_record(platform, &self.census(), &self.groups, reason::MISUSE)
            && platform.now_ms() < until
        {
            spin();
        }
    }
}
