//! Changes of the page tables: single pages of the first 4 GiB, at both of their addresses.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::boot::HIGH;

const PRESENT_WRITABLE: u64 = 3;
const PRESENT: u64 = 1;
/// Set in an entry that maps 2 MiB.
const HUGE: u64 = 0x80;

type Table = [u64; 512];

/// Tables of pages for ranges of 2 MiB, and the number of those in use.
#[repr(C, align(4096))]
struct Spare([Table; 64], usize);
struct Tables(UnsafeCell<Spare>);
// SAFETY: only the CPU that holds `BUSY` uses it.
unsafe impl Sync for Tables {}
static TABLES: Tables = Tables(UnsafeCell::new(Spare([[0; 512]; 64], 0)));
static BUSY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    static mut pd: [u64; 2048];
}

/// Makes whole pages inaccessible, or accessible again. False: another CPU or the interrupted code
/// does the same at the moment, or there is no table left. Then nothing is changed.
///
/// # Safety
/// The caller alone uses the pages.
pub unsafe fn protect(at: *mut u8, bytes: usize, accessible: bool) -> bool {
    if BUSY.swap(true, Ordering::Acquire) {
        return false;
    }
    // SAFETY: the lock is held; the caller alone uses the pages.
    let done = unsafe { change(at as usize & (HIGH - 1) & 0xffff_ffff, bytes, accessible) };
    BUSY.store(false, Ordering::Release);
    done
}

/// # Safety
/// The caller holds the lock, and alone uses the pages.
unsafe fn change(at: usize, bytes: usize, accessible: bool) -> bool {
    let large = &raw mut pd;
    // SAFETY: only the owner of the lock changes these; CPUs read them at any time.
    let (large, spare) = unsafe { (&mut *large, &mut *TABLES.0.get()) };
    let pages = (at..at + bytes).step_by(4096);
    // Splitting 2 MiB changes nothing for users. All of it comes first.
    for page in pages.clone().filter(|_| !accessible) {
        let entry = &mut large[page >> 21];
        if *entry & HUGE != 0 {
            let Some(table) = spare.0.get_mut(spare.1) else { return false };
            spare.1 += 1;
            let first = (page >> 21 << 21) as u64;
            for (number, entry) in (0..).zip(&mut *table) {
                *entry = (first + number * 4096) | PRESENT_WRITABLE;
            }
            *entry = table.as_ptr() as u64 | PRESENT_WRITABLE;
        }
    }
    for page in pages {
        let entry = large[page >> 21];
        if entry & HUGE != 0 {
            continue; // accessible, and to stay so
        }
        let table = (entry & !0xfff) as *mut Table;
        // SAFETY: a table of pages, as its entry says. Other CPUs may find a guard accessible for
        // a while, and never find an accessible page inaccessible: those are not cached.
        unsafe {
            let bits = if accessible { PRESENT_WRITABLE } else { PRESENT_WRITABLE & !PRESENT };
            (*table)[page >> 12 & 511] = page as u64 | bits;
            asm!("invlpg [{}]", in(reg) page, options(nostack));
            asm!("invlpg [{}]", in(reg) page | HIGH, options(nostack));
        }
    }
    true
}
