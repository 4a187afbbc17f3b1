//! A cache per tenant. A group pays for its memory, and its shrinker evicts its oldest entries.
//!
//! A shrinker runs on the thread that allocates, which may hold the tenant's lock. So the shrinker
//! must not wait for the lock. There are three rules.
//!
//! 1. The value, which may be large, is allocated before the lock is taken. At the limit, the
//!    shrinker finds the lock free and evicts.
//! 2. The shrinker takes the lock with `try_lock`. If it is taken, the shrinker frees nothing.
//! 3. The tables must be allocated under the lock, which may fail. The thread that holds the lock
//!    then evicts entries and tries again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::linux::Linux;
use kmem_core::{Group, GroupStat, fallible};
use kmem_layout::group::Limit;

use crate::KMEM;

/// A key, as it was sent.
pub(crate) type Key = Box<[u8]>;

/// Entries of a tenant. Each has a number; the oldest entry has the lowest.
#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, (u64, Vec<u8>)>,
    /// Keys in the order of their numbers. A key that was set again is also here with its old
    /// number.
    by_age: VecDeque<(u64, Key)>,
    next: u64,
}

impl Entries {
    /// Drops the oldest entries until about `bytes` bytes are freed. Returns the bytes freed.
    fn evict(&mut self, bytes: usize, evicted: &AtomicU64) -> usize {
        let mut freed = 0;
        while freed < bytes
            && let Some((number, key)) = self.by_age.pop_front()
        {
            freed += key.len();
            if self.by_key.get(&key).is_some_and(|(newest, _)| *newest == number)
                && let Some((own_key, (_, value))) = self.by_key.remove_entry(&key)
            {
                freed += own_key.len() + value.capacity();
                evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        freed
    }

    /// Removes old numbers of keys that were set again, when most numbers are old.
    fn tidy(&mut self) {
        if self.by_age.len() > 2 * self.by_key.len() + 64 {
            let newest = &self.by_key;
            self.by_age.retain(|(number, key)| newest.get(key).is_some_and(|(n, _)| n == number));
        }
    }

    /// Makes room in the tables for one more. Both copies of the key are allocated by the caller.
    fn try_reserve(&mut self) -> bool {
        fallible(|| self.by_key.try_reserve(1).is_ok() && self.by_age.try_reserve(1).is_ok())
    }
}

/// A tenant.
pub(crate) struct Tenant {
    group: Group<Linux>,
    entries: Mutex<Entries>,
    evicted: AtomicU64,
}

impl Tenant {
    /// Makes a tenant that may hold `max` bytes. It stays for as long as the program runs.
    ///
    /// # Errors
    /// There is a tenant of that name, or the name is not valid.
    pub(crate) fn create(name: &str, max: u64) -> Result<&'static Self, GroupError> {
        let group = KMEM.group(KMEM.group_create(GroupId::ROOT, name.as_bytes())?)?;
        group.set(Limit::Max, Some(max))?;
        let tenant: &'static Self = Box::leak(Box::new(Self {
            group,
            entries: Mutex::default(),
            evicted: AtomicU64::new(0),
        }));
        let shrink = Box::leak(Box::new(|bytes| tenant.shrink(bytes)));
        tenant.group.add_shrinker(shrink)?;
        Ok(tenant)
    }

    fn shrink(&self, bytes: usize) -> usize {
        // Rule 2.
        match self.entries.try_lock() {
            Ok(mut entries) => entries.evict(bytes, &self.evicted),
            Err(TryLockError::Poisoned(poisoned)) => {
                poisoned.into_inner().evict(bytes, &self.evicted)
            }
            Err(TryLockError::WouldBlock) => 0,
        }
    }

    /// Two copies of a key, and room for a value of `len` bytes. `None`: the tenant has no room for
    /// them, even without its other entries.
    pub(crate) fn prepare(&self, key: &[u8], len: usize) -> Option<([Key; 2], Vec<u8>)> {
        let _scope = self.group.enter();
        // Rule 1.
        fallible(|| {
            let mut value = Vec::new();
            value.try_reserve_exact(len).ok()?;
            let copy = || {
                let mut copy = Vec::new();
                copy.try_reserve_exact(key.len()).ok()?;
                copy.extend_from_slice(key);
                Some(copy.into_boxed_slice())
            };
            Some(([copy()?, copy()?], value))
        })
    }

    /// Stores an entry, which replaces that of the same key. False: the tenant has no room for it.
    pub(crate) fn set(&self, [key, again]: [Key; 2], value: Vec<u8>) -> bool {
        let _scope = self.group.enter();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.tidy();
        // Rule 3.
        while !entries.try_reserve() {
            let tables = entries.by_key.capacity() * 64;
            if entries.evict(tables.max(1 << 16), &self.evicted) == 0 {
                return false;
            }
        }
        let number = entries.next;
        entries.next += 1;
        entries.by_age.push_back((number, again));
        entries.by_key.insert(key, (number, value));
        true
    }

    /// Calls `out` with the value of a key. False: there is none.
    pub(crate) fn get(&self, key: &[u8], out: impl FnOnce(&[u8])) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let found = entries.by_key.get(key);
        found.map(|(_, value)| out(value)).is_some()
    }

    /// Counts of its group.
    pub(crate) fn stat(&self) -> GroupStat {
        self.group.stat()
    }

    /// Entries dropped so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}
