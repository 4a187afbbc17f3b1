//! A zone whose pages are never touched.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use kmem_core::page::{Table, Zone};
use kmem_core::sync::AtomicU32;
use kmem_core::units::{PAGE_SIZE, PageCount};
use kmem_layout::root::ZoneBlock;

/// Address of the first page. Only addresses matter: the pages themselves are not memory.
pub(crate) const BASE: usize = 1 << 40;

/// The zone, over tables of its own.
pub(crate) struct Bare {
    pub(crate) zone: Zone,
    tables: *mut u8,
    layout: Layout,
    pub(crate) block: *mut ZoneBlock,
    pub(crate) used: *mut AtomicU32,
}

// SAFETY: the zone may be shared; the pointers are for `Drop` alone.
unsafe impl Send for Bare {}
// SAFETY: as above.
unsafe impl Sync for Bare {}

impl Bare {
    pub(crate) fn new(pages: u32) -> Self {
        let base = NonNull::new(BASE as *mut u8).expect("not null");
        let layout = Layout::from_size_align(Zone::metadata_bytes(pages), PAGE_SIZE);
        let layout = layout.expect("a layout");
        // SAFETY: not of size zero.
        let tables = unsafe { alloc_zeroed(layout) };
        // SAFETY: all zero is a valid block.
        let block: *mut ZoneBlock = Box::into_raw(unsafe { Box::new_zeroed().assume_init() });
        let used = Box::into_raw(Box::new(AtomicU32::new(0)));
        let none = [Table { at: tables as usize, bits: 0 }; 2];
        // SAFETY: zeroed tables of the right size, for this zone alone.
        let zone = unsafe { Zone::new(base, PageCount(pages), tables, none, block, used) };
        // SAFETY: nobody else looks at it yet.
        zone.describe(unsafe { &mut *block });
        Self { zone, tables, layout, block, used }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: made by `new`; nobody has the zone any more.
        unsafe {
            dealloc(self.tables, self.layout);
            drop(Box::from_raw(self.block));
            drop(Box::from_raw(self.used));
        }
    }
}
