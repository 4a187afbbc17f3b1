//! Scopes in which a group pays for the allocations of a thread, entered and left by token.
//!
//! Each thread has a stack of its open scopes. A token is the number of a scope, which no other
//! scope of the process has. So only the innermost scope can be left, once, and by its own thread.
//! A thread that ends leaves its open scopes, innermost first: each keeps its group's entry.
//!
//! The stack is in chunks, which the thread keeps until it ends. The innermost scope is the last
//! one of the last chunk that has any. A signal handler may enter and leave scopes at any point,
//! and leaves the stack as it was. So its thread alone uses a stack, and no access needs a lock. If
//! a handler interrupts the choice of a token, the new scope gets that of a scope of the handler,
//! which is closed by then.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::request::Caller;
use kmem_core::task;
use kmem_core::units::ObjcgId;

use crate::KMEM;

/// Scopes in a chunk.
const ROOM: usize = 30;
/// Bits of a token that count the scopes of a thread. The bits above number the threads.
const COUNT_BITS: u32 = 40;

/// An open scope.
struct Open {
    token: AtomicU64,
    /// The group of the scope, and the one that it took the place of.
    entered: AtomicU32,
    before: AtomicU32,
}

/// A chunk of a thread's stack. Zeroed memory is a valid value: empty.
struct Chunk {
    /// The chunk with the scopes inside those of this one, which is full then.
    inner: AtomicPtr<Chunk>,
    /// The latest token of the thread, in its first chunk.
    latest: AtomicU64,
    /// Open scopes in this chunk.
    depth: AtomicU32,
    open: [Open; ROOM],
}

impl Chunk {
    /// Allocates an empty chunk; no group pays for it.
    fn fresh() -> Option<&'static Self> {
        let caller = Caller::at(enter as *const () as usize);
        let at = NonNull::new(KMEM.alloc_zeroed(size_of::<Self>(), caller))?.cast::<Self>();
        // SAFETY: fresh memory of that size, aligned to 16, for which zeroes are valid.
        Some(unsafe { at.as_ref() })
    }

    fn inner(&self) -> Option<&'static Self> {
        // SAFETY: null, or a chunk that is freed when the thread ends.
        unsafe { self.inner.load(Ordering::Relaxed).as_ref() }
    }

    fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed) as usize
    }

    /// The chunk for the next scope. `None`: there is no memory.
    fn with_room(&'static self) -> Option<&'static Self> {
        let mut at = self;
        while at.depth() >= ROOM {
            at = match at.inner() {
                Some(inner) => inner,
                None => {
                    let inner = Self::fresh()?;
                    at.inner.store((&raw const *inner).cast_mut(), Ordering::Relaxed);
                    inner
                }
            };
        }
        Some(at)
    }

    /// The innermost scope, and its chunk.
    fn innermost(&'static self) -> Option<(&'static Self, &'static Open)> {
        let chunks = core::iter::successors(Some(self), |chunk| chunk.inner());
        let last = chunks.take_while(|chunk| chunk.depth() > 0).last()?;
        Some((last, last.open.get(last.depth() - 1)?))
    }

    /// Closes the innermost scope, the last one of this chunk.
    fn close(&self, open: &Open) {
        KMEM.group_leave(ObjcgId(open.before.load(Ordering::Relaxed)));
        compiler_fence(Ordering::SeqCst);
        self.depth.store(self.depth.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

/// The thread-specific key of the first chunk, plus one; 0: there is none yet.
static KEY: AtomicU32 = AtomicU32::new(0);

fn key() -> Option<u32> {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return Some(key);
    }
    let mut fresh = 0;
    // SAFETY: `fresh` is valid for writing, and `end` is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut fresh, Some(end)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, fresh + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        Err(first) => {
            // SAFETY: this function created the key, which no thread has used.
            unsafe { libc::pthread_key_delete(fresh) };
            first.checked_sub(1)
        }
    }
}

/// The first chunk of the calling thread.
fn first(key: u32) -> Option<&'static Chunk> {
    // SAFETY: null, or a chunk that is freed when the thread ends.
    unsafe { libc::pthread_getspecific(key).cast::<Chunk>().as_ref() }
}

/// Makes the first chunk of the calling thread. `None`: there is no memory.
fn make_first(key: u32) -> Option<&'static Chunk> {
    static THREADS: AtomicU32 = AtomicU32::new(0);
    let chunk = Chunk::fresh()?;
    let number = THREADS.fetch_add(1, Ordering::Relaxed) & ((1 << 22) - 1);
    chunk.latest.store(u64::from(number) << COUNT_BITS, Ordering::Relaxed);
    // SAFETY: the key exists, and `end` gets the chunk.
    let set = unsafe { libc::pthread_setspecific(key, (&raw const *chunk).cast()) } == 0;
    set.then_some(chunk)
}

/// Makes a group pay for the allocations of the calling thread. Returns the token of the scope.
///
/// # Errors
/// There is no such group, or no memory.
pub(crate) fn enter(id: GroupId) -> Result<u64, GroupError> {
    let first = key().and_then(|key| first(key).or_else(|| make_first(key)));
    let first = first.ok_or(GroupError::NoMemory)?;
    let chunk = first.with_room().ok_or(GroupError::NoMemory)?;
    let before = KMEM.group_enter(id)?;
    let token = first.latest.load(Ordering::Relaxed) + 1;
    first.latest.store(token, Ordering::Relaxed);
    // The depth comes first: a signal handler in between takes the places behind it.
    let depth = chunk.depth();
    chunk.depth.store(depth as u32 + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if let Some(open) = chunk.open.get(depth) {
        open.token.store(token, Ordering::Relaxed);
        open.entered.store(id.objcg().0, Ordering::Relaxed);
        open.before.store(before.0, Ordering::Relaxed);
    }
    Ok(token)
}

/// Leaves the innermost scope of the calling thread, if `token` is its token. False: it is not, or
/// a scope of another kind is open inside it.
pub(crate) fn leave(token: u64) -> bool {
    let first = KEY.load(Ordering::Acquire).checked_sub(1).and_then(first);
    let Some((chunk, open)) = first.and_then(Chunk::innermost) else { return false };
    let is_innermost = open.token.load(Ordering::Relaxed) == token
        && task::group() == ObjcgId(open.entered.load(Ordering::Relaxed));
    if is_innermost {
        chunk.close(open);
    }
    is_innermost
}

/// The thread-specific destructor: leaves the open scopes, and frees the chunks.
///
/// # Safety
/// `first` is the first chunk of the calling thread.
unsafe extern "C" fn end(first: *mut c_void) {
    let mut next = first.cast::<Chunk>();
    // SAFETY: null, or a chunk of the ending thread, which `fresh` allocated and nothing else uses.
    unsafe {
        if let Some(first) = next.as_ref() {
            while let Some((chunk, open)) = first.innermost() {
                chunk.close(open);
            }
        }
        while let Some(chunk) = next.as_ref() {
            let at = core::mem::replace(&mut next, chunk.inner.load(Ordering::Relaxed));
            KMEM.free(at.cast());
        }
    }
}
