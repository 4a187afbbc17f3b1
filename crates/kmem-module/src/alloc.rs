//! Small allocations that can fail: texts, entries of tables, shared values. Without memory they
//! return `ENOMEM` instead of ending the process.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::error::{Error, Result};

fn refused<E>(bytes: usize, of: &'static str) -> impl FnOnce(E) -> Error {
    move |_| Error::nomem(bytes as u64, of)
}

/// Appends an element.
pub(crate) fn push<T>(to: &mut Vec<T>, item: T) -> Result<()> {
    room(to)?;
    to.push(item);
    Ok(())
}

/// Makes room for one more element.
pub(crate) fn room<T>(list: &mut Vec<T>) -> Result<()> {
    list.try_reserve(1).map_err(refused(size_of::<T>(), "a list"))
}

/// Makes room for one more entry.
pub(crate) fn reserve<K: Eq + Hash, V>(map: &mut HashMap<K, V>) -> Result<()> {
    map.try_reserve(1).map_err(refused(size_of::<(K, V)>(), "a table"))
}

/// Inserts an entry, or replaces the entry of the key.
pub(crate) fn insert<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, value: V) -> Result<()> {
    reserve(map)?;
    map.insert(key, value);
    Ok(())
}

/// An empty list with room for `count` elements.
pub(crate) fn list<T>(room: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(room).map_err(refused(room.saturating_mul(size_of::<T>()), "a list"))?;
    Ok(list)
}

/// A copy of a text.
pub(crate) fn text(from: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(from.len()).map_err(refused(from.len(), "a text"))?;
    copy.push_str(from);
    Ok(copy)
}

/// Formats a value. `None`: there is no memory.
pub(crate) fn written(what: impl fmt::Display) -> Option<String> {
    struct Grow(String);
    impl fmt::Write for Grow {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
            self.0.push_str(part);
            Ok(())
        }
    }
    let mut grow = Grow(String::new());
    fmt::Write::write_fmt(&mut grow, format_args!("{what}")).ok()?;
    Some(grow.0)
}

/// Bytes shown as text, with U+FFFD in place of bytes that are not UTF-8.
pub(crate) struct Lossy<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for chunk in self.0.utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        f.write_str("\"")
    }
}

struct Counted<T> {
    count: AtomicUsize,
    value: T,
}

/// A value with several owners: an `Arc` whose allocation can fail, unlike that of the standard
/// library.
///
/// # Invariants
/// Points to a `Counted` from the global allocator. Its count is the number of `Shared`s that point
/// to it.
pub struct Shared<T>(NonNull<Counted<T>>);

// SAFETY: as for `Arc`: owners in several threads refer to one value, and any of them may drop it.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as for `Arc`: owners in several threads refer to one value, and any of them may drop it.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    const LAYOUT: Layout = Layout::new::<Counted<T>>();

    /// Moves a value into shared memory, with one owner.
    ///
    /// # Errors
    /// `ENOMEM`; the value is dropped.
    pub fn new(value: T) -> Result<Self> {
        Self::try_new(value).ok_or_else(|| Error::nomem(Self::LAYOUT.size() as u64, "a request"))
    }

    pub(crate) fn try_new(value: T) -> Option<Self> {
        // SAFETY: the layout is not empty: it contains the count.
        let at = NonNull::new(unsafe { alloc(Self::LAYOUT) })?.cast::<Counted<T>>();
        // SAFETY: new memory of this layout.
        unsafe { at.write(Counted { count: AtomicUsize::new(1), value }) };
        Some(Self(at))
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: by the invariant it lives as long as this owner.
        unsafe { self.0.as_ref() }
    }

    /// Returns whether both own the same value.
    #[must_use]
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.0 == other.0
    }

    /// Address of the value, valid as long as it has an owner.
    #[must_use]
    pub fn as_ptr(this: &Self) -> *const T {
        &raw const this.counted().value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        // The count cannot overflow: there is no memory for that number of owners.
        self.counted().count.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Pairs with the fence below: accesses by other owners happen before the drop.
        if self.counted().count.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: the last owner; the memory came from `alloc` with this layout.
        unsafe {
            self.0.drop_in_place();
            dealloc(self.0.as_ptr().cast(), Self::LAYOUT);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_shared_value_is_dropped_once_by_its_last_owner() {
        let inside = Arc::new(());
        let shared = Shared::new(inside.clone()).unwrap();
        let all: Vec<_> = (0..8).map(|_| shared.clone()).collect();
        assert!(all.iter().all(|other| Shared::ptr_eq(other, &shared)));
        drop(shared);
        assert_eq!(Arc::strong_count(&inside), 2);
        std::thread::scope(|scope| all.into_iter().for_each(|one| drop(scope.spawn(|| drop(one)))));
        assert_eq!(Arc::strong_count(&inside), 1);
    }

    #[test]
    fn what_is_no_text_is_marked() {
        assert_eq!(Lossy(b"a\xffb\n").to_string(), "a\u{fffd}b\n");
        assert_eq!(format!("{:?}", Lossy(b"a\"\xff\n")), "\"a\\\"\u{fffd}\\n\"");
    }
}
