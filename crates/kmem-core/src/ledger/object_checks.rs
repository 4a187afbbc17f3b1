//! Configured checks of objects of slabs when they are handed out and when they come back. They
//! are red zones, the cache or interface that objects belong to, and quarantine. All of them need
//! the books. They close the fast paths, as watched calls do ([`Watch::GUARD`]).
//!
//! The length of the request is in the object's *record*, with the number of its cache or its
//! interface. The record is a second word beside the extension word. An overrun damages red zones
//! before it reaches one.
//!
//! A page allocation has no red zone and is not held back. `debug_pagealloc` and `page_poison`
//! check those.
//!
//! [`Watch::GUARD`]: crate::alloc_tag::Watch::GUARD

use core::fmt;

use kmem_layout::cache::{CacheBlock, CacheName, MAX_CACHES, RECORD_CACHE_SHIFT, unpadded};
use kmem_layout::root::{RootBlock, profiling};
use kmem_layout::word::TAG_MASK;

use super::Ledger;
use super::hold_back::HeldBack;
use super::interface::Interface;
use super::misuse::Misuse;
use crate::class::{MAX_OBJECT, SizeClass};
use crate::conf::Conf;
use crate::heap::Live;
use crate::os::{Console, Platform};
use crate::report::{Line, Printable};
use crate::slab::guard::RED_ZONE;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::TagId;

/// First number of an interface, behind those of caches.
const INTERFACES: u16 = 0xFF00;

const _: () = assert!(MAX_CACHES < INTERFACES as usize);

/// Most bytes of a damaged place that a report shows.
const SHOWN: usize = 8;

/// Which checks of objects are on, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectChecks(u32);

impl ObjectChecks {
    const RED_ZONES: u32 = 1;
    const CACHES: u32 = 2;
    const QUARANTINE: u32 = 4;
    const SIZES: u32 = 8;
    const INTERFACES: u32 = 16;
    const GUARD_PAGES: u32 = 32;
    const FENCES: u32 = 64;
    /// Checks for which fast paths must stay closed.
    const CLOSING: u32 =
        Self::RED_ZONES | Self::CACHES | Self::QUARANTINE | Self::INTERFACES | Self::FENCES;

    /// Checks of a configuration. None, with a report, if they are configured without books.
    pub fn of(conf: &Conf, console: &impl Console) -> Self {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let checks = bit(conf.redzone, Self::RED_ZONES)
            | bit(conf.check_caches, Self::CACHES)
            | bit(conf.check_interfaces, Self::INTERFACES)
            | bit(conf.quarantine_kb > 0, Self::QUARANTINE)
            | bit(conf.guard, Self::FENCES);
        let open = bit(conf.check_sizes, Self::SIZES) | bit(conf.guard_pages, Self::GUARD_PAGES);
        if checks != 0 && conf.profiling == profiling::NEVER {
            console.print(
                b"kmem: configuration: redzone, quarantine_kb, check_caches, check_interfaces and \
                  guard need the books\n",
            );
            return Self(open);
        }
        Self(checks | open)
    }

    /// Returns whether fast paths must stay closed.
    pub const fn any(self) -> bool {
        self.0 & Self::CLOSING != 0
    }

    /// Returns whether the size that a free tells is compared.
    pub const fn checks_sizes(self) -> bool {
        self.0 & Self::SIZES != 0
    }

    /// Returns whether an inaccessible page lies behind each large block.
    pub const fn guards_pages(self) -> bool {
        self.0 & Self::GUARD_PAGES != 0
    }

    /// Returns whether each block is an area, and ends in front of an inaccessible page.
    pub const fn has_fences(self) -> bool {
        self.0 & Self::FENCES != 0
    }

    /// Returns whether objects have red zones.
    pub const fn has_red_zones(self) -> bool {
        self.0 & Self::RED_ZONES != 0
    }

    /// Returns whether records have the cache of their object.
    pub const fn checks_caches(self) -> bool {
        self.0 & Self::CACHES != 0
    }

    /// Returns whether records have the interface that allocated their object.
    pub const fn checks_interfaces(self) -> bool {
        self.0 & Self::INTERFACES != 0
    }

    /// Returns whether freed objects are held back.
    pub const fn has_quarantine(self) -> bool {
        self.0 & Self::QUARANTINE != 0
    }

    /// Number of words per object beside the extension word.
    pub const fn records(self) -> u32 {
        (self.has_red_zones() || self.checks_caches() || self.checks_interfaces()) as u32
    }

    /// Least number of bytes of an object that its user must not use.
    pub const fn red_zone(self) -> usize {
        if self.has_red_zones() { RED_ZONE } else { 0 }
    }
}

/// Record of a live object: `cache:16 | len:16`.
#[derive(Clone, Copy)]
pub(super) struct Record(u32);

const _: () = assert!(MAX_OBJECT <= u16::MAX as usize);

impl Record {
    pub(super) const fn new(len: usize, cache: CacheNumber) -> Self {
        Self((cache.0 as u32) << RECORD_CACHE_SHIFT | len as u32)
    }

    /// Bytes of the request.
    pub(super) const fn len(self) -> usize {
        self.0 as usize & 0xFFFF
    }

    /// The cache.
    pub(super) const fn cache(self) -> CacheNumber {
        CacheNumber((self.0 >> RECORD_CACHE_SHIFT) as u16)
    }
}

/// Number of the vector of records, if there are any.
const RECORDS: u32 = 1;

/// The place of a record.
pub(super) struct RecordWord<'a>(&'a AtomicU32);

impl RecordWord<'_> {
    pub(super) fn get(&self) -> Record {
        Record(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, record: Record) {
        self.0.store(record.0, Ordering::Relaxed);
    }
}

/// Number of a cache, for records; or from [`INTERFACES`] on that of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheNumber(u16);

impl CacheNumber {
    /// No cache: the functions of C, and `kmalloc`.
    pub const NONE: Self = Self(0);
    /// Any cache beyond the first [`MAX_CACHES`].
    const OTHER: Self = Self(u16::MAX);

    /// The number of an interface.
    pub(super) const fn of(interface: Interface) -> Self {
        match interface {
            Interface::Malloc => Self::NONE,
            other => Self(INTERFACES + other as u16),
        }
    }

    /// The interface. `None`: it is a cache.
    pub(super) fn interface(self) -> Option<Interface> {
        if self == Self::NONE {
            return Some(Interface::Malloc);
        }
        Interface::of(self.0.checked_sub(INTERFACES)?)
    }
}

/// Addresses of the caches, by number from 1.
struct Caches([AtomicU64; MAX_CACHES]);

impl Caches {
    fn enter(&self, cache: &CacheBlock) -> CacheNumber {
        let at = &raw const *cache as u64;
        let free = |place: &AtomicU64| {
            place.compare_exchange(0, at, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        let place = self.0.iter().position(free);
        place.map_or(CacheNumber::OTHER, |place| CacheNumber(place as u16 + 1))
    }

    fn place(&self, number: CacheNumber) -> Option<&AtomicU64> {
        self.0.get(usize::from(number.0).checked_sub(1)?)
    }
}

/// The checks of objects of an instance. Zeroed memory is a valid value: none is on.
pub struct ObjectGuards {
    checks: AtomicU32,
    pub(super) held: HeldBack,
    caches: Caches,
}

impl ObjectGuards {
    /// No check is on.
    pub const fn new() -> Self {
        Self {
            checks: AtomicU32::new(0),
            held: HeldBack::new(),
            caches: Caches([const { AtomicU64::new(0) }; MAX_CACHES]),
        }
    }

    /// Switches checks on.
    pub fn start(&self, checks: ObjectChecks) {
        self.checks.store(checks.0, Ordering::Relaxed);
    }

    /// The objects that are held back.
    pub fn held(&self) -> &HeldBack {
        &self.held
    }

    /// Which checks are on.
    #[inline]
    pub fn checks(&self) -> ObjectChecks {
        ObjectChecks(self.checks.load(Ordering::Relaxed))
    }

    /// Gives a cache a number, by which readers find it, too.
    pub fn enter_cache(&self, cache: &CacheBlock) -> CacheNumber {
        self.caches.enter(cache)
    }

    /// Says in the root block where the caches are, and whether records have them.
    pub fn describe(&self, root: &mut RootBlock, checks: ObjectChecks) {
        root.slab_caches = self.caches.0.as_ptr() as u64;
        root.slab_cache_capacity = MAX_CACHES as u32;
        root.records_caches = checks.checks_caches() as u32;
    }

    /// Frees a cache's number.
    pub fn leave_cache(&self, number: CacheNumber) {
        if let Some(place) = self.caches.place(number) {
            place.store(0, Ordering::Release);
        }
    }

    /// In a forked child: forgets the objects that are held back.
    ///
    /// # Safety
    /// No other thread exists.
    pub unsafe fn forget(&self) {
        // SAFETY: no other thread exists that could use these objects.
        unsafe { self.held.forget() };
    }

    /// Name of an owner; `common` if it is of no cache.
    fn name(&self, number: CacheNumber, common: &'static str) -> NameOf {
        let cache = self.caches.place(number).map(|place| place.load(Ordering::Acquire));
        match cache.unwrap_or(0) as *const CacheBlock {
            cache if !cache.is_null() => {
                // SAFETY: the name of a cache. If another thread destroys the cache now, this reads
                // other memory of the heap, and the last message has a wrong name.
                NameOf::Cache(unsafe { (&raw const (*cache).name).read() })
            }
            _ if number == CacheNumber::NONE => NameOf::Functions(common),
            _ => match number.interface() {
                Some(interface) => NameOf::Functions(interface.allocates()),
                None => NameOf::Another,
            },
        }
    }
}

impl Default for ObjectGuards {
    fn default() -> Self {
        Self::new()
    }
}

/// An owner of objects in a message.
enum NameOf {
    Cache(CacheName),
    Functions(&'static str),
    Another,
}

impl fmt::Display for NameOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(name) => {
                write!(f, "the cache {}", Printable(unpadded(name)))
            }
            Self::Functions(name) => f.write_str(name),
            Self::Another => f.write_str("another cache"),
        }
    }
}

/// Damage to a place that no program may write to.
pub(super) struct Damage<'a> {
    /// Kind of the place.
    pub(super) place: &'a str,
    /// The object's address and size, and for a live object the bytes of its request.
    pub(super) object: usize,
    pub(super) size: usize,
    pub(super) len: Option<usize>,
    /// Offset of the first damaged byte from the object, and the bytes from there on.
    pub(super) offset: isize,
    /// The object that ends where this one begins, if the damage is between them.
    pub(super) front: Option<usize>,
    pub(super) found: &'a [u8],
    /// The object's extension word.
    pub(super) word: u32,
}

impl<P: Platform> Ledger<P> {
    pub(super) fn checks(&self) -> ObjectChecks {
        self.guards.checks()
    }

    /// The word of an object in a vector behind the objects of its slab.
    ///
    /// # Safety
    /// An object of that class begins at `object`, and slabs have that vector.
    pub(super) unsafe fn word_beside(
        &self,
        object: usize,
        class: SizeClass,
        vector: u32,
    ) -> &AtomicU32 {
        let geometry = self.heap.classes.geometry(class);
        let offset = object as u32 & geometry.slab_mask;
        let at = object - offset as usize + geometry.word_of(offset, vector) as usize;
        // SAFETY: a word of the vector, which has one for each object.
        unsafe { &*(at as *const AtomicU32) }
    }

    /// Record of an object.
    ///
    /// # Safety
    /// An object of that class begins at `object`, and there are records.
    pub(super) unsafe fn record(&self, object: usize, class: SizeClass) -> RecordWord<'_> {
        debug_assert!(self.checks().records() > 0);
        // SAFETY: slabs have a vector of records if there are records.
        RecordWord(unsafe { self.word_beside(object, class, RECORDS) })
    }

    /// Records the cache that a live object belongs to, if that is checked.
    pub fn note_cache(&'static self, object: usize, cache: CacheNumber) {
        if self.checks().checks_caches() {
            self.note_owner(object, cache);
        }
    }

    /// Records the cache or interface that a live object belongs to. There are records.
    pub(super) fn note_owner(&'static self, object: usize, owner: CacheNumber) {
        if let Ok(Live::Object { class, .. }) = self.heap.find(object) {
            // SAFETY: a live object of that class.
            let record = unsafe { self.record(object, class) };
            record.set(Record::new(record.get().len(), owner));
        }
    }

    /// The cache or interface of what was found at `object`, and its size if it is an object of a
    /// slab. There are records.
    pub(super) fn owner(&self, object: usize, live: &Live<'_>) -> (CacheNumber, Option<u32>) {
        match *live {
            Live::Object { class, .. } => {
                // SAFETY: a live object of that class.
                let record = unsafe { self.record(object, class) };
                (record.get().cache(), Some(class.size()))
            }
            Live::Pages { .. } => (CacheNumber::NONE, None),
        }
    }

    /// Ends the program if the object that was passed to `call` is not of this cache, or is of a
    /// cache although `cache` is none. `size` is that of the cache's objects. It does not report an
    /// object that is not live, or one that is too large for slabs, or has a fence.
    pub fn check_cache(&'static self, call: &str, object: usize, cache: CacheNumber, size: usize) {
        if !self.checks().checks_caches() || self.checks().has_fences() {
            return;
        }
        let Ok(live) = self.heap.find(object) else { return };
        let in_slab = size + self.checks().red_zone() <= MAX_OBJECT;
        let (owner, of_slab) = self.owner(object, &live);
        let is_page_of_kmalloc = of_slab.is_none() && (cache == CacheNumber::NONE || !in_slab);
        if owner == cache || is_page_of_kmalloc {
            return;
        }
        self.of_another(call, (object, of_slab, live.word()), [owner, cache], "kmalloc");
    }

    /// Reports an object that was passed to `call`, and ends the program: it is of the first owner,
    /// not of the second one. `of_slab` is its size; none for pages. `common` is the name of what
    /// is of no cache.
    #[cold]
    #[inline(never)]
    pub(super) fn of_another(
        &'static self,
        call: &str,
        (object, of_slab, word): (usize, Option<u32>, u32),
        owners: [CacheNumber; 2],
        common: &'static str,
    ) -> ! {
        let [owner, wanted] = owners.map(|number| self.guards.name(number, common));
        self.reporter().with_holder(word, |holder| {
            let mut line = Line::new();
            line.add(format_args!("kmem: invalid {call}: {object:#x} is a "));
            match of_slab {
                Some(size) => line.add(format_args!("{size}-byte object")),
                None => line.add(format_args!("page allocation")),
            }
            let text = format_args!(" of {owner}, not of {wanted}; allocated by {holder}\n");
            line.add(text);
            self.platform().print(line.text());
        });
        let holder = Some(TagId(word & TAG_MASK));
        self.end_for(Misuse { holder, is_here: true });
    }

    /// Reports damage and ends the program.
    #[cold]
    pub(super) fn overwritten(&'static self, damage: Damage<'_>) -> ! {
        let Damage { place, object, size, len, offset, front, found, word } = damage;
        self.reporter().with_holder(word, |holder| {
            let mut line = Line::new();
            line.add(format_args!("kmem: {place} overwritten: {object:#x} is a "));
            match len {
                Some(len) => {
                    line.add(format_args!("{size}-byte object of {len} bytes, allocated by "))
                }
                None => line.add(format_args!("free {size}-byte object, last allocated by ")),
            }
            line.add(format_args!("{holder}; at offset {offset} found"));
            for &byte in &found[..found.len().min(SHOWN)] {
                line.add(format_args!(" {byte:02x}"));
            }
            if let Some(front) = front {
                line.add(format_args!(", which is also behind the object at {front:#x}"));
            }
            line.add(format_args!("\n"));
            self.platform().print(line.text());
        });
        self.end_for_damage(Some(TagId(word & TAG_MASK)));
    }
}
