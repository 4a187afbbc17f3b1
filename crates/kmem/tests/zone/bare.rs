//! A zone whose pages are never touched.

use std::alloc::Layout;
use std::ptr::NonNull;

use kmem::os::region::FixedRegion;
use kmem::page::{Table, Zone};
use kmem::root::ZoneBlock;
use kmem::sync::AtomicU32;
use kmem::units::{PAGE_SIZE, PageCount};

/// Pages of the zone.
pub(crate) const PAGES: u32 = 16 * 512;

fn fatal() -> ! {
    panic!("the platform gave up")
}

fn memory(bytes: usize, align: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes, align).expect("a layout");
    // SAFETY: not of size zero.
    unsafe { std::alloc::alloc_zeroed(layout) }
}

/// The zone, over tables that live for good.
pub(crate) fn zone() -> (&'static Zone, &'static FixedRegion) {
    // Only addresses matter: the pages themselves are not memory.
    let base = NonNull::new((1usize << 40) as *mut u8).expect("not null");
    let tables = memory(Zone::metadata_bytes(PAGES), PAGE_SIZE);
    // SAFETY: all zero is a valid block.
    let block: &'static ZoneBlock = Box::leak(unsafe { Box::new_zeroed().assume_init() });
    let used = Box::leak(Box::new(AtomicU32::new(0)));
    let none = [Table { at: tables as usize, bits: 0 }; 2];
    // SAFETY: zeroed tables of the right size, for this zone alone.
    let zone = unsafe { Zone::new(base, PageCount(PAGES), tables, none, block, used) };
    // SAFETY: no memory at all.
    let platform = unsafe { FixedRegion::new(std::ptr::null_mut(), 0, 1, |_| (), fatal) };
    (Box::leak(Box::new(zone)), Box::leak(Box::new(platform)))
}
