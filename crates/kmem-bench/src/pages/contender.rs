//! The variants of the table.

use super::pattern::{Pages, Work, blocks, visit};
use crate::affinity::Places;
use crate::kernel::Kernel;
// Imported under another name: `kmem` is also the name of libkmem.so, which would be linked.
use crate::rivals::compiled_in::kmem as instances;
use kmem_buddy::{Checks, Pcp, Zone};
use kmem_core::StaticTag;
use std::ptr::NonNull;

/// An allocator of pages in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// The classic allocator; checks every page under the zone's lock.
    ReferenceDefault,
    /// The classic allocator; checks every page after the release of the lock.
    ReferencePatched,
    /// The classic allocator without checks.
    ReferenceNocheck,
    /// kmem with books and the default checks.
    KmemChecked,
    /// kmem without books, with the default checks.
    KmemCheckedNobooks,
    /// kmem with books, without checks.
    KmemNocheck,
    /// kmem with one of the options of [`OPTIONS`] that check more, by number.
    KmemOption(usize),
}

/// An option of `KMEM_CONF`, and an instance with it.
type Checked = (&'static str, fn() -> Kernel);

/// The options that check pages or change their contents.
const OPTIONS: [Checked; 6] = [
    ("kmem-check_pages:every", instances::pages_every::kernel),
    ("kmem-debug_pagealloc", instances::pages_protected::kernel),
    ("kmem-page_poison", instances::pages_poisoned::kernel),
    ("kmem-init_on_alloc", instances::pages_init_on_alloc::kernel),
    ("kmem-init_on_free", instances::pages_init_on_free::kernel),
    ("kmem-shuffle", instances::pages_shuffled::kernel),
];

impl Variant {
    /// The measured variants, in the order of the table.
    pub(super) const MEASURED: [Self; 6] = [
        Self::ReferenceDefault,
        Self::ReferencePatched,
        Self::ReferenceNocheck,
        Self::KmemChecked,
        Self::KmemCheckedNobooks,
        Self::KmemNocheck,
    ];

    /// The variants that check more. They write to pages, so only pairs of single pages are
    /// measured.
    pub(super) fn options() -> impl Iterator<Item = Self> {
        (0..OPTIONS.len()).map(Self::KmemOption)
    }

    /// The name in the rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReferenceDefault => "reference-default",
            Self::ReferencePatched => "reference-patched",
            Self::ReferenceNocheck => "reference-nocheck",
            Self::KmemChecked => "kmem-checked",
            Self::KmemCheckedNobooks => "kmem-checked-nobooks",
            Self::KmemNocheck => "kmem-nocheck",
            Self::KmemOption(number) => OPTIONS[number].0,
        }
    }

    /// The checks of the classic allocator in this variant.
    pub(super) fn reference(self) -> Option<Checks> {
        match self {
            Self::ReferenceDefault => Some(Checks::Default),
            Self::ReferencePatched => Some(Checks::Patched),
            Self::ReferenceNocheck => Some(Checks::Off),
            _ => None,
        }
    }
}

/// A started variant.
pub(super) struct Contender {
    pub(super) variant: Variant,
    place: Place,
}

enum Place {
    Reference(Zone),
    Kmem(Kernel),
}

impl Contender {
    pub(super) fn new(variant: Variant) -> Self {
        let place = match (variant.reference(), variant) {
            (Some(checks), _) => Place::Reference(zone(checks)),
            (_, Variant::KmemCheckedNobooks) => Place::Kmem(instances::pages_never::kernel()),
            (_, Variant::KmemNocheck) => Place::Kmem(instances::pages_off::kernel()),
            (_, Variant::KmemOption(number)) => Place::Kmem(OPTIONS[number].1()),
            _ => Place::Kmem(instances::pages::kernel()),
        };
        Self { variant, place }
    }

    /// Nanoseconds per allocation and per free.
    pub(super) fn visit(&self, work: Work, places: Places) -> (f64, f64) {
        match &self.place {
            Place::Reference(zone) => visit(work, places, || Lists(Pcp::new(zone))),
            Place::Kmem(kernel) => visit(work, places, || Functions(kernel.opaque())),
        }
    }
}

/// A zone with twice as many pages as two threads take.
pub(super) fn zone(checks: Checks) -> Zone {
    Zone::new((4 * blocks(9) as u32) << 9, checks)
}

/// The lists of a CPU of the classic allocator.
pub(super) struct Lists<'a>(pub(super) Pcp<'a>);

impl Pages for Lists<'_> {
    #[inline(always)]
    fn alloc(&mut self, order: u8) -> u64 {
        let block = self.0.alloc(order).expect("good pages");
        block.expect("the zone is large enough").into()
    }

    #[inline(always)]
    fn free(&mut self, block: u64, order: u8) {
        self.0.free(block as u32, order).expect("it was out");
    }
}

/// The functions of `kmem.h`.
struct Functions(Kernel);

static TAG: StaticTag = StaticTag::new(c"pages.rs", c"pages", 1);

impl Pages for Functions {
    #[inline(always)]
    fn alloc(&mut self, order: u8) -> u64 {
        self.0.pages(order.into(), &TAG).as_ptr() as u64
    }

    #[inline(always)]
    fn free(&mut self, block: u64, order: u8) {
        if let Some(at) = NonNull::new(block as *mut u8) {
            // SAFETY: a block of `alloc`, freed once.
            unsafe { self.0.free_pages(at, order.into()) }
        }
    }
}
