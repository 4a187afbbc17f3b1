//! The units of the allocator, each a type of its own.
//!
//! Page numbers and counts of pages have the algebra of addresses and lengths. `Pfn + PageCount` is
//! a `Pfn`, and `Pfn - Pfn` is a `PageCount`. Two page numbers cannot be added.

use core::ops::{Add, AddAssign, Sub, SubAssign};

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Page size in bytes.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// log2 of a pageblock (huge page) in pages.
pub const PAGEBLOCK_ORDER: u32 = 9;
/// Pages in a pageblock.
pub const PAGEBLOCK_PAGES: u32 = 1 << PAGEBLOCK_ORDER;
/// Bytes in a pageblock.
pub const PAGEBLOCK_SIZE: usize = PAGE_SIZE << PAGEBLOCK_ORDER;
/// log2 of the pages in a chunk.
pub const CHUNK_ORDER: u32 = 4;
/// Bytes in a chunk, the unit in which the size class of an address is known.
pub const CHUNK_SIZE: usize = PAGE_SIZE << CHUNK_ORDER;
/// Largest order of the page interface.
pub const MAX_ORDER: u32 = 11;

/// Number of a page (page frame) inside its zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pfn(pub u32);

impl Pfn {
    /// The first page of a zone.
    pub const ZERO: Self = Self(0);

    /// The pageblock that this page lies in.
    #[inline]
    pub const fn pageblock(self) -> Pageblock {
        Pageblock(self.0 >> PAGEBLOCK_ORDER)
    }

    /// Pages in front of this one in its zone.
    #[inline]
    pub const fn index(self) -> PageCount {
        PageCount(self.0)
    }
}

impl Add<PageCount> for Pfn {
    type Output = Self;

    #[inline]
    fn add(self, pages: PageCount) -> Self {
        Self(self.0 + pages.0)
    }
}

impl AddAssign<PageCount> for Pfn {
    #[inline]
    fn add_assign(&mut self, pages: PageCount) {
        *self = *self + pages;
    }
}

impl Sub<PageCount> for Pfn {
    type Output = Self;

    #[inline]
    fn sub(self, pages: PageCount) -> Self {
        Self(self.0 - pages.0)
    }
}

impl Sub for Pfn {
    type Output = PageCount;

    #[inline]
    fn sub(self, from: Self) -> PageCount {
        PageCount(self.0 - from.0)
    }
}

/// A count of pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageCount(pub u32);

impl PageCount {
    /// No page.
    pub const ZERO: Self = Self(0);
    /// One page.
    pub const ONE: Self = Self(1);
    /// Pages of a row: those whose free bits share a word.
    pub const ROW: Self = Self(64);
    /// Pages of a pageblock.
    pub const PAGEBLOCK: Self = Self(PAGEBLOCK_PAGES);

    /// Pages needed for `bytes`, or `None` when a `u32` cannot count them.
    #[inline]
    pub const fn for_bytes(bytes: usize) -> Option<Self> {
        match bytes.checked_add(PAGE_SIZE - 1) {
            Some(b) if b >> PAGE_SHIFT <= u32::MAX as usize => Some(Self((b >> PAGE_SHIFT) as u32)),
            _ => None,
        }
    }

    /// Bytes of this many pages.
    #[inline]
    pub const fn bytes(self) -> usize {
        (self.0 as usize) << PAGE_SHIFT
    }

    /// Whole pageblocks in this count.
    #[inline]
    pub const fn pageblocks(self) -> u32 {
        self.0 >> PAGEBLOCK_ORDER
    }

    /// Pages of `count` pageblocks.
    #[inline]
    pub const fn of_pageblocks(count: u32) -> Self {
        Self(count << PAGEBLOCK_ORDER)
    }

    /// Pages of `count` rows.
    #[inline]
    pub const fn of_rows(count: u32) -> Self {
        Self(count * Self::ROW.0)
    }

    /// The difference, or zero if `other` is larger.
    #[inline]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for PageCount {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for PageCount {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for PageCount {
    type Output = Self;

    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for PageCount {
    #[inline]
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// log2 of a number of pages, 0 to [`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Order(pub u8);

impl Order {
    /// The order of a pageblock.
    pub const PAGEBLOCK: Self = Self(PAGEBLOCK_ORDER as u8);

    /// Pages in a block of this order.
    #[inline]
    pub const fn pages(self) -> PageCount {
        PageCount(1 << self.0)
    }
}

/// Number of a pageblock (512 pages, naturally aligned, 2 MiB) inside its zone. Also Linux's term.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pageblock(pub u32);

impl Pageblock {
    /// The first page.
    #[inline]
    pub const fn first(self) -> Pfn {
        Pfn(self.0 << PAGEBLOCK_ORDER)
    }

    /// The page behind the last one.
    #[inline]
    pub const fn end(self) -> Pfn {
        Pfn((self.0 + 1) << PAGEBLOCK_ORDER)
    }

    /// The pageblock `count` further on.
    #[inline]
    pub const fn after(self, count: u32) -> Self {
        Self(self.0 + count)
    }

    /// The pageblocks from this one up to, and without, `end`.
    #[inline]
    pub fn up_to(self, end: Self) -> impl DoubleEndedIterator<Item = Self> {
        (self.0..end.0).map(Self)
    }
}

/// A tag: an index into the site table. [`kmem_layout::word`] has the reserved values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TagId(pub u32);

/// Flags of a request for memory (the kernel's `gfp_t`).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gfp(pub u32);

impl Gfp {
    /// No flags.
    pub const KERNEL: Self = Self(0);
    /// The memory is zeroed.
    pub const ZERO: Self = Self(1);
    /// A failure is not reported.
    pub const NOWARN: Self = Self(2);
    /// Not charged to the group of the thread.
    pub const UNACCOUNTED: Self = Self(4);
    /// Must not wait for other threads.
    pub const NOWAIT: Self = Self(8);
    /// Try harder before refusing: [`Effort::Retry`].
    pub const RETRY_MAYFAIL: Self = Self(16);
    /// Must not be refused: [`Effort::Endless`]. The group that pays goes above its `max`.
    pub const NOFAIL: Self = Self(32);
    /// Memory of the node that the request names, or of that of its CPU, or none.
    pub const THISNODE: Self = Self(64);

    /// In a change of size: the caller's group pays from now on, not the group that paid before.
    pub const RECHARGE: Self = Self(128);

    /// Returns whether all of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns whether any of `flags` is set.
    pub const fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// The flags of both.
    pub const fn and(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These flags without those of `flags`.
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// How hard to try. A request that must not wait is tried once.
    pub const fn effort(self) -> Effort {
        if self.has(Self::NOWAIT) {
            Effort::Once
        } else if self.has(Self::NOFAIL) {
            Effort::Endless
        } else if self.has(Self::RETRY_MAYFAIL) {
            Effort::Retry
        } else {
            Effort::Once
        }
    }
}

/// How hard a request is tried before it is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effort {
    /// Once, and once more with the free memory that CPUs keep.
    Once,
    /// A bounded number of times, with shrinkers and purges in between.
    Retry,
    /// Without end for small requests, like [`Effort::Retry`] for others.
    Endless,
}

/// The group that an allocation is charged to: an index into the table of groups. 0 is the root, to
/// which nothing is charged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ObjcgId(pub u32);

impl ObjcgId {
    /// The root.
    pub const ROOT: Self = Self(0);
    /// Bits of an id.
    pub const BITS: u32 = kmem_layout::word::OBJCG_BITS;
}

/// Number of a CPU slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuId(pub u32);

/// Address of a free object, block or run that one layer passes to another. Zero is no item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Item(pub u64);

impl Item {
    /// No item.
    pub const NONE: Self = Self(0);

    /// The item at `address`.
    #[inline(always)]
    pub const fn at(address: usize) -> Self {
        Self(address as u64)
    }

    /// Its address.
    #[inline(always)]
    pub const fn address(self) -> usize {
        self.0 as usize
    }

    /// Returns whether this is [`Self::NONE`].
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}
