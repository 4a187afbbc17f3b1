//! Memory of whole pages, with a page that faults where a mistake would go on.
//!
//! | type | the page that faults lies | for |
//! |---|---|---|
//! | [`Area`] | behind it | buffers that foreign code, or a device, may write beyond |
//! | [`Stack`] | below it | coroutines and threads of the program's own |
//!
//! The kernel's `vmalloc` does that for its areas. An area that is freed stays mapped on its CPU,
//! with its page that faults. The next of that length takes it in some 20 ns, where a pair of
//! `mmap` and `munmap` takes 4 us. [`Stacks`] keeps stacks in the same way.
//!
//! ```
//! use kmem_areas::{Area, Stacks};
//!
//! let mut buffer = Area::new(5000).expect("memory");
//! assert_eq!(buffer.len(), 8192); // whole pages, zeroed
//! buffer[8191] = 1; // the next byte would end the program
//!
//! static STACKS: Stacks = Stacks::new(64 << 10, 100); // of 64 KiB; at most 100 are kept
//! let stack = STACKS.take().expect("memory");
//! assert_eq!(stack.base() - stack.lowest(), 64 << 10);
//! ```
//!
//! The memory is that of an allocator of this crate, whatever the allocator of the program is.
//! [`Area::of`] takes it from one of the program's, where a group can pay for it.
//!
//! With the feature `corosensei`, a [`Stack`] is a stack for the coroutines of that crate.

mod area;
mod stack;
mod stacks;

pub use area::Area;
pub use stack::Stack;
pub use stacks::{Stacks, Taken};

/// Has the areas of programs that name no instance.
static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
