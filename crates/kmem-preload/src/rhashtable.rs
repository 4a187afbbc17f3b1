//! Hash tables, as `kmem/rhashtable.h` declares them: an element is a key (which names the object) and the object.

use core::ffi::{c_int, c_uint, c_void};
use core::hash::{BuildHasher, Hash, Hasher};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use kmem_core::codetag::{Caller, StaticTag};
use kmem_core::os::Platform;
use kmem_core::os::linux::Linux;
use kmem_core::rhashtable::{Parameters, Position, Reading, Refused, Seeded};

use crate::KMEM;
use crate::kernel::{twins, who};

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
    side: c_int,
}

type Elements = kmem_core::Table<Key, Object, Linux>;

/// What a [`Handle`] leads to.
struct Table {
    elements: Elements,
    params: Params,
    handle: *const Handle,
    seed: u32,
    /// Without a group: that of the thread pays.
    owner: Caller,
}

/// What is at a key's address.
#[derive(Clone, Copy)]
enum Of {
    /// A key alone.
    Key,
    /// An object, whose key counts.
    Object,
    /// An object, and only that one (by its address) is equal to it.
    Only(*const c_void),
}

/// A key of an object in a table, or one that is looked for.
#[derive(Clone, Copy)]
struct Key {
    table: *const Table,
    at: *const c_void,
    of: Of,
}

// SAFETY: objects are the program's, which shares them between threads by using the table.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Key {
    fn table(&self) -> &Table {
        // SAFETY: keys are used while their table lives.
        unsafe { &*self.table }
    }

    /// The key's own address.
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
        // SAFETY: the program's functions, for what they are meant for; a key is so long.
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
    /// Whether this one, which is in the table, is the one that is looked for.
    fn eq(&self, sought: &Self) -> bool {
        if let Of::Only(object) = sought.of {
            return self.at == object;
        }
        let Table { params, handle, .. } = self.table();
        // SAFETY: as above.
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

/// An object that is in the table, or was: then it is given to who frees it.
struct Object {
    /// Null: it is nobody's any more.
    at: AtomicPtr<c_void>,
    release: Option<Release>,
}

impl Object {
    /// The object, which is not given to anybody then.
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
            // SAFETY: the program's function, for an object that nobody reads any more.
            unsafe { release(at) }
        }
    }
}

impl Table {
    /// The object whose `rhash_head` this is.
    fn object(&self, head: *mut c_void) -> *mut c_void {
        head.wrapping_byte_sub(self.params.head_offset.into())
    }

    fn key(&self, at: *const c_void, of: Of) -> Key {
        Key { table: self, at, of }
    }

    fn value(&self, object: *mut c_void) -> Object {
        Object { at: AtomicPtr::new(object), release: self.params.obj_freefn }
    }

    /// What to tell C of an element that was refused, and stays the program's.
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

/// The table that a handle leads to.
///
/// # Safety
/// Null or a handle, whose table, if there is one, is not destroyed meanwhile.
unsafe fn table<'a>(handle: *const Handle) -> Option<&'a Table> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref()?.table.load(Ordering::Acquire).as_ref() }
}

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
        // SAFETY: allocated above, unused.
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
    /// The tag is null or valid; the handle and the parameters are null or C's structures, nobody else uses the handle.
    fn init_tag = "kmem_rhashtable_init_tag", init_noprof = "kmem_rhashtable_init_noprof" in "rdx", "x2" (
        handle: *mut Handle, params: *const Params) -> c_int {
        tag => {
            // SAFETY: the caller's promise.
            let (handle, params, owner) = unsafe { (handle.as_mut(), params.as_ref(), who(tag)) };
            let (Some(handle), Some(params)) = (handle, params) else { return -libc::EINVAL };
            let made = make(handle, params, owner);
            *handle.table.get_mut() = made.map_or(null_mut(), NonNull::as_ptr);
            made.err().map_or(0, |error| -error)
        }
    }
}

/// # Safety
/// A handle as for [`table`]; so for all functions here. The key is so long as the parameters say.
#[unsafe(export_name = "kmem_rhashtable_lookup")]
unsafe extern "C" fn lookup(handle: *const Handle, key: *const c_void) -> *mut c_void {
    // SAFETY: the caller's promise; so below.
    let Some(table) = (unsafe { table(handle) }) else { return null_mut() };
    let reading = table.elements.read();
    let found = reading.get(&table.key(key, Of::Key));
    found.map_or(null_mut(), |object| object.at.load(Ordering::Relaxed))
}

/// # Safety
/// See [`lookup`]; the head of an object that is in no table.
#[unsafe(export_name = "kmem_rhashtable_insert")]
unsafe extern "C" fn insert(handle: *const Handle, head: *mut c_void) -> c_int {
    // SAFETY: as above.
    let Some(table) = (unsafe { table(handle) }).filter(|_| !head.is_null()) else {
        return -libc::EINVAL;
    };
    let most = table.params.max_size as usize;
    if most != 0 && table.elements.len() >= 2 * most {
        return -libc::E2BIG;
    }
    let object = table.object(head);
    let key = table.key(object, Of::Object);
    Table::refused(table.elements.insert(key, table.value(object), table.owner.here()))
}

/// # Safety
/// See [`lookup`]; the head of an object.
#[unsafe(export_name = "kmem_rhashtable_remove")]
unsafe extern "C" fn remove(handle: *const Handle, head: *mut c_void) -> c_int {
    // SAFETY: as above.
    let Some(table) = (unsafe { table(handle) }).filter(|_| !head.is_null()) else {
        return -libc::EINVAL;
    };
    let object = table.object(head);
    if table.elements.remove(&table.key(object, Of::Only(object))) { 0 } else { -libc::ENOENT }
}

/// # Safety
/// See [`lookup`]; the head of an object, and of one that is in no table.
#[unsafe(export_name = "kmem_rhashtable_replace")]
unsafe extern "C" fn replace(handle: *const Handle, old: *mut c_void, new: *mut c_void) -> c_int {
    // SAFETY: as above.
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
    // SAFETY: as above.
    let table = unsafe { table(handle) };
    table.map_or(-libc::EINVAL, |table| table.elements.len().try_into().unwrap_or(c_int::MAX))
}

/// # Safety
/// See [`lookup`].
#[unsafe(export_name = "kmem_rhashtable_read_lock")]
unsafe extern "C" fn read_lock(handle: *const Handle) -> c_int {
    // SAFETY: as above.
    let table = unsafe { table(handle) };
    // A side: 0 or 1.
    table.map_or(-libc::EINVAL, |table| table.elements.read().pause() as c_int)
}

/// # Safety
/// See [`lookup`]; what [`read_lock`] returned, once.
#[unsafe(export_name = "kmem_rhashtable_read_unlock")]
unsafe extern "C" fn read_unlock(handle: *const Handle, side: c_int) {
    // SAFETY: as above.
    if let Some(table) = unsafe { table(handle) }
        && let Ok(side) = usize::try_from(side)
    {
        // SAFETY: as above.
        drop(unsafe { Reading::resume(&table.elements, side) });
    }
}

/// # Safety
/// C's structure of a walk, used by one thread at a time.
#[unsafe(export_name = "kmem_rhashtable_walk_next")]
unsafe extern "C" fn walk_next(walk: &mut Walk) -> *mut c_void {
    // SAFETY: as above.
    let Some(table) = (unsafe { table(walk.ht) }).filter(|_| walk.side >= 0) else {
        return null_mut();
    };
    // Within that of the walk.
    let reading = table.elements.read();
    let here = |position: &Position| *position == walk.position;
    let last = walk.last.cast_const();
    let mut from = reading.iter_from(walk.position).map(|(position, key, _)| (position, key.at));
    let next = if last.is_null() {
        from.next()
    } else {
        // Those whose hash is that of the last one came before it or come behind it.
        let mut from = from.skip_while(|(position, at)| here(position) && *at != last);
        match from.next() {
            Some((position, _)) if here(&position) => from.next(),
            // It was removed.
            found => found,
        }
    };
    let Some((position, at)) = next else { return null_mut() };
    (walk.position, walk.last) = (position, at.cast_mut());
    walk.last
}

/// # Safety
/// See [`lookup`]; nobody uses the table any more.
#[unsafe(export_name = "kmem_rhashtable_free_and_destroy")]
unsafe extern "C" fn free_and_destroy(
    handle: *mut Handle,
    free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    let Some(table) = (unsafe { table(handle) }) else { return -libc::EINVAL };
    let reading = table.elements.read();
    for (_, object) in reading.iter() {
        let object = object.take();
        if let Some(free) = free {
            // SAFETY: the program's function, for an object that is its again.
            unsafe { free(object, argument) };
        }
    }
    drop(reading);
    // SAFETY: made by `make`, given up by the caller.
    unsafe {
        let at = (*handle).table.swap(null_mut(), Ordering::AcqRel);
        at.drop_in_place();
        KMEM.free(at.cast());
    }
    0
}
