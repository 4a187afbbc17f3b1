//! Reports for people: misuse, lack of memory, bad pages. They are made without allocating.
//!
//! Context: any. A report takes much stack, so each is made by a function of its own.

mod bad_page;
mod due;
mod fault;
mod line;
mod name;
mod oom;
mod refusal;

use core::ffi::c_void;
use core::fmt;

use crate::alloc_tag::Books;
use crate::memcg::Groups;
use crate::os::Platform;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

use due::Due;
pub use fault::{Fault, print_freed_twice, print_page_freed_twice};
pub(crate) use line::print;
pub use line::{Line, Printable, Size, Word};
pub use name::{CallName, FunctionName, GroupPath, HolderName, SiteName};
pub use oom::room;
use refusal::Handler;
pub use refusal::{OnRefusal, Refusal, RefusalReason};

/// State of the reports of an instance. Zeroed memory is a valid value: no report was made, and
/// there is no room for the text of mappings.
pub struct Reports {
    /// Time of the last report on lack of memory, in milliseconds; 0: there was none.
    last: AtomicU64,
    /// Room for the text of the mappings: its address and its bytes.
    maps: AtomicUsize,
    maps_bytes: AtomicUsize,
    /// The report on lack of memory that another thread has to make.
    due: Due,
    /// The function of the program that is told of refusals.
    handler: Handler,
}

impl Reports {
    /// No report was made.
    pub const fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
            maps: AtomicUsize::new(0),
            maps_bytes: AtomicUsize::new(0),
            due: Due::new(),
            handler: Handler::new(),
        }
    }

    /// In a forked child: forgets the report that was due in the parent, and calls on its threads.
    pub fn forget(&self) {
        self.due.forget();
        self.handler.forget();
    }

    /// Replaces the function that is told of refusals; `None`: they are reported. Returns when no
    /// thread runs the old one, and calls `wait` until then.
    ///
    /// # Safety
    /// Any thread may call a new function with its data until it is replaced. The caller is in no
    /// callback of the allocator.
    pub unsafe fn tell(&self, function: Option<(OnRefusal, *mut c_void)>, wait: impl Fn()) {
        // SAFETY: the same contract.
        unsafe { self.handler.replace(function, wait) }
    }

    /// Gives the reports room for the text of the mappings.
    ///
    /// # Safety
    /// `maps` is zeroed memory of `bytes`, used by this value alone and never freed.
    pub unsafe fn start(&self, maps: *mut u8, bytes: usize) {
        self.maps_bytes.store(bytes, Ordering::Relaxed);
        self.maps.store(maps as usize, Ordering::Release);
    }
}

impl Default for Reports {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes reports of an instance.
#[derive(Clone, Copy)]
pub struct Reporter<'a, P> {
    /// The platform, which prints.
    pub platform: &'a P,
    /// The books.
    pub books: &'a Books,
    /// The groups.
    pub groups: &'a Groups,
    /// State of the reports.
    pub reports: &'a Reports,
}

impl<P: Platform> Reporter<'_, P> {
    /// Prints a line and ends the program.
    pub fn end(&self, text: fmt::Arguments<'_>) -> ! {
        end(self.platform, text)
    }
}

/// Prints a line and ends the program.
fn end(platform: &impl Platform, text: fmt::Arguments<'_>) -> ! {
    print!(platform, "{text}");
    platform.fatal()
}
