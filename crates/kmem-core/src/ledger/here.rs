//! The program's call that led into the allocator, found by a walk over the stack. A free is not
//! told its caller.
//!
//! ```text
//! program --> free --> functions of the allocator --> here: makes a record
//!    ^                                                 |
//!    +-- the first call that is in no wrapper <--------+
//! ```

use kmem_layout::word::TAG_MASK;

use super::Ledger;
use crate::os::Platform;
use crate::request::Caller;
use crate::units::TagId;

/// The question about a call.
#[repr(u32)]
enum Wanted {
    /// The tag of it and of its caller, which becomes a call site.
    Tag,
    /// Its return address; 0 if it is not known.
    Address,
}

impl<P: Platform> Ledger<P> {
    /// The tag of the program's two innermost calls that led here.
    pub(super) fn tag_here(&self) -> TagId {
        TagId(here(self, 0, Wanted::Tag) as u32)
    }

    /// The tag of the program's innermost call that led here. `None`: it is not known.
    pub fn call_tag_here(&self) -> Option<TagId> {
        let ret = self.call_here()?;
        Some(TagId(self.word_for(Caller::at(ret)) & TAG_MASK))
    }

    /// The return address of the program's innermost call that led here. `None`: it is not known,
    /// as in a static program.
    pub(super) fn call_here(&self) -> Option<usize> {
        Some(here(self, 0, Wanted::Address)).filter(|&ret| ret != 0)
    }
}

/// Makes a record of this call and passes its address on to [`here_at`].
#[unsafe(naked)]
extern "C" fn here<P: Platform>(ledger: &Ledger<P>, record: usize, wanted: Wanted) -> usize {
    crate::call_with_record!(here_at::<P>, "rsi", "x1", [], []);
}

/// Walks from a call within the allocator. The allocator's own functions are wrappers, so the first
/// call behind them is the program's.
extern "C" fn here_at<P: Platform>(ledger: &Ledger<P>, record: usize, wanted: Wanted) -> usize {
    // SAFETY: the record that the caller made. Its second word is the return address.
    let here = unsafe { Caller::in_frame((record as *const usize).add(1).read(), record) };
    let (sites, platform) = (&ledger.books.sites, ledger.platform());
    match wanted {
        Wanted::Tag => sites.tag_of_callers(platform, here.site()).0 as usize,
        Wanted::Address => sites.call_behind(platform, here.site()).unwrap_or(0),
    }
}
