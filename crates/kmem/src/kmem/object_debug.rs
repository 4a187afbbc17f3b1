//! What is done with objects of slabs when they are handed out and when they come back, as the
//! configuration asks: red zones, which cache they are of, quarantine. All of it takes the fast paths
//! out of use, as watching calls does ([`Watch::GUARD`]), and needs the books.
//!
//! ```text
//! | bytes asked for | red zone: 8 bytes or more                  |   next object
//! 0                 len                      size - 8          size
//! ```
//!
//! The last 8 bytes of an object are set when its slab is made (see `slab`) and never change, whoever has
//! the object and whether anybody does: so they can be looked at by the owner of the next one, too, as the red
//! zone in front of it. The first object of a slab has none there. What was asked for and the cache are in the
//! object's *record*, a second word beside the extension word, out of reach of a write that runs over.
//!
//! A page allocation has no red zone and is not held back: `debug_pagealloc` and `page_poison` are for those.
//!
//! [`Watch::GUARD`]: crate::alloc_tag::Watch::GUARD

use super::fault::Line;
use super::realloc::Live;
use super::{Cache, Instance, no_memory};
use crate::class::{MAX_OBJECT, SizeClass};
use crate::codetag::Caller;
use crate::conf::Conf;
use crate::os::Platform;
use crate::root::profiling;
use crate::slab::guard::{self, RED_ZONE};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Item, ObjcgId, PAGE_SIZE, TagId};

/// What objects in quarantine are filled with (the kernel's `POISON_FREE`).
const POISON: u8 = 0x6B;
/// Bytes of a damaged place that are shown.
const SHOWN: usize = 8;

/// What is on, as bits of one word.
#[derive(Clone, Copy)]
pub(super) struct ObjectDebug(pub(super) u32);

impl ObjectDebug {
    const RED_ZONES: u32 = 1;
    const CACHES: u32 = 2;
    const QUARANTINE: u32 = 4;

    /// What a configuration asks for.
    pub(super) fn of(conf: &Conf) -> Self {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        Self(
            bit(conf.redzone, Self::RED_ZONES)
                | bit(conf.check_caches, Self::CACHES)
                | bit(conf.quarantine_kb > 0, Self::QUARANTINE),
        )
    }

    /// Whether fast paths must stay closed.
    pub(super) fn any(self) -> bool {
        self.0 != 0
    }

    pub(super) fn has_red_zones(self) -> bool {
        self.0 & Self::RED_ZONES != 0
    }

    pub(super) fn checks_caches(self) -> bool {
        self.0 & Self::CACHES != 0
    }

    pub(super) fn has_quarantine(self) -> bool {
        self.0 & Self::QUARANTINE != 0
    }

    /// Words beside an object that are not the extension word.
    pub(super) fn records(self) -> u32 {
        u32::from(self.has_red_zones() || self.checks_caches())
    }

    /// Least bytes of an object that are not its user's.
    fn red_zone(self) -> usize {
        if self.has_red_zones() { RED_ZONE } else { 0 }
    }
}

/// What is noted of a live object: `cache:16 | len:16`.
#[derive(Clone, Copy)]
struct Record(u32);

const _: () = assert!(MAX_OBJECT <= u16::MAX as usize);

impl Record {
    const fn new(len: usize, cache: u16) -> Self {
        Self((cache as u32) << 16 | len as u32)
    }

    /// Bytes that were asked for.
    const fn len(self) -> usize {
        self.0 as usize & 0xFFFF
    }

    /// The cache's number.
    const fn cache(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

impl<P: Platform> Instance<P> {
    pub(super) fn object_debug(&self) -> ObjectDebug {
        ObjectDebug(self.object_debug.load(Ordering::Relaxed))
    }

    /// What the configuration asks for, if it can be had.
    pub(super) fn start_object_debug(&self, conf: &Conf) {
        let mut debug = ObjectDebug::of(conf);
        if debug.any() && conf.profiling == profiling::NEVER {
            let text = b"kmem: KMEM_CONF: redzone, quarantine_kb and check_caches need the books\n";
            self.platform.print(text);
            debug = ObjectDebug(0);
        }
        self.object_debug.store(debug.0, Ordering::Relaxed);
    }

    /// `alloc` for what a slab could serve, where objects are guarded; and before it is known whether they are.
    #[cold]
    pub(super) fn alloc_guarded(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if !self.ready() {
            return no_memory();
        }
        let need = size + self.object_debug().red_zone();
        if need > MAX_OBJECT {
            return self.alloc_run(size, 1, caller, false, false);
        }
        self.alloc_object(SizeClass::of(need), size, caller)
    }

    /// `alloc_aligned` when the fast path cannot serve it from `class`, the class of so many bytes at a
    /// multiple of `align`.
    #[cold]
    pub(super) fn alloc_aligned_slow(
        &'static self,
        class: SizeClass,
        (size, align): (usize, usize),
        caller: Caller,
    ) -> *mut u8 {
        if !self.ready() {
            return no_memory();
        }
        let debug = self.object_debug();
        if !debug.any() {
            return match caller.objcg() {
                ObjcgId::ROOT => self.alloc_slow(class, caller),
                _ => self.alloc_charged(class, caller),
            };
        }
        match SizeClass::aligned(size + debug.red_zone(), align) {
            Some(class) => self.alloc_object(class, size, caller),
            None => self.alloc_run(size, align.div_ceil(PAGE_SIZE), caller, false, false),
        }
    }

    /// An object with its record and its red zone.
    fn alloc_object(&'static self, class: SizeClass, len: usize, caller: Caller) -> *mut u8 {
        let object = self.alloc_slow(class, caller);
        if !object.is_null() && self.object_debug().records() > 0 {
            self.record(object, class).store(Record::new(len, 0).0, Ordering::Relaxed);
            self.draw_red_zone(object, class, len);
        }
        object
    }

    /// The record of an object, where there are records.
    fn record(&self, object: *mut u8, class: SizeClass) -> &AtomicU32 {
        let geometry = self.geometry(class);
        let offset = object as u32 & geometry.slab_mask;
        let at = object as usize - offset as usize + geometry.record_of(offset) as usize;
        // SAFETY: a word of a slab that was made with records.
        unsafe { &*(at as *const AtomicU32) }
    }

    fn record_of(&self, object: *mut u8, class: SizeClass) -> Record {
        Record(self.record(object, class).load(Ordering::Relaxed))
    }

    /// Fills the red zone of an object in our hands, but for the guard at its end, which is there.
    fn draw_red_zone(&self, object: *mut u8, class: SizeClass, len: usize) {
        if self.object_debug().has_red_zones() {
            let rest = (self.geometry(class).size as usize - RED_ZONE).saturating_sub(len);
            // SAFETY: inside the object.
            unsafe { object.add(len).write_bytes(guard::PATTERN, rest) };
        }
    }

    /// Bytes of a live object that its user may use.
    pub(super) fn object_len(&self, object: *mut u8, class: SizeClass) -> usize {
        let size = self.geometry(class).size as usize;
        if !self.object_debug().has_red_zones() {
            return size;
        }
        // A stray write to the record must not make it worse.
        self.record_of(object, class).len().min(size - RED_ZONE)
    }

    /// Changes the length of a live object, whose word this is, in its place. False: it must move.
    pub(super) fn resize_object(
        &'static self,
        object: *mut u8,
        class: SizeClass,
        word: u32,
        len: usize,
    ) -> bool {
        let debug = self.object_debug();
        let room = self.geometry(class).size as usize - debug.red_zone();
        // Keeps its place while at least half of it stays in use.
        let fits = |len| SizeClass::of(len + debug.red_zone()) == class;
        if len > room || (len <= room / 2 && !fits(len)) {
            return false;
        }
        if debug.records() > 0 {
            self.check_red_zones(object, class, word);
            let cache = self.record_of(object, class).cache();
            self.record(object, class).store(Record::new(len, cache).0, Ordering::Relaxed);
            self.draw_red_zone(object, class, len);
        }
        true
    }

    /// Notes which cache a live object is of, where that is looked at.
    pub(super) fn note_cache(&'static self, object: *mut u8, cache: &Cache) {
        if let Ok(Live::Object { class, .. }) = self.find(object)
            && self.object_debug().records() > 0
        {
            let len = self.record_of(object, class).len();
            let record = Record::new(len, cache.number());
            self.record(object, class).store(record.0, Ordering::Relaxed);
        }
    }

    /// Whether what is given to `call` is of this cache, or of none: if not, that is the end. What is not live
    /// is for others to report; an object of more than slabs serve is of no cache.
    pub(super) fn check_cache(&'static self, call: &str, object: *mut u8, cache: Option<&Cache>) {
        if !self.object_debug().checks_caches() || !self.ready() {
            return;
        }
        let (owner, size, word) = match self.find(object) {
            Ok(Live::Object { class, ext }) => {
                let number = self.record_of(object, class).cache();
                let word = ext.map_or(0, |ext| ext.load(Ordering::Relaxed));
                (number, Some(self.geometry(class).size), word)
            }
            Ok(Live::Pages { set, pfn, .. }) => {
                (0, None, set.zone.ext(pfn).load(Ordering::Relaxed))
            }
            Err(_) => return,
        };
        let wanted = cache.map_or(0, Cache::number);
        let in_slab = |cache: &Cache| cache.size() + self.object_debug().red_zone() <= MAX_OBJECT;
        if owner == wanted || (size.is_none() && !cache.is_some_and(in_slab)) {
            return;
        }
        let mut line = Line::new();
        line.bytes(b"kmem: invalid ");
        line.bytes(call.as_bytes());
        line.bytes(b": ");
        line.hex(object as usize);
        match size {
            Some(size) => {
                line.bytes(b" is a ");
                line.decimal(size as usize);
                line.bytes(b"-byte object of ");
            }
            None => line.bytes(b" is a page allocation of "),
        }
        self.name_cache(&mut line, owner);
        line.bytes(b", not of ");
        self.name_cache(&mut line, wanted);
        line.bytes(b"; allocated by ");
        self.name_site(&mut line, word);
        line.bytes(b"\n");
        self.end(line.text())
    }

    fn name_cache(&self, line: &mut Line, number: u16) {
        match self.caches.name(number) {
            Some(name) => {
                line.bytes(b"the cache ");
                line.printable(name.split(|&byte| byte == 0).next().unwrap_or_default());
            }
            None if number == 0 => line.bytes(b"kmalloc"),
            None => line.bytes(b"another cache"),
        }
    }

    /// Whether the red zones of an object that was live with this word are as they were drawn: if not, that is
    /// the end.
    pub(super) fn check_red_zones(&'static self, object: *mut u8, class: SizeClass, word: u32) {
        if !self.object_debug().has_red_zones() {
            return;
        }
        let geometry = self.geometry(class);
        let (size, len) = (geometry.size as usize, self.object_len(object, class));
        // SAFETY: an object in our hands. Its last bytes may be looked at by the owner of the next one meanwhile.
        let zone = unsafe { core::slice::from_raw_parts(object.add(len), size - len) };
        if let Some(bad) = zone.iter().position(|&byte| byte != guard::PATTERN) {
            let found = &zone[bad..];
            self.overwritten(
                "right redzone",
                object,
                (size, Some(len)),
                (len + bad) as isize,
                found,
                word,
            )
        }
        let first = object as u32 & geometry.slab_mask == 0;
        if !first
            // SAFETY: where this object begins, the one in front of it ends.
            && let Some((front, bad)) = unsafe { guard::damage(object as usize) }
        {
            let (offset, found) = (bad as isize - RED_ZONE as isize, &front[bad..]);
            self.overwritten("left redzone", object, (size, Some(len)), offset, found, word)
        }
    }

    /// Holds a freed object back, if that is asked for. False: it may be used again at once.
    pub(super) fn hold_back(&'static self, object: *mut u8, class: SizeClass) -> bool {
        let size = self.geometry(class).size;
        if !self.object_debug().has_quarantine() || !self.quarantine.holds(size) {
            return false;
        }
        let zone = self.object_debug().red_zone();
        // SAFETY: a freed object in our hands.
        unsafe { object.write_bytes(POISON, size as usize - zone) };
        self.release(self.quarantine.put(Item::at(object as usize), size));
        while self.release(self.quarantine.take_excess()) {}
        true
    }

    /// Lets all objects out of the quarantine.
    pub(super) fn empty_quarantine(&'static self) {
        while self.release(self.quarantine.take()) {}
    }

    /// Looks at an object that leaves the quarantine, and puts it where it may be used again. False: there is none.
    fn release(&'static self, item: Item) -> bool {
        let at = item.address();
        let set = if item.is_none() { None } else { self.zone_of(at) };
        let Some((set, pfn)) = set.and_then(|set| Some((set, set.zone.pfn(at)?))) else {
            return false;
        };
        let class = set.slabs.class_of(pfn).0;
        let geometry = self.geometry(class);
        self.quarantine.left(geometry.size);
        let poisoned = geometry.size as usize - self.object_debug().red_zone();
        // SAFETY: a free object in our hands.
        let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, poisoned) };
        // By the line first: that is a few wide instructions.
        let spoilt = |line: &[u8]| line.iter().fold(0, |all, &byte| all | byte ^ POISON) != 0;
        let ext = at - (at & geometry.slab_mask as usize)
            + geometry.ext_of(at as u32 & geometry.slab_mask) as usize;
        // SAFETY: the extension word of an object; there are books.
        let word = unsafe { &*(ext as *const AtomicU32) }.load(Ordering::Relaxed);
        let size = geometry.size as usize;
        if bytes.chunks(64).any(spoilt)
            && let Some(bad) = bytes.iter().position(|&byte| byte != POISON)
        {
            let at = at as *mut u8;
            self.overwritten("poison", at, (size, None), bad as isize, &bytes[bad..], word)
        }
        if poisoned < size
            // SAFETY: the end of the object.
            && let Some((end, bad)) = unsafe { guard::damage(at + size) }
        {
            let offset = (poisoned + bad) as isize;
            self.overwritten(
                "right redzone",
                at as *mut u8,
                (size, None),
                offset,
                &end[bad..],
                word,
            )
        }
        self.give_object(class, item);
        true
    }

    /// Reports what was written where nobody may write, and ends the program. `len` is what was asked for of a live
    /// object.
    #[cold]
    fn overwritten(
        &'static self,
        what: &str,
        object: *mut u8,
        (size, len): (usize, Option<usize>),
        offset: isize,
        found: &[u8],
        word: u32,
    ) -> ! {
        let mut line = Line::new();
        line.bytes(b"kmem: ");
        line.bytes(what.as_bytes());
        line.bytes(b" overwritten: ");
        line.hex(object as usize);
        line.bytes(if len.is_some() { b" is a " } else { b" is a free " });
        line.decimal(size);
        line.bytes(b"-byte object");
        if let Some(len) = len {
            line.bytes(b" of ");
            line.decimal(len);
            line.bytes(b" bytes, allocated by ");
        } else {
            line.bytes(b", last allocated by ");
        }
        self.name_site(&mut line, word);
        line.bytes(b"; at offset ");
        if offset < 0 {
            line.bytes(b"-");
        }
        line.decimal(offset.unsigned_abs());
        line.bytes(b" found");
        for &byte in &found[..found.len().min(SHOWN)] {
            line.bytes(b" ");
            line.hex_byte(byte);
        }
        if offset < 0 {
            line.bytes(b", which is also behind the object at ");
            line.hex(object as usize - size);
        }
        line.bytes(b"\n");
        self.end(line.text())
    }

    /// The call or the static tag in a word.
    fn name_site(&self, line: &mut Line, word: u32) {
        let tag = TagId(word & crate::root::TAG_MASK);
        match self.sites.address(tag) {
            0 => self.describe_site(line, tag, &[]),
            ret => {
                line.bytes(b"the call that returns to ");
                line.hex(ret);
            }
        }
    }
}
