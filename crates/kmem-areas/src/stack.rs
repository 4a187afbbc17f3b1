//! Stacks: pages, and a page that faults below them.

use std::fmt;
use std::mem::ManuallyDrop;

use kmem_core::Kmem;
use kmem_core::units::PAGE_SIZE;

use crate::{Area, KMEM};

/// Memory for a stack that grows down. The byte below it faults.
pub struct Stack {
    /// The lowest page is inaccessible.
    area: ManuallyDrop<Area>,
}

/// Lets a page of an area be used, or not. False: the system refused.
fn set_access(area: &Area, access: libc::c_int) -> bool {
    // SAFETY: the lowest page of a live area that the caller owns. No reference into it is alive.
    unsafe { libc::mprotect(area.as_ptr().cast_mut().cast(), PAGE_SIZE, access) == 0 }
}

impl Stack {
    /// Allocates pages for `bytes` bytes, at least one. `None`: there is no memory, or the process
    /// has too many mappings.
    pub fn new(bytes: usize) -> Option<Self> {
        Self::of(&KMEM, bytes)
    }

    /// Allocates from an instance, as [`Area::of`] does.
    pub fn of(kmem: &'static Kmem, bytes: usize) -> Option<Self> {
        let area = Area::of(kmem, bytes.max(1).checked_add(PAGE_SIZE)?)?;
        set_access(&area, libc::PROT_NONE).then_some(Self { area: ManuallyDrop::new(area) })
    }

    /// Returns the address behind the highest byte, where the stack begins. It is a multiple of a
    /// page.
    pub fn base(&self) -> usize {
        self.area.as_ptr() as usize + self.area.len()
    }

    /// Returns the address of the lowest byte that can be used.
    pub fn lowest(&self) -> usize {
        self.area.as_ptr() as usize + PAGE_SIZE
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // A page that stays inaccessible must not go to the next user. So the area is lost if the
        // system refuses.
        if set_access(&self.area, libc::PROT_READ | libc::PROT_WRITE) {
            // SAFETY: dropped here and used no longer.
            unsafe { ManuallyDrop::drop(&mut self.area) };
        }
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({:#x}..{:#x})", self.lowest(), self.base())
    }
}

// SAFETY: the page below faults, and there is at least one page of 4096 bytes above it.
#[cfg(feature = "corosensei")]
unsafe impl corosensei::stack::Stack for Stack {
    fn base(&self) -> corosensei::stack::StackPointer {
        address(Self::base(self))
    }

    fn limit(&self) -> corosensei::stack::StackPointer {
        // With the page that faults.
        address(self.area.as_ptr() as usize)
    }
}

#[cfg(feature = "corosensei")]
fn address(of: usize) -> corosensei::stack::StackPointer {
    corosensei::stack::StackPointer::new(of).expect("no area lies at address 0")
}
