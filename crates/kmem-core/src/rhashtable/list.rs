//! The list: all elements of a table in one order, with a sentinel where each chain begins. The
//! list is Michael's (SPAA 2002), the order that of Shalev and Shavit (JACM 2006).
//!
//! Links are used under a read guard, or while no other thread uses the table. So all links that a
//! function of this module can reach stay valid.
//!
//! The lowest bits of `next` are the state of the link itself:
//!
//! | bits          | meaning                                                     |
//! |---------------|-------------------------------------------------------------|
//! | 0             | a sentinel that is not in the list yet                      |
//! | [`GONE`]      | removed; the pointer still leads to the next link           |
//! | [`ENTERING`]  | a sentinel on its way into the list: no search begins there |
//! | [`END`]       | the last link                                               |

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// The link is removed.
pub(super) const GONE: usize = 1;
/// The sentinel is on its way into the list.
pub(super) const ENTERING: usize = 2;
/// No link follows.
pub(super) const END: usize = 4;
const FLAGS: usize = 7;

/// The head of an element or a sentinel.
#[repr(C)]
pub(super) struct Link {
    /// Address of the next link, and the state of this one.
    pub(super) next: AtomicUsize,
    /// Of an element, its hash with the bits reversed and the lowest one set. Of a sentinel, the
    /// number of its chain with the bits reversed.
    pub(super) order: AtomicU64,
}

impl Link {
    pub(super) fn new(next: usize, order: u64) -> Self {
        Self { next: AtomicUsize::new(next), order: AtomicU64::new(order) }
    }

    pub(super) fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    /// The hash of an element; its highest bit is always set.
    pub(super) fn hash(&self) -> u64 {
        self.order().reverse_bits()
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.order() & 1 == 0
    }

    /// The next link, even of a removed one; and whether this one is removed.
    pub(super) fn following<'g>(&self) -> (Option<&'g Self>, bool) {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a link that stays valid while the calling reader reads.
        (unsafe { target(next).as_ref() }, next & GONE != 0)
    }
}

/// The head of an element.
#[repr(C)]
pub(super) struct Node {
    pub(super) link: Link,
    /// Until the element is retired: [`LIVE`], and from bit [`HINTED`] on a bit for each segment
    /// that may have a hint for it. Then the next retired thing, a word without [`LIVE`].
    pub(super) state: AtomicUsize,
}

/// Set until the element is retired.
pub(super) const LIVE: usize = 2;
/// The lowest of the bits for segments.
pub(super) const HINTED: u32 = 4;

impl Node {
    pub(super) fn new(order: u64) -> Self {
        Self { link: Link::new(END, order), state: AtomicUsize::new(LIVE) }
    }

    /// The node that begins with a link.
    ///
    /// # Safety
    /// The link is that of an element, not a sentinel.
    #[inline(always)]
    pub(super) unsafe fn of(link: &Link) -> &Self {
        debug_assert!(!link.is_sentinel());
        // SAFETY: an element's link is the first field of its node.
        unsafe { &*(&raw const *link).cast() }
    }
}

/// Prefetches the link that is `behind` links behind another.
pub(super) fn fetch(from: Option<&Link>, behind: usize) {
    if let Some(link) = (0..behind).try_fold(from, |link, _| Some(link?.following().0)).flatten() {
        prefetch(link);
    }
}

/// Prefetches a link, if the processor has an instruction for that.
#[inline(always)]
fn prefetch(link: &Link) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse"))]
    // SAFETY: a prefetch reads nothing.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((&raw const *link).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse")))]
    let _ = link;
}

/// The link that a word leads to, or null.
pub(super) const fn target(word: usize) -> *const Link {
    (word & !FLAGS) as *const Link
}

/// The word that leads to a link; [`END`] for null.
pub(super) fn word(link: *const Link) -> usize {
    if link.is_null() { END } else { link as usize }
}

/// A place in the list.
pub(super) struct Place<'g> {
    /// The word that leads to `at`.
    pub(super) from: &'g AtomicUsize,
    /// The value that the search saw in it.
    pub(super) seen: usize,
    /// The first link that is not before the place.
    pub(super) at: Option<&'g Link>,
    /// True if `at` is the link that the search was for.
    pub(super) found: bool,
}

/// The link where a search began is removed.
pub(super) struct Restart;

/// Finds the link of an order that `is_it` accepts, else the place behind all links of the order.
/// Unlinks the removed links that it meets, and calls `unlinked` with each element among them.
///
/// # Errors
/// [`Restart`]: `start` is removed.
pub(super) fn find<'g>(
    start: &'g Link,
    order: u64,
    is_it: impl Fn(&'g Link) -> bool,
    mut unlinked: impl FnMut(&'g Link),
) -> Result<Place<'g>, Restart> {
    'again: loop {
        let mut from = &start.next;
        let mut seen = from.load(Ordering::Acquire);
        if seen & GONE != 0 {
            return Err(Restart);
        }
        loop {
            // SAFETY: null, or a link that stays valid while the calling reader reads.
            let Some(at) = (unsafe { target(seen).as_ref::<'g>() }) else {
                return Ok(Place { from, seen, at: None, found: false });
            };
            let next = at.next.load(Ordering::Acquire);
            if next & GONE != 0 {
                let past = word(target(next));
                match from.compare_exchange(seen, past, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        if !at.is_sentinel() {
                            unlinked(at);
                        }
                        seen = past;
                    }
                    Err(_) => continue 'again,
                }
                continue;
            }
            let its = at.order();
            if its > order || its == order && is_it(at) {
                return Ok(Place { from, seen, at: Some(at), found: its == order });
            }
            from = &at.next;
            seen = next;
        }
    }
}
