//! Return addresses in allocation wrappers: see [`kmem_layout::wrapper`].
//!
//! ```text
//! objects[n]   a loaded object | first address of the code of its wrappers
//! ranges       start << 32 | length, in order; distances from the object's first address
//! ```
//!
//! The symbols of an object are read when the first call in it allocates. An entry is never taken
//! back. If another object takes the place of its object, it gets an entry of its own.
//!
//! While a thread reads the symbols, other threads do not wait: they do not know the answer, and
//! ask again later. Neither do they know it after a failure, such as a lack of descriptors. After
//! [`FAILURES`] of them, objects that cannot be read have no wrappers.

use core::ptr::NonNull;
use core::slice::from_raw_parts;

use kmem_layout::wrapper::{is_wrapper, is_wrapper_object, matches_any, may_be_wrapper};

use crate::frames::Frames;
use crate::os::functions::{ELF_HEADER, Functions};
use crate::os::{CodeObject, Platform};
use crate::prng::mix;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::PAGE_SIZE;

/// Most objects. Further ones have no wrappers but those that are wrappers as a whole.
const OBJECTS: usize = 1024;
/// Ranges of an object that one scan of its symbols has room for.
const ROOM: usize = 4096;
/// Most failures to read the symbols of an object.
const FAILURES: u32 = 64;
/// States of an entry: not used; taken by a thread; its object is known, and its symbols are being
/// read; complete.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const READING: u32 = 2;
const COMPLETE: u32 = 3;
/// Set in the length of a range: the program's user chose the function.
const CHOSEN: u64 = 1 << 31;

/// The way in which a return address lies in a wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrapper {
    /// It does not.
    No,
    /// By the list of names.
    Known,
    /// By the patterns of the option `skip`.
    Chosen,
}

/// The wrappers of a program. Zeroed, none is known.
///
/// # Invariants
/// `patterns` is 0, or the address of `patterns_len` bytes that are never changed or freed.
pub(super) struct Wrappers {
    objects: [Known; OBJECTS],
    /// Entries behind these were never taken.
    len: AtomicU32,
    failures: AtomicU32,
    patterns: AtomicU64,
    patterns_len: AtomicU64,
}

/// The wrappers of an object.
///
/// # Invariants
/// In state `COMPLETE` the other fields do not change, and `ranges` is the address of `len` words
/// that are never changed or freed.
struct Known {
    state: AtomicU32,
    len: AtomicU32,
    /// First address of the object.
    start: AtomicU64,
    /// Tells it from other objects that begin there.
    identity: AtomicU64,
    ranges: AtomicU64,
}

impl Known {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            len: AtomicU32::new(0),
            start: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
        }
    }

    fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
    }

    /// Takes the entry for the calling thread, if it is free.
    fn take(&self) -> bool {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.is_free() && self.state.compare_exchange(FREE, TAKEN, done, failed).is_ok()
    }

    /// Returns whether the entry is of an object. Not in the states `FREE` and `TAKEN`.
    fn is_of(&self, start: u64, identity: u64) -> bool {
        self.start.load(Ordering::Relaxed) == start
            && self.identity.load(Ordering::Relaxed) == identity
    }

    /// The wrapper at an address of the object. Only in state `COMPLETE`.
    fn at(&self, address: usize) -> Wrapper {
        let start = self.start.load(Ordering::Relaxed) as usize;
        let (ranges, len) =
            (self.ranges.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed) as usize);
        if len == 0 {
            return Wrapper::No;
        }
        // SAFETY: words that never change (invariant).
        let ranges = unsafe { from_raw_parts(ranges as *const u64, len) };
        let distance = address.wrapping_sub(start) as u64;
        let behind = ranges.partition_point(|range| range >> 32 <= distance);
        let Some(range) = behind.checked_sub(1).map(|at| ranges[at]) else { return Wrapper::No };
        let len = range & (CHOSEN - 1);
        match distance - (range >> 32) < len {
            false => Wrapper::No,
            true if range & CHOSEN != 0 => Wrapper::Chosen,
            true => Wrapper::Known,
        }
    }
}

impl Wrappers {
    pub(super) const fn new() -> Self {
        Self {
            objects: [const { Known::new() }; OBJECTS],
            len: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            patterns: AtomicU64::new(0),
            patterns_len: AtomicU64::new(0),
        }
    }

    /// Takes functions for wrappers whose names match these patterns. Called once, at the start.
    pub(super) fn choose(&self, patterns: &'static [u8]) {
        // INVARIANT: they live as long as the program.
        self.patterns.store(patterns.as_ptr() as u64, Ordering::Relaxed);
        self.patterns_len.store(patterns.len() as u64, Ordering::Relaxed);
    }

    fn patterns(&self) -> &[u8] {
        let (at, len) =
            (self.patterns.load(Ordering::Relaxed), self.patterns_len.load(Ordering::Relaxed));
        // SAFETY: bytes that never change (invariant).
        if len == 0 { &[] } else { unsafe { from_raw_parts(at as *const u8, len as usize) } }
    }

    /// Returns whether the call that returns to `ret` is one in a wrapper. Reads the symbols of its
    /// object, if no thread has. `None`: not known now.
    /// `frames` looks at the symbols, too.
    pub(super) fn find(
        &self,
        platform: &impl Platform,
        ret: usize,
        frames: &Frames,
    ) -> Option<Wrapper> {
        self.look_for(platform, ret, Some(frames))
    }

    /// [`Self::find`] without reading symbols.
    pub(super) fn find_known(&self, platform: &impl Platform, ret: usize) -> Option<Wrapper> {
        self.look_for(platform, ret, None)
    }

    /// Not inlined: callers of `malloc` may have little stack.
    #[cold]
    #[inline(never)]
    fn look_for(
        &self,
        platform: &impl Platform,
        ret: usize,
        frames: Option<&Frames>,
    ) -> Option<Wrapper> {
        let call = ret.wrapping_sub(1);
        let found = platform.with_object(call, |object| {
            if is_wrapper_object(object.name()) {
                return Some(Wrapper::Known);
            }
            let (start, identity) = (object.start as u64, identity(object));
            // A place that became free after a failure may lie before that of the object.
            let len = (self.len.load(Ordering::Acquire) as usize).min(OBJECTS);
            for known in &self.objects[..len] {
                let state = known.state.load(Ordering::Acquire);
                if matches!(state, READING | COMPLETE) && known.is_of(start, identity) {
                    return (state == COMPLETE).then(|| known.at(call));
                }
            }
            let Some(frames) = frames else {
                let is_full = || self.objects.iter().all(|known| !known.is_free());
                return (len == OBJECTS && is_full()).then_some(Wrapper::No);
            };
            let Some(place) = self.objects.iter().position(Known::take) else {
                return Some(Wrapper::No);
            };
            self.len.fetch_max(place as u32 + 1, Ordering::AcqRel);
            let known = &self.objects[place];
            known.start.store(start, Ordering::Relaxed);
            known.identity.store(identity, Ordering::Relaxed);
            known.state.store(READING, Ordering::Release);
            self.read(platform, known, object, frames).then(|| known.at(call))
        });
        found.unwrap_or(Some(Wrapper::No))
    }

    /// Reads the symbols of an object into its entry. False: they could not be read this time.
    #[inline(always)]
    fn read(
        &self,
        platform: &impl Platform,
        known: &Known,
        object: &CodeObject<'_>,
        frames: &Frames,
    ) -> bool {
        let read = platform.with_functions(object, |functions| {
            frames.look_at(platform, object, functions);
            self.note(platform, known, object, functions);
        });
        let is_read = read.is_some() || self.failures.fetch_add(1, Ordering::Relaxed) >= FAILURES;
        let next = if is_read { COMPLETE } else { FREE };
        // INVARIANT: nothing is written once the state is `COMPLETE`.
        let (done, failed) = (Ordering::Release, Ordering::Relaxed);
        known.state.compare_exchange(READING, next, done, failed).is_ok() && is_read
    }

    /// In a forked child: gives up what other threads of the parent were reading.
    pub(super) fn forget_threads(&self) {
        // A thread may have taken an entry, and not counted it yet.
        let len = (self.len.load(Ordering::Acquire) as usize + 8).min(OBJECTS);
        for known in &self.objects[..len] {
            let state = known.state.load(Ordering::Relaxed);
            if matches!(state, TAKEN | READING) {
                known.len.store(0, Ordering::Relaxed);
                known.state.store(FREE, Ordering::Release);
            }
        }
    }

    /// Writes the ranges of the wrappers among the functions of an object.
    #[inline(never)]
    fn note(
        &self,
        platform: &impl Platform,
        known: &Known,
        object: &CodeObject<'_>,
        functions: &Functions<'_>,
    ) {
        let patterns = self.patterns();
        let may_be = |name: &[u8]| !patterns.is_empty() || may_be_wrapper(name);
        let ranges = || {
            functions.all(may_be).filter_map(|function| {
                let chosen = match () {
                    () if !patterns.is_empty() && matches_any(patterns, function.name) => CHOSEN,
                    () if is_wrapper(function.name) => 0,
                    () => return None,
                };
                let distance = function.code.start.checked_sub(object.start)?;
                let len = (function.code.len() as u64).min(CHOSEN - 1);
                (distance >> 32 == 0).then_some((distance as u64) << 32 | chosen | len)
            })
        };
        // A scan of the symbols takes long, so there is room for the ranges of most objects. Pages
        // of it that are not written cost nothing. If there are more ranges, a second scan follows.
        // Few objects have more, so the memory of the first one stays.
        let (mut room, mut words, mut count) = (ROOM, &mut [][..], 0);
        for _ in 0..2 {
            (words, count) = (&mut [], 0);
            for range in ranges() {
                if count == 0 {
                    let bytes = (room * size_of::<u64>()).next_multiple_of(PAGE_SIZE);
                    let Some(at) = platform.allocate(bytes, PAGE_SIZE) else { return };
                    let at: NonNull<u64> = at.cast();
                    // SAFETY: fresh memory of that many words, all zero, which this thread alone
                    // uses and nothing frees.
                    words = unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), room) };
                }
                if let Some(word) = words.get_mut(count) {
                    *word = range;
                }
                count += 1;
            }
            if count <= room {
                break;
            }
            room = count;
        }
        let words = &mut words[..count.min(room)];
        if words.is_empty() || words.len() >> 32 != 0 {
            return;
        }
        words.sort_unstable();
        // INVARIANT: words that are never changed or freed from here on.
        known.ranges.store(words.as_ptr() as u64, Ordering::Relaxed);
        known.len.store(words.len() as u32, Ordering::Relaxed);
    }
}

/// A number for the ELF header of an object, its end and its frames. The header says where in the
/// file the parts are.
fn identity(object: &CodeObject<'_>) -> u64 {
    let header = object.head.get(..ELF_HEADER).unwrap_or_default().as_chunks::<8>().0;
    let header = header.iter().map(|word| u64::from_ne_bytes(*word));
    let places = [object.end, object.address, object.header].map(|place| place as u64);
    header.chain(places).fold(0, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Budget, Clock, Console, Cpus, Memory, Process};

    /// A program with an object on every page, none of which can be read.
    struct Plugins;

    // SAFETY: it has no memory.
    unsafe impl Memory for Plugins {
        fn reserve(&self, _: usize, _: usize) -> Option<NonNull<u8>> {
            None
        }
        unsafe fn release(&self, _: NonNull<u8>, _: usize) {}
        unsafe fn commit(&self, _: NonNull<u8>, _: usize) -> bool {
            false
        }
        fn budget(&self) -> Budget {
            Budget::of(0, 1)
        }
    }
    impl Cpus for Plugins {}
    impl Clock for Plugins {}
    impl Console for Plugins {}
    impl Process for Plugins {
        fn with_object<T>(&self, at: usize, work: impl FnOnce(&CodeObject<'_>) -> T) -> Option<T> {
            let start = at & !(PAGE_SIZE - 1);
            Some(work(&CodeObject { start, end: start + PAGE_SIZE, ..CodeObject::BARE }))
        }
    }

    #[test]
    fn a_place_that_is_free_again_hides_no_object_behind_it() {
        let wrappers = Box::new(Wrappers::new());
        let call = |object: usize| object * PAGE_SIZE + 16;
        // Another thread reads the object of the first place.
        assert!(wrappers.objects[0].take());
        wrappers.failures.store(FAILURES, Ordering::Relaxed);
        assert_eq!(wrappers.find(&Plugins, call(2), &Frames::new()), Some(Wrapper::No));
        wrappers.objects[0].state.store(FREE, Ordering::Relaxed);
        assert_eq!(wrappers.find_known(&Plugins, call(2)), Some(Wrapper::No));
        assert!(wrappers.objects[0].is_free());
    }

    #[test]
    fn a_forked_child_reads_an_object_that_the_parent_was_reading() {
        let wrappers = Box::new(Wrappers::new());
        assert!(wrappers.objects[0].take());
        wrappers.forget_threads();
        assert!(wrappers.objects[0].is_free());
    }

    #[test]
    fn symbols_of_more_objects_than_fit_are_not_asked_for_again() {
        let wrappers = Box::new(Wrappers::new());
        let call = |object: usize| object * PAGE_SIZE + 16;
        assert_eq!(wrappers.find_known(&Plugins, call(1)), None);
        for _ in 0..FAILURES {
            assert_eq!(wrappers.find(&Plugins, call(1), &Frames::new()), None);
        }
        for object in 1..=OBJECTS {
            assert_eq!(wrappers.find(&Plugins, call(object), &Frames::new()), Some(Wrapper::No));
            assert_eq!(wrappers.find_known(&Plugins, call(object)), Some(Wrapper::No));
        }
        let further = call(OBJECTS + 1);
        assert_eq!(wrappers.find_known(&Plugins, further), Some(Wrapper::No));
        assert_eq!(wrappers.find(&Plugins, further, &Frames::new()), Some(Wrapper::No));
    }
}
