//! The length word of a page allocation, at its first page.
//!
//! ```text
//! 0                    no allocation begins at the page
//! 1 ..= 1 << 31        length in pages
//! 1 << 31 | order      one page: a piece of a block of 1 << order pages that was split
//! ```
//!
//! A piece names the order of its block. So a free of the whole block is told apart from a free of
//! neighbours by a wrong order.

/// Bit of a piece. The longest allocation has as many pages, so the bit alone is a length.
const PIECE: u32 = 1 << 31;

/// Highest order of a block of pages that a length word can tell.
pub const MAX_ORDER: u32 = 30;

/// Length word of a piece of a block of `1 << order` pages; `order` is 1 to
/// [`MAX_ORDER`].
pub const fn piece(order: u32) -> u32 {
    PIECE | order
}

/// Length in pages; 0 if no allocation begins at the page.
#[inline]
pub const fn pages(length: u32) -> u32 {
    if length > PIECE { 1 } else { length }
}

/// Order of the block of which the allocation is a piece; 0 if it is no piece.
pub const fn order_of_block(length: u32) -> u32 {
    if length > PIECE { length & !PIECE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_a_number_of_pages_or_one_piece_of_a_block() {
        for length in [0, 1, 2, 512, 1 << 20, 1 << 31] {
            assert_eq!((pages(length), order_of_block(length)), (length, 0));
        }
        for order in 1..=11 {
            assert_eq!((pages(piece(order)), order_of_block(piece(order))), (1, order));
        }
    }
}
