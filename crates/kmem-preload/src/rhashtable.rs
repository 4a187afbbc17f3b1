//! Hash tables, as `kmem/rhashtable.h` declares them. An element is a [`Key`], which refers to the
//! program's object, and an [`Object`], which owns it.

use core::ffi::{c_int, c_uint, c_void};
use core::hash::{BuildHasher, Hash, Hasher};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use kmem_core::os::Clock;
use kmem_core::os::linux::Linux;
use kmem_core::request::Caller;
use kmem_core::rhashtable::{Parameters, Position, Reading, Refused, Seeded};

use crate::KMEM;
use crate::call_site::{Tag, twins, ungrouped};

type Code = unsafe extern "C" fn(*const c_void, u32, u32) -> u32;
type Release = unsafe extern "C" fn(*mut c_void);

/// `struct rhashtable_params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    nelem_hint: u16,
    key_len: u16,
    key_offset: u16,
    head_offset: u16,
    max_size: c_uint,
    min_size: u16,
    automatic_shrinking: u8,
    hashfn: Option<Code>,
    obj_hashfn: Option<Code>,
    obj_cmpfn: Option<unsafe extern "C" fn(*const Comparison, *const c_void) -> c_int>,
    obj_freefn: Option<Release>,
}

/// `struct rhashtable_compare_arg`.
#[repr(C)]
struct Comparison {
    ht: *const Handle,
    key: *const c_void,
}

/// `struct rhashtable`.
#[repr(C)]
struct Handle {
    table: AtomicPtr<Table>,
}

/// `struct rhashtable_iter`.
#[repr(C)]
struct Walk {
    ht: *const Handle,
    position: Position,
    last: *mut c_void,
    /// Null, or the key of the last object, which is valid until the walk stops.
    key: *const Key,
    side: c_int,
}

/// `struct rhlist_head`.
#[repr(C)]
struct ListHead {
    head: *mut c_void,
    /// The key in the element of the object. Null: it was never in a table.
    key: AtomicPtr<Key>,
}

type Elements = kmem_core::Table<Key, Object, Linux>;

/// A table, as a [`Handle`] points to it.
struct Table {
    elements: Elements,
    params: Params,
    handle: *const Handle,
    seed: u32,
    /// Has no group: the group of the calling thread pays.
    owner: Caller,
}

/// The kind of data at [`Key::at`].
#[derive(Clone, Copy)]
enum Of {
    /// A key alone.
    Key,
    /// An object; objects with an equal key are equal to it.
    Object,
    /// An object; only the object at this address is equal to it.
    Only(*const c_void),
}

/// The key of an object in a table, or a key to look up.
#[derive(Clone, Copy)]
struct Key {
    table: *const Table,
    at: *const c_void,
    of: Of,
}

// SAFETY: refers to an object of the program, which shares it between threads by using the table.
unsafe impl Send for Key {}
// SAFETY: refers to an object of the program, which shares it between threads by using the table.
unsafe impl Sync for Key {}

impl Key {
    fn table(&self) -> &Table {
        // SAFETY: keys are used while their table lives.
        unsafe { &*self.table }
    }

    /// The address of the key itself.
    fn bytes(&self) -> *const c_void {
        match self.of {
            Of::Key => self.at,
            _ => self.at.wrapping_byte_add(self.table().params.key_offset.into()),
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Table { params, seed, .. } = self.table();
        let len = u32::from(params.key_len);
        // SAFETY: the program's functions get an object or a key, as declared; a key has `key_len`
        // bytes.
        unsafe {
            match (self.of, params.obj_hashfn, params.hashfn) {
                (Of::Object | Of::Only(_), Some(code), _) => {
                    state.write_u32(code(self.at, len, *seed));
                }
                (_, _, Some(code)) => state.write_u32(code(self.bytes(), len, *seed)),
                _ => state.write(slice::from_raw_parts(self.bytes().cast(), len as usize)),
            }
        }
    }
}

impl PartialEq for Key {
    /// Returns whether this key, of an object in the table, is equal to a key to look up.
    fn eq(&self, sought: &Self) -> bool {
        if let Of::Only(object) = sought.of {
            return self.at == object;
        }
        let Table { params, handle, .. } = self.table();
        // SAFETY: the program's function gets a key and an object, as declared; both keys have
        // `key_len` bytes.
        unsafe {
            if let Some(compare) = params.obj_cmpfn {
                let argument = Comparison { ht: *handle, key: sought.bytes() };
                return compare(&argument, self.at) == 0;
            }
            libc::memcmp(self.bytes(), sought.bytes(), params.key_len.into()) == 0
        }
    }
}

impl Eq for Key {}

/// Owner of an object in the table, or of a removed one. Dropping it calls `release`.
struct Object {
    /// Null after [`Object::take`].
    at: AtomicPtr<c_void>,
    release: Option<Release>,
}

impl Object {
    /// Returns the object, which `release` does not get then.
    fn take(&self) -> *mut c_void {
        self.at.swap(null_mut(), Ordering::Relaxed)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let at = *self.at.get_mut();
        if let Some(release) = self.release
            && !at.is_null()
        {
            // SAFETY: the program's function, for an object that no reader has any more.
            unsafe { release(at) }
        }
    }
}

impl Table {
    /// The object that contains this `rhash_head`.
    fn object(&self, head: *mut c_void) -> *mut c_void {
        head.wrapping_byte_sub(self.params.head_offset.into())
    }

    /// The head of an object; null for none.
    fn head(&self, object: Option<&Object>) -> *mut c_void {
        object.map_or(null_mut(), |object| {
            object.at.load(Ordering::Relaxed).wrapping_byte_add(self.params.head_offset.into())
        })
    }

    fn key(&self, at: *const c_void, of: Of) -> Key {
        Key { table: self, at, of }
    }

    fn value(&self, object: *mut c_void) -> Object {
        Object { at: AtomicPtr::new(object), release: self.params.obj_freefn }
    }

    /// Turns a result into that of a C function: 0, or a negative error number. A refused object
    /// stays the program's.
    fn refused(result: Result<(), Refused<Key, Object>>) -> c_int {
        let (error, value) = match result {
            Ok(()) => return 0,
            Err(Refused::Exists(_, value)) => (libc::EEXIST, value),
            Err(Refused::Missing(_, value)) => (libc::ENOENT, value),
            Err(Refused::NoMemory(_, value)) => (libc::ENOMEM, value),
        };
        value.take();
        -error
    }
}

/// The table of a handle. `None`: the handle is null, or has no table.
///
/// # Safety
/// `handle` is null or valid; its table is not destroyed during the borrow.
unsafe fn table<'a>(handle: *const Handle) -> Option<&'a Table> {
    // SAFETY: the same contract.
    unsafe { handle.as_ref()?.table.load(Ordering::Acquire).as_ref() }
}

/// Makes a table.
///
/// # Errors
/// `EINVAL`: the parameters define no key or no comparison; `ENOMEM`: there is no memory.
fn make(handle: *const Handle, params: &Params, owner: Caller) -> Result<NonNull<Table>, c_int> {
    let no_key = params.key_len == 0 && params.obj_hashfn.is_none();
    if no_key || params.obj_hashfn.is_some() && params.obj_cmpfn.is_none() {
        return Err(libc::EINVAL);
    }
    let default = Parameters::default();
    let max = 1 << params.max_size.checked_ilog2().unwrap_or(default.max_buckets.ilog2());
    let min = match params.min_size {
        0 => default.min_buckets,
        size => usize::from(size).next_power_of_two(),
    };
    let shrinks = params.automatic_shrinking != 0;
    let parameters = Parameters { min_buckets: min.min(max), max_buckets: max, shrinks };
    let at = NonNull::new(KMEM.alloc(size_of::<Table>(), owner.here())).ok_or(libc::ENOMEM)?;
    let Some(elements) = KMEM.rhashtable(parameters, owner.here()) else {
        // SAFETY: allocated above, and not used yet.
        unsafe { KMEM.free(at.as_ptr()) };
        return Err(libc::ENOMEM);
    };
    let seed = KMEM.platform().ticks() as u32;
    let at = at.cast::<MaybeUninit<Table>>();
    let table = Table { elements, params: *params, handle, seed, owner };
    // SAFETY: fresh memory of that size.
    unsafe { at.as_ptr().write(MaybeUninit::new(table)) };
    Ok(at.cast())
}

twins! {
    /// # Safety
    /// `tag` is as for [`ungrouped`]. `handle` and `params` are null or valid; no other thread uses
    /// the handle.
    fn rhashtable_init(handle: *mut Handle, params: *const Params, tag: Tag) -> c_int {
        // SAFETY: the same contract.
        let (handle, params, owner) = unsafe { (handle.as_mut(), params.as_ref(), ungrouped(tag)) };
        let (Some(handle), Some(params)) = (handle, params) else { return -libc::EINVAL };
        let made = make(handle, params, owner);
        *handle.table.get_mut() = made.map_or(null_mut(), NonNull::as_ptr);
        made.err().map_or(0, |error| -error)
    }
}

/// # Safety
/// `handle` is as for [`table`]: this holds for all functions here. `key` has `key_len` bytes.
#[unsafe(export_name = "kmem_rhashtable_lookup")]
unsafe extern "C" fn lookup(handle: *const Handle, key: *const c_void) -> *mut c_void {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(handle) }) else { return null_mut() };
    let reading = table.elements.read();
    let found = reading.get(&table.key(key, Of::Key));
    found.map_or(null_mut(), |object| object.at.load(Ordering::Relaxed))
}

/// Inserts the object of a head, by `by`.
///
/// # Safety
/// See [`lookup`]; `head` is null, or that of an object that is in no table.
unsafe fn insert_by(
    handle: *const Handle,
    head: *mut c_void,
    by: impl FnOnce(&Table, Key, Object) -> Result<(), Refused<Key, Object>>,
) -> c_int {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(handle) }).filter(|_| !head.is_null()) else {
        return -libc::EINVAL;
    };
    let most = table.params.max_size as usize;
    if most != 0 && table.elements.len() >= 2 * most {
        return -libc::E2BIG;
    }
    let object = table.object(head);
    Table::refused(by(table, table.key(object, Of::Object), table.value(object)))
}

/// # Safety
/// See [`insert_by`].
#[unsafe(export_name = "kmem_rhashtable_insert")]
unsafe extern "C" fn insert(handle: *const Handle, head: *mut c_void) -> c_int {
    // SAFETY: the same contract.
    unsafe {
        insert_by(handle, head, |table, key, object| {
            table.elements.insert(key, object, table.owner.here())
        })
    }
}

/// # Safety
/// See [`insert_by`].
#[unsafe(export_name = "kmem_rhltable_insert")]
unsafe extern "C" fn insert_also(handle: *const Handle, list: *mut ListHead) -> c_int {
    // SAFETY: the same contract: only this thread uses the head before the object is in the table.
    unsafe {
        insert_by(handle, list.cast(), |table, key, object| {
            let ready =
                |key: &Key| (*list).key.store((&raw const *key).cast_mut(), Ordering::Release);
            table.elements.insert_also_with(key, object, table.owner.here(), ready)
        })
    }
}

/// # Safety
/// See [`lookup`].
#[unsafe(export_name = "kmem_rhltable_lookup")]
unsafe extern "C" fn lookup_first(handle: *const Handle, key: *const c_void) -> *mut c_void {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(handle) }) else { return null_mut() };
    let (reading, key) = (table.elements.read(), table.key(key, Of::Key));
    table.head(reading.all(&key).next())
}

/// # Safety
/// `list` is null, or the head of an object that was found in a table of lists. The read lock that
/// was held then is held still.
#[unsafe(export_name = "kmem_rhltable_next")]
unsafe extern "C" fn next_of_key(list: *const ListHead) -> *mut c_void {
    // SAFETY: the same contract: the object and the key in its element are valid.
    unsafe {
        let list = list.as_ref().and_then(|list| list.key.load(Ordering::Acquire).as_ref());
        let Some(key) = list else { return null_mut() };
        let table = key.table();
        let reading = table.elements.read();
        table.head(reading.all_behind(key).next())
    }
}

/// # Safety
/// See [`lookup`]; `head` is null, or that of an object.
#[unsafe(export_name = "kmem_rhashtable_remove")]
unsafe extern "C" fn remove(handle: *const Handle, head: *mut c_void) -> c_int {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(handle) }).filter(|_| !head.is_null()) else {
        return -libc::EINVAL;
    };
    let object = table.object(head);
    if table.elements.remove(&table.key(object, Of::Only(object))) { 0 } else { -libc::ENOENT }
}

/// # Safety
/// See [`lookup`]; `old` is null or the head of an object; `new` is null or the head of an object
/// that is in no table.
#[unsafe(export_name = "kmem_rhashtable_replace")]
unsafe extern "C" fn replace(handle: *const Handle, old: *mut c_void, new: *mut c_void) -> c_int {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(handle) }).filter(|_| !old.is_null() && !new.is_null())
    else {
        return -libc::EINVAL;
    };
    let (old, new) = (table.object(old), table.object(new));
    let code = |object| Seeded(0).hash_one(table.key(object, Of::Object));
    if code(old) != code(new) {
        return -libc::EINVAL;
    }
    let key = table.key(new, Of::Only(old));
    Table::refused(table.elements.replace(key, table.value(new), table.owner.here()))
}

/// # Safety
/// See [`lookup`].
#[unsafe(export_name = "kmem_rhashtable_nelems")]
unsafe extern "C" fn nelems(handle: *const Handle) -> c_int {
    // SAFETY: the same contract.
    let table = unsafe { table(handle) };
    table.map_or(-libc::EINVAL, |table| table.elements.len().try_into().unwrap_or(c_int::MAX))
}

/// # Safety
/// See [`lookup`].
#[unsafe(export_name = "kmem_rhashtable_read_lock")]
unsafe extern "C" fn read_lock(handle: *const Handle) -> c_int {
    // SAFETY: the same contract.
    let table = unsafe { table(handle) };
    // The side is 0 or 1.
    table.map_or(-libc::EINVAL, |table| table.elements.read().pause() as c_int)
}

/// # Safety
/// See [`lookup`]; `side` is a result of [`read_lock`] for this table, passed once.
#[unsafe(export_name = "kmem_rhashtable_read_unlock")]
unsafe extern "C" fn read_unlock(handle: *const Handle, side: c_int) {
    // SAFETY: the same contract.
    if let Some(table) = unsafe { table(handle) }
        && let Ok(side) = usize::try_from(side)
    {
        // SAFETY: the contract: from a reading of this table, resumed once.
        drop(unsafe { Reading::resume(&table.elements, side) });
    }
}

/// # Safety
/// `walk.ht` is as for [`table`]; one thread at a time uses the walk.
#[unsafe(export_name = "kmem_rhashtable_walk_next")]
unsafe extern "C" fn walk_next(walk: &mut Walk) -> *mut c_void {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(walk.ht) }).filter(|_| walk.side >= 0) else {
        return null_mut();
    };
    // Ends before the reading that `rhashtable_walk_start` began, so the result stays valid.
    let reading = table.elements.read();
    // SAFETY: null, or a key that was found since the walk started, and so under its read lock.
    let next = if let Some(key) = unsafe { walk.key.as_ref() } {
        // SAFETY: the same key.
        unsafe { reading.iter_behind(key) }.next()
    } else {
        let last = walk.last.cast_const();
        let here = |position: Position| position == walk.position;
        let mut from = reading.iter_from(walk.position);
        if last.is_null() {
            from.next()
        } else {
            // Several objects can have one position: skip those up to the last one returned.
            let mut from = from.skip_while(|(position, key, _)| here(*position) && key.at != last);
            match from.next() {
                Some((position, ..)) if here(position) => from.next(),
                // The last one was removed.
                found => found,
            }
        }
    };
    let Some((position, key, _)) = next else { return null_mut() };
    (walk.position, walk.last, walk.key) = (position, key.at.cast_mut(), key);
    walk.last
}

/// # Safety
/// See [`lookup`]; no other thread uses the table any more.
#[unsafe(export_name = "kmem_rhashtable_free_and_destroy")]
unsafe extern "C" fn free_and_destroy(
    handle: *mut Handle,
    free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the same contract.
    let Some(table) = (unsafe { table(handle) }) else { return -libc::EINVAL };
    let reading = table.elements.read();
    for (_, object) in reading.iter() {
        let object = object.take();
        if let Some(free) = free {
            // SAFETY: the program's function, for an object that the table owns no more.
            unsafe { free(object, argument) };
        }
    }
    drop(reading);
    // SAFETY: the contract: a table from `make`, which no other thread uses any more.
    unsafe {
        let at = (*handle).table.swap(null_mut(), Ordering::AcqRel);
        at.drop_in_place();
        KMEM.free(at.cast());
    }
    0
}
