//! Words of the interpreter, loaded where that cannot fault.
//!
//! A page is loaded from when the kernel could read a word of it. Then it is kept, by its number.
//! When the program unmaps memory, all are forgotten. The structures of a running interpreter stay
//! mapped. So a page that is gone can only be met by a pointer that is none, and it must be equal
//! to one that was.

use crate::os::{Platform, is_address};
use crate::sync::{AtomicUsize, Ordering};

const SLOTS: usize = 1024;
const SHIFT: u32 = 12;
/// Bits of an offset in a word.
const ALIGN: u32 = 3;

/// Pages that can be read. Zeroed, there is none.
///
/// # Invariants
/// A slot is 0, or one more than the number of a page that could be read when it was stored.
pub(super) struct Pages {
    slots: [AtomicUsize; SLOTS],
}

impl Pages {
    pub(super) const fn new() -> Self {
        Self { slots: [const { AtomicUsize::new(0) }; SLOTS] }
    }

    /// The word at an address. `None`: it is not aligned, or cannot be read.
    pub(super) fn word(&self, platform: &impl Platform, at: usize) -> Option<usize> {
        self.known_word(at).or_else(|| self.ask(platform, at))
    }

    /// The word at an address of a page that is known. `None`: it is not, or the address is not
    /// aligned.
    #[inline(always)]
    pub(super) fn known_word(&self, at: usize) -> Option<usize> {
        // The bits of an address that is not aligned come to the top, so it is on no page.
        let page = at.rotate_right(ALIGN) >> (SHIFT - ALIGN);
        if self.slots[page % SLOTS].load(Ordering::Relaxed) != page + 1 {
            return None;
        }
        // SAFETY: an aligned word of a page that could be read, and was not unmapped by the program
        // since (invariant). Other threads may write to it, so it is read as the machine sees it.
        Some(unsafe { (at as *const usize).read_volatile() })
    }

    /// Copies bytes from an address on, up to one that cannot be read. Returns how many.
    pub(super) fn copy(&self, platform: &impl Platform, at: usize, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let from = at.wrapping_add(done);
            let Some(word) = self.word(platform, from & !7) else { break };
            let bytes = &word.to_ne_bytes()[from & 7..];
            let part = bytes.len().min(to.len() - done);
            to[done..done + part].copy_from_slice(&bytes[..part]);
            done += part;
        }
        done
    }

    #[cold]
    #[inline(never)]
    fn ask(&self, platform: &impl Platform, at: usize) -> Option<usize> {
        if !at.is_multiple_of(size_of::<usize>()) || !is_address(at) {
            return None;
        }
        let word = platform.peek_word(at)?;
        let page = at >> SHIFT;
        // INVARIANT: the kernel has read a word of it.
        self.slots[page % SLOTS].store(page + 1, Ordering::Relaxed);
        Some(word)
    }

    /// Forgets all pages.
    pub(super) fn forget(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
    }
}
