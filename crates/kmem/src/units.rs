//! The units of the allocator, each a type of its own.

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Page size in bytes.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// log2 of a frame (huge page) in pages.
pub const FRAME_ORDER: u32 = 9;
/// Pages in a frame.
pub const FRAME_PAGES: u32 = 1 << FRAME_ORDER;
/// Bytes in a frame.
pub const FRAME_SIZE: usize = PAGE_SIZE << FRAME_ORDER;
/// log2 of the pages in a chunk.
pub const CHUNK_ORDER: u32 = 4;
/// Bytes in a chunk, the unit in which the size class of an address is known.
pub const CHUNK_SIZE: usize = PAGE_SIZE << CHUNK_ORDER;
/// Largest order of the page interface.
pub const MAX_ORDER: u32 = 11;

/// Number of a page inside its zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pfn(pub u32);

/// A count of pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageCount(pub u32);

impl PageCount {
    /// Pages needed for `bytes`, or `None` when that many cannot be named.
    #[inline]
    pub const fn for_bytes(bytes: usize) -> Option<Self> {
        match bytes.checked_add(PAGE_SIZE - 1) {
            Some(b) if b >> PAGE_SHIFT <= u32::MAX as usize => Some(Self((b >> PAGE_SHIFT) as u32)),
            _ => None,
        }
    }

    /// The same amount in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        (self.0 as usize) << PAGE_SHIFT
    }
}

/// log2 of a number of pages, 0 to [`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Order(pub u8);

impl Order {
    /// Pages in a block of this order.
    #[inline]
    pub const fn pages(self) -> PageCount {
        PageCount(1 << self.0)
    }
}

/// Number of a 2 MiB frame inside its zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame(pub u32);

impl Pfn {
    /// The frame this page lies in.
    #[inline]
    pub const fn frame(self) -> Frame {
        Frame(self.0 >> FRAME_ORDER)
    }

    /// The page `n` before this one, which is not among the first `n`.
    #[inline]
    pub const fn back(self, n: u32) -> Self {
        Self(self.0 - n)
    }

    /// The page `n` further on.
    #[inline]
    pub const fn offset(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}

impl Frame {
    /// The page behind its last one.
    #[inline]
    pub const fn end(self) -> Pfn {
        Pfn((self.0 + 1) << FRAME_ORDER)
    }

    /// First page of the frame.
    #[inline]
    pub const fn first(self) -> Pfn {
        Pfn(self.0 << FRAME_ORDER)
    }
}

/// A tag: an index into the site table. See [`crate::root`] for reserved values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TagId(pub u32);

/// How memory is wanted (the kernel's `gfp_t`).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gfp(pub u32);

impl Gfp {
    /// Nothing special.
    pub const KERNEL: Self = Self(0);
    /// Zeroed.
    pub const ZERO: Self = Self(1);
    /// Optional: when there is none, nothing is reported.
    pub const NOWARN: Self = Self(2);
    /// Not to be charged to the group of the thread.
    pub const UNACCOUNTED: Self = Self(4);
    /// Not to wait for others.
    pub const NOWAIT: Self = Self(8);
    /// To try harder before it is refused: see [`Effort::Retry`].
    pub const RETRY_MAYFAIL: Self = Self(16);
    /// Not to be refused: see [`Effort::Endless`]. Who pays goes above its `max`.
    pub const NOFAIL: Self = Self(32);

    /// Whether all of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both.
    pub const fn and(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Without those of `flags`.
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// How hard to try. Who may not wait tries once.
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
    /// Once, and once more with what CPUs keep.
    Once,
    /// As long as shrinkers and purges find something, a bounded number of times.
    Retry,
    /// For small requests without end; for others as [`Effort::Retry`].
    Endless,
}

/// The group that an allocation is charged to: an index into the group table; 0 is the root, which
/// nothing is charged to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ObjcgId(pub u32);

impl ObjcgId {
    /// The root.
    pub const ROOT: Self = Self(0);
    /// Bits of an id.
    pub const BITS: u32 = 14;
}

/// Number of a CPU slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuId(pub u32);

/// A free thing on its way: its address. Zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Item(pub u64);

impl Item {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// The thing at `address`.
    #[inline(always)]
    pub const fn at(address: usize) -> Self {
        Self(address as u64)
    }

    /// Its address.
    #[inline(always)]
    pub const fn address(self) -> usize {
        self.0 as usize
    }

    /// Whether it is nothing.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}
