//! The list: all elements of a table in one order, with a sentinel where each bucket begins (Michael, SPAA 2002; the order
//! is that of Shalev and Shavit, JACM 2006).
//!
//! The lowest bits of `next` say what the link itself is:
//!
//! | bits          | meaning                                                     |
//! |---------------|-------------------------------------------------------------|
//! | 0             | a sentinel that is not in the list yet                      |
//! | [`GONE`]      | removed; the pointer leads on all the same                  |
//! | [`ENTERING`]  | a sentinel on its way into the list: no search begins there |
//! | [`END`]       | the last one                                                |

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Removed.
pub(super) const GONE: usize = 1;
/// On its way in.
pub(super) const ENTERING: usize = 2;
/// Nothing follows.
pub(super) const END: usize = 4;
const FLAGS: usize = 7;

/// What every element and sentinel begins with.
#[repr(C)]
pub(super) struct Link {
    pub(super) next: AtomicUsize,
    /// The hash, its bits reversed, with the lowest bit set; of a sentinel the number of the bucket, reversed.
    pub(super) order: AtomicU64,
}

impl Link {
    pub(super) fn new(next: usize, order: u64) -> Self {
        Self { next: AtomicUsize::new(next), order: AtomicU64::new(order) }
    }

    pub(super) fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    /// The hash of an element, but for its highest bit.
    pub(super) fn hash(&self) -> u64 {
        self.order().reverse_bits()
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.order() & 1 == 0
    }

    /// The link that follows, whatever became of this one; and whether this one is gone.
    pub(super) fn following<'g>(&self) -> (Option<&'g Self>, bool) {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: links are valid for as long as a reader that could reach them reads.
        (unsafe { target(next).as_ref() }, next & GONE != 0)
    }
}

/// What every element begins with.
#[repr(C)]
pub(super) struct Node {
    pub(super) link: Link,
    /// Until it is retired: [`LIVE`], and above [`HINTED`] a bit for each segment where there may be a hint for it. Then
    /// its place among what is retired, a multiple of 16.
    pub(super) state: AtomicUsize,
}

/// Not retired.
pub(super) const LIVE: usize = 2;
/// Where the bits of segments begin.
pub(super) const HINTED: u32 = 4;

impl Node {
    pub(super) fn new(order: u64) -> Self {
        Self { link: Link::new(END, order), state: AtomicUsize::new(LIVE) }
    }

    /// The element that a link begins.
    ///
    /// # Safety
    /// The link is no sentinel.
    #[inline(always)]
    pub(super) unsafe fn of(link: &Link) -> &Self {
        debug_assert!(!link.is_sentinel());
        // SAFETY: the caller's promise.
        unsafe { &*(&raw const *link).cast() }
    }
}

/// Asks for the cache line of what is so many links behind another.
pub(super) fn fetch(from: Option<&Link>, behind: usize) {
    if let Some(link) = (0..behind).try_fold(from, |link, _| Some(link?.following().0)).flatten() {
        prefetch(link);
    }
}

/// Asks for the cache line of a link, where the processor can be asked.
#[inline(always)]
fn prefetch(link: &Link) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse"))]
    // SAFETY: a hint to the processor, which reads nothing.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((&raw const *link).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse")))]
    let _ = link;
}

/// Where a word leads.
pub(super) const fn target(word: usize) -> *const Link {
    (word & !FLAGS) as *const Link
}

/// A link as the word that leads to it.
pub(super) fn word(link: *const Link) -> usize {
    if link.is_null() { END } else { link as usize }
}

/// A place in the list.
pub(super) struct Place<'g> {
    /// The word that leads to `at`, with what it was.
    pub(super) from: &'g AtomicUsize,
    pub(super) seen: usize,
    /// The first link that is not before the place.
    pub(super) at: Option<&'g Link>,
    /// It is the one that was looked for.
    pub(super) found: bool,
}

/// The link that a search began at is gone.
pub(super) struct Restart;

/// Finds the link of that order for which `is_it` says so, else the place behind all links of that order. Unlinks what is gone on
/// the way; `unlinked` is told of elements.
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
            // SAFETY: as in `following`.
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
