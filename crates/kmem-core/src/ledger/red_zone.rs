//! Red zones: the bytes of an object behind those of its request. They are filled when the object
//! is allocated, and looked at when it is freed or resized.
//!
//! ```text
//! | bytes asked for | red zone: 8 bytes or more                  |   next object
//! 0                 len                      size - 8          size
//! ```
//!
//! The last 8 bytes of an object are set when its slab is made (see [`guard`]) and never change. So
//! the owner of the next object may read them, too: they are the red zone in front of it. The first
//! object of a slab has none in front.

use super::Ledger;
use super::object_checks::{CacheNumber, Damage, Record};
use crate::class::{MAX_OBJECT, SizeClass};
use crate::os::Platform;
use crate::slab::bytes;
use crate::slab::guard::{self, RED_ZONE};

impl<P: Platform> Ledger<P> {
    /// The class that serves a request of `len` bytes, with a red zone where objects have one.
    /// `None`: pages do, or an area.
    #[inline(always)]
    pub fn class_for(&self, len: usize) -> Option<SizeClass> {
        if len == 0 {
            return Some(SizeClass::ZERO);
        }
        let checks = self.checks();
        let need = len.saturating_add(checks.red_zone());
        (need <= MAX_OBJECT && !checks.has_fences()).then(|| SizeClass::of(need))
    }

    /// [`Self::class_for`] at a multiple of `align`, a power of two.
    pub fn class_aligned(&self, len: usize, align: usize) -> Option<SizeClass> {
        if align <= 16 {
            return self.class_for(len);
        }
        let checks = self.checks();
        let class = SizeClass::aligned(len.saturating_add(checks.red_zone()), align);
        class.filter(|_| !checks.has_fences())
    }

    /// Returns whether objects of a class have red zones.
    #[inline]
    pub(super) fn has_red_zones(&self, class: SizeClass) -> bool {
        self.checks().has_red_zones() && class != SizeClass::ZERO
    }

    /// Records the requested length of an object that was just allocated, and fills its red zone.
    ///
    /// # Safety
    /// `object` is an object of that class with room for `len` bytes and the red zone, which the
    /// caller alone uses.
    #[inline]
    pub unsafe fn guard_object(&self, object: usize, class: SizeClass, len: usize) {
        if self.checks().records() > 0 {
            // SAFETY: an object of that class, which the caller alone uses, by the contract.
            unsafe {
                self.record(object, class).set(Record::new(len, CacheNumber::NONE));
                self.draw_red_zone(object, class, len);
            }
        }
    }

    /// Fills the red zone of an object, but for the guard at its end, which is already set.
    ///
    /// # Safety
    /// `object` is an object of that class, which the caller alone uses, and whose user has `len`
    /// bytes.
    unsafe fn draw_red_zone(&self, object: usize, class: SizeClass, len: usize) {
        if self.has_red_zones(class) {
            let rest = (class.size() as usize - RED_ZONE).saturating_sub(len);
            // SAFETY: bytes of the object, behind those of its user.
            unsafe { bytes::fill((object + len) as *mut u8, rest, guard::PATTERN) };
        }
    }

    /// Number of bytes of a live object that its user may use.
    ///
    /// # Safety
    /// A live object of that class begins at `object`.
    pub unsafe fn object_len(&self, object: usize, class: SizeClass) -> usize {
        let size = class.room();
        if !self.has_red_zones(class) {
            return size;
        }
        // Limit the result: a stray write may have damaged the record.
        // SAFETY: an object of that class; red zones need records.
        unsafe { self.record(object, class) }.get().len().min(size - RED_ZONE)
    }

    /// Changes the length of a live object with extension word `word` in place. False: it must
    /// move.
    ///
    /// # Safety
    /// `object` is a live object of that class, which the caller alone uses.
    pub unsafe fn resize_object(
        &'static self,
        object: usize,
        class: SizeClass,
        word: u32,
        len: usize,
    ) -> bool {
        if class == SizeClass::ZERO {
            return len == 0;
        }
        let checks = self.checks();
        let room = class.size() as usize - checks.red_zone();
        // An object is not moved while at least half of it stays in use.
        let fits = |len| SizeClass::of(len + checks.red_zone()) == class;
        if len > room || (len <= room / 2 && !fits(len)) {
            return false;
        }
        let init = self.heap.zones.checks();
        // SAFETY: a live object that the caller alone uses, by the contract.
        unsafe {
            if init.zeroes_on_alloc() && !checks.has_red_zones() {
                // The old length is not known. So what is given up here reads as zero when the
                // object grows again, as in the kernel's krealloc.
                ((object + len) as *mut u8).write_bytes(0, room - len);
            }
            if checks.records() > 0 {
                self.check_red_zones(object, class, word);
                let record = self.record(object, class);
                let (old, cache) = (record.get().len(), record.get().cache());
                // The red zone becomes the user's.
                let zeroes = init.zeroes_on_alloc() || init.zeroes_on_free();
                if zeroes && checks.has_red_zones() && len > old {
                    ((object + old) as *mut u8).write_bytes(0, len - old);
                }
                record.set(Record::new(len, cache));
                self.draw_red_zone(object, class, len);
            }
        }
        true
    }

    /// Ends the program if the red zones of an object are damaged. The object is, or just was, live
    /// with this extension word.
    ///
    /// # Safety
    /// `object` is an object of that class, which the caller alone uses.
    #[inline]
    pub(super) unsafe fn check_red_zones(
        &'static self,
        object: usize,
        class: SizeClass,
        word: u32,
    ) {
        if !self.has_red_zones(class) {
            return;
        }
        let end = object + class.size() as usize;
        // The guard is read apart, as it was written: a load of what two stores wrote must wait.
        // SAFETY: an object of that class, which the caller alone uses. The object in front ends
        // where this one begins.
        let is_intact = unsafe {
            let from = object + self.object_len(object, class);
            let zone = core::slice::from_raw_parts(from as *const u8, end - RED_ZONE - from);
            bytes::are_all(zone, guard::PATTERN)
                && guard::damage(end).is_none()
                && (self.is_first(object, class) || guard::damage(object).is_none())
        };
        if !is_intact {
            // SAFETY: the same contract.
            unsafe { self.red_zone_was_written_to(object, class, word) };
        }
    }

    /// Returns whether an object is the first of its slab.
    fn is_first(&self, object: usize, class: SizeClass) -> bool {
        object as u32 & self.heap.classes.geometry(class).slab_mask == 0
    }

    /// Reports a write to a red zone, and ends the program. Does nothing if there is none, as if
    /// another thread had mended it.
    ///
    /// # Safety
    /// See [`Self::check_red_zones`].
    #[cold]
    #[inline(never)]
    unsafe fn red_zone_was_written_to(&'static self, object: usize, class: SizeClass, word: u32) {
        let size = class.size() as usize;
        // SAFETY: an object of that class, which the caller alone uses. The owner of the next
        // object may read its last bytes concurrently.
        let (len, zone) = unsafe {
            let len = self.object_len(object, class);
            (len, core::slice::from_raw_parts((object + len) as *const u8, size - len))
        };
        let damage = Damage {
            place: "",
            object,
            size,
            len: Some(len),
            offset: 0,
            front: None,
            found: &[],
            word,
        };
        if let Some(bad) = zone.iter().position(|&byte| byte != guard::PATTERN) {
            let (offset, found) = ((len + bad) as isize, &zone[bad..]);
            self.overwritten(Damage { place: "right redzone", offset, found, ..damage })
        }
        if !self.is_first(object, class)
            // SAFETY: the object in front ends where this one begins, which is taken.
            && let Some((zone, bad)) = unsafe { guard::damage(object) }
        {
            let (offset, found) = (bad as isize - RED_ZONE as isize, &zone[bad..]);
            let front = Some(object - size);
            self.overwritten(Damage { place: "left redzone", offset, front, found, ..damage })
        }
    }
}
