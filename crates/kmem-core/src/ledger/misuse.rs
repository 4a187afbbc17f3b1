//! The end of a program that misused memory, with a record in the black box.

use kmem_layout::blackbox::reason;
use kmem_layout::word::TAG_MASK;

use super::{Ledger, RECORD_WAIT_MS};
use crate::os::Platform;
use crate::report::Fault;
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

    /// Writes a record to the black box, and ends the program for a misuse, which was reported.
    ///
    /// The calling thread may have stopped a CPU, and may hold a sheaf. A record waits for neither:
    /// it reads the words of the heap, and takes only the marks of the tally and of the box. If
    /// another thread has one of these, this one waits for a time. It does not wait for ever, since
    /// it may be in a handler that interrupted a record.
    #[cold]
    pub(super) fn end_for(&'static self, misuse: Misuse) -> ! {
        let (platform, books) = (self.platform(), &self.books);
        if let Some(holder) = misuse.holder {
            books.blackbox.note_misused(books.sites.address(holder));
        }
        if books.are_kept() && books.blackbox.is_there() {
            let call = self.tag_here();
            books.blackbox.note_misuse(platform, &books.sites, call, misuse.is_here);
        }
        let until = platform.now_ms() + RECORD_WAIT_MS;
        while !books.write_record(platform, &self.census(), &self.groups, reason::MISUSE)
            && platform.now_ms() < until
        {
            spin();
        }
        platform.fatal()
    }
}
