//! Stand-ins for critical sections on targets without rseq: every operation takes the slow path.

use super::{Units, Word};

pub(super) unsafe fn add<W: Word>(_: &Units, _: *mut W, _: W) -> bool {
    false
}

pub(super) unsafe fn swap<W: Word>(_: &Units, _: *mut W, _: W) -> Option<W> {
    None
}

pub(super) unsafe fn add_return<W: Word>(_: &Units, _: *mut W, _: W) -> Option<W> {
    None
}

pub(super) unsafe fn read<W: Word>(_: &Units, _: *mut W) -> Option<W> {
    None
}

pub(super) unsafe fn replace<W: Word>(_: &Units, _: *mut W, _: W, _: W) -> Option<W> {
    None
}
