//! The arrays of a CPU and the free things in them.
//!
//! | arrays                | contents                                  |
//! |-----------------------|-------------------------------------------|
//! | 1 .. [`CLASS_COUNT`]  | objects of a size class                   |
//! | .. [`RUN_END`]        | runs of pages of a [`RunClass`]           |
//! | .. [`ARRAY_COUNT`]    | blocks of pages of a [`PageClass`]        |
//!
//! Array 0 is not used: a byte of zero means "no array".

use super::{CLASS_COUNT, SizeClass};
use crate::units::{Order, PageCount};

/// Arrays of a CPU, the unused array 0 included.
pub const ARRAY_COUNT: usize = 129 + PageClass::COUNT;
/// The first array of blocks.
const RUN_END: usize = ARRAY_COUNT - PageClass::COUNT;
/// Steps per doubling of the lengths of runs that a CPU keeps.
const RUN_STEPS: u32 = 8;

/// Number of an array in the table of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ArrayId(pub u8);

/// The contents of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Objects of a size class.
    Objects(SizeClass),
    /// Runs of pages.
    Runs(RunClass),
    /// Blocks of pages.
    Blocks(PageClass),
}

impl ArrayId {
    /// No array.
    pub const NONE: Self = Self(0);

    /// All arrays.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..ARRAY_COUNT as u8).map(Self)
    }

    /// The free things in the array.
    pub const fn contents(self) -> Contents {
        let number = self.0 as usize;
        if number < CLASS_COUNT {
            Contents::Objects(SizeClass(self.0))
        } else if number < RUN_END {
            Contents::Runs(RunClass(self.0 - CLASS_COUNT as u8))
        } else {
            Contents::Blocks(PageClass(self.0 - RUN_END as u8))
        }
    }
}

impl SizeClass {
    /// The array for objects of this class.
    #[inline(always)]
    pub const fn array(self) -> ArrayId {
        ArrayId(self.0)
    }
}

/// Lengths of page runs that a CPU keeps. The shortest is one page longer than an object can be;
/// there are eight steps per doubling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunClass(u8);

impl RunClass {
    /// The class of the shortest runs of at least `pages`. `None`: CPUs keep no runs of that
    /// length.
    pub const fn of(pages: PageCount) -> Option<Self> {
        if pages.0 <= RUN_STEPS {
            return None;
        }
        let doublings = (pages.0 - 1).ilog2() - RUN_STEPS.ilog2();
        let step = (pages.0 - 1) >> doublings;
        let class = doublings * RUN_STEPS + step - RUN_STEPS;
        if class < (RUN_END - CLASS_COUNT) as u32 { Some(Self(class as u8)) } else { None }
    }

    /// The class of runs as long as blocks of an order. `None` for orders that have arrays of
    /// their own, see [`PageClass`], and for those above huge pages.
    pub const fn of_order(order: Order) -> Option<Self> {
        if order.0 < PageClass::HUGE.order().0 { Self::of(order.pages()) } else { None }
    }

    /// All classes, shortest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..(RUN_END - CLASS_COUNT) as u8).map(Self)
    }

    /// Pages in a run of this class.
    pub const fn pages(self) -> PageCount {
        let n = self.0 as u32;
        PageCount((RUN_STEPS + 1 + n % RUN_STEPS) << (n / RUN_STEPS))
    }

    /// The array for runs of this class.
    #[inline(always)]
    pub const fn array(self) -> ArrayId {
        ArrayId(CLASS_COUNT as u8 + self.0)
    }

    /// Most runs of any class that a CPU keeps.
    pub const MOST: usize = 8;

    /// Most runs of this class that a CPU keeps: 2 MiB of them, but at least 2 and at most 8.
    pub const fn cap(self) -> u16 {
        let cap = 512 / self.pages().0;
        if cap > Self::MOST as u32 {
            Self::MOST as u16
        } else if cap < 2 {
            2
        } else {
            cap as u16
        }
    }
}

/// Orders of blocks of pages that have arrays of their own on a CPU: 0 to 3 (the kernel's
/// `PAGE_ALLOC_COSTLY_ORDER`), and that of huge pages. Blocks of orders 4 to 8 lie on the arrays of
/// runs of their length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageClass(u8);

impl PageClass {
    /// Number of classes.
    pub const COUNT: usize = 5;
    /// Single pages.
    pub const SINGLE: Self = Self(0);
    /// Huge pages.
    pub const HUGE: Self = Self(4);

    /// The class of an order; `None` for orders without an array of their own.
    pub const fn of(order: Order) -> Option<Self> {
        match order {
            Order(order @ 0..=3) => Some(Self(order)),
            Order::PAGEBLOCK => Some(Self::HUGE),
            _ => None,
        }
    }

    /// The order of its blocks.
    pub const fn order(self) -> Order {
        if self.is_huge() { Order::PAGEBLOCK } else { Order(self.0) }
    }

    /// Returns whether its blocks are huge pages.
    #[inline(always)]
    pub const fn is_huge(self) -> bool {
        self.0 == Self::HUGE.0
    }

    /// The array for blocks of an order, by a table; [`ArrayId::NONE`] for orders without one.
    #[inline(always)]
    pub const fn array_of(order: Order) -> ArrayId {
        const ARRAYS: [u8; 256] = {
            let mut arrays = [0; 256];
            let mut order = 0;
            while order < 256 {
                if let Some(class) = PageClass::of(Order(order as u8)) {
                    arrays[order] = class.array().0;
                }
                order += 1;
            }
            arrays
        };
        ArrayId(ARRAYS[order.0 as usize])
    }

    /// All classes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Its number, from 0.
    #[inline(always)]
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// The array for blocks of this class.
    #[inline(always)]
    pub const fn array(self) -> ArrayId {
        ArrayId(RUN_END as u8 + self.0)
    }

    /// Pages in a block.
    #[inline(always)]
    pub const fn pages(self) -> PageCount {
        self.order().pages()
    }

    /// Most blocks that a CPU keeps: 0.5 MiB of each order, less one block; 64 MiB of huge pages.
    pub const fn cap(self) -> u16 {
        if self.is_huge() { 32 } else { 127 >> self.0 }
    }

    /// Most blocks moved at once: half of what a CPU keeps.
    pub const fn most_batch(self) -> u32 {
        if self.is_huge() { 16 } else { 64 >> self.0 }
    }

    /// Fewest blocks moved at once.
    pub const fn least_batch(self) -> u32 {
        if self.is_huge() { 1 } else { 8 >> self.0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_run_gets_the_shortest_array_that_holds_it() {
        assert_eq!(RunClass::of(PageCount(8)), None);
        let longest = RunClass::all().last().expect("some").pages();
        for pages in (9..=longest.0).map(PageCount) {
            let class = RunClass::of(pages).unwrap();
            assert!(class.pages() >= pages);
            assert!(class.0 == 0 || RunClass(class.0 - 1).pages() < pages);
        }
        assert_eq!(RunClass::of(longest + PageCount::ONE), None);
    }

    #[test]
    fn every_order_up_to_huge_pages_has_one_array() {
        for order in (0..=9).map(Order) {
            let own = PageClass::of(order).map(PageClass::pages);
            let shared = RunClass::of_order(order).map(RunClass::pages);
            assert_eq!(own.xor(shared), Some(order.pages()), "{order:?}");
        }
        assert_eq!(RunClass::of_order(Order(10)), None);
    }

    #[test]
    fn every_array_holds_one_thing() {
        for array in ArrayId::all() {
            let of = match array.contents() {
                Contents::Objects(class) => class.array(),
                Contents::Runs(class) => class.array(),
                Contents::Blocks(class) => class.array(),
            };
            assert_eq!(of, array);
        }
        assert_eq!(ArrayId::all().count(), ARRAY_COUNT - 1);
    }
}
