//! The functions by which a program allocates and frees: those of C, and the forms of C++'s `new`
//! and `delete`. Memory of one must not be freed by another. A program that does it works as long
//! as one allocator serves both, and no longer.

use super::Ledger;
use super::object_checks::CacheNumber;
use crate::heap::Live;
use crate::os::Platform;
use crate::page::Bounds;

/// Functions that allocate memory, and those that free it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Interface {
    /// `malloc` and the other functions of C; `free`.
    Malloc,
    /// `operator new(size_t)`; `operator delete(void *)`.
    New,
    /// `operator new[](size_t)`; `operator delete[](void *)`.
    NewArray,
    /// `operator new(size_t, align_val_t)`; `operator delete(void *, align_val_t)`.
    AlignedNew,
    /// `operator new[](size_t, align_val_t)`; `operator delete[](void *, align_val_t)`.
    AlignedNewArray,
}

impl Interface {
    const ALL: [Self; 5] =
        [Self::Malloc, Self::New, Self::NewArray, Self::AlignedNew, Self::AlignedNewArray];

    /// The interface with that number.
    pub(super) fn of(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Name of its functions that allocate.
    pub(super) const fn allocates(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::New => "new",
            Self::NewArray => "new[]",
            Self::AlignedNew => "aligned new",
            Self::AlignedNewArray => "aligned new[]",
        }
    }

    /// Name of its function that frees.
    pub const fn frees(self) -> &'static str {
        match self {
            Self::Malloc => "free",
            Self::New => "delete",
            Self::NewArray => "delete[]",
            Self::AlignedNew => "aligned delete",
            Self::AlignedNewArray => "aligned delete[]",
        }
    }
}

impl<P: Platform> Ledger<P> {
    /// Records the interface of a live object that was just allocated, if that is checked.
    pub fn note_interface(&'static self, object: usize, interface: Interface) {
        if !self.checks().checks_interfaces() {
            return;
        }
        match self.heap.find(object) {
            Ok(Live::Pages { words, .. }) => {
                words.set_bounds(Bounds { owner: interface as u8, ..words.bounds() });
            }
            _ => self.note_owner(object, CacheNumber::of(interface)),
        }
    }

    /// Ends the program if an object that was passed to `call`, a function of an interface, is
    /// another one's. An object of a cache has none. `live` was found at `object`.
    #[inline]
    pub fn check_interface(
        &'static self,
        call: &str,
        object: usize,
        live: &Live<'_>,
        interface: Interface,
    ) {
        if !self.checks().checks_interfaces() {
            return;
        }
        let (owner, of_slab) = match *live {
            Live::Pages { run, words, .. } if words.bounds().is_fenced => {
                let bounds = words.bounds();
                let owner =
                    Interface::of(bounds.owner.into()).map_or(CacheNumber::NONE, CacheNumber::of);
                (owner, u32::try_from(bounds.room(run.pages)).ok())
            }
            _ => self.owner(object, live),
        };
        if of_slab.is_some() && owner.interface().is_some_and(|owner| owner != interface) {
            let owners = [owner, CacheNumber::of(interface)];
            self.of_another(call, (object, of_slab, live.word()), owners, "malloc");
        }
    }
}
