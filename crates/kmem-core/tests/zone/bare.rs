//! A zone whose pages are no memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use kmem_core::page::{SLAB_TABLES, Table, Zone};
use kmem_core::sync::AtomicU32;
use kmem_core::units::{PAGE_SIZE, PageCount};
use kmem_layout::root::ZoneBlock;

/// Address of the first page.
pub(crate) const BASE: usize = 1 << 40;

/// The zone, over tables of its own.
pub(crate) struct Bare {
    pub(crate) zone: Zone,
    tables: *mut u8,
    layout: Layout,
    pub(crate) block: *mut ZoneBlock,
    pub(crate) used: *mut AtomicU32,
}

// SAFETY: the zone may be sent; the pointers stay valid until `Drop`.
unsafe impl Send for Bare {}
// SAFETY: the zone may be shared; the pointers stay valid until `Drop`.
unsafe impl Sync for Bare {}

impl Bare {
    pub(crate) fn new(pages: u32) -> Self {
        let base = NonNull::new(BASE as *mut u8).expect("not null");
        let (own, word) = (Zone::metadata_bytes(pages), Zone::word_bytes(pages));
        let layout = Layout::from_size_align(own + 4 * word, PAGE_SIZE).expect("a layout");
        // SAFETY: the size is not zero.
        let tables = unsafe { alloc_zeroed(layout) };
        // SAFETY: all zero is a valid block.
        let block: *mut ZoneBlock = Box::into_raw(unsafe { Box::new_zeroed().assume_init() });
        let used = Box::into_raw(Box::new(AtomicU32::new(0)));
        let words = [0, 1, 2, 3].map(|table| tables.wrapping_add(own + table * word));
        let none = [Table::empty(tables as usize); SLAB_TABLES];
        // SAFETY: zeroed tables of the right size, which this zone alone uses.
        let zone = unsafe { Zone::new(base, PageCount(pages), tables, words, none, block, used) };
        // SAFETY: no other code has the pointer yet.
        zone.describe(unsafe { &mut *block });
        Self { zone, tables, layout, block, used }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: `new` allocated them, and no thread uses the zone any more.
        unsafe {
            dealloc(self.tables, self.layout);
            drop(Box::from_raw(self.block));
            drop(Box::from_raw(self.used));
        }
    }
}
