//! The function that is told of refusals, as `kmem/refusal.h` declares it. Errors are negative
//! error numbers; no function sets `errno`.

use core::ffi::{c_char, c_int, c_void};

use kmem_core::memcg::GroupError;
use kmem_core::{OnRefusal, Refusal};

use crate::KMEM;
use crate::group::uncancelled;

/// # Safety
/// `call` may be called with `data` on any thread until it is replaced.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_on_refusal(call: Option<OnRefusal>, data: *mut c_void) -> c_int {
    // A thread that is cancelled while it replaces the function would keep others from that.
    // SAFETY: the same contract.
    match uncancelled(|| unsafe { KMEM.on_refusal(call.map(|call| (call, data))) }) {
        Ok(()) => 0,
        Err(GroupError::InShrinker) => -libc::EDEADLK,
        Err(_) => -libc::ENOMEM,
    }
}

/// # Safety
/// `refusal` is null, or the argument of the function above during its call. `text` is null or has
/// `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_refusal_site(
    refusal: *const Refusal,
    text: *mut c_char,
    room: usize,
) -> c_int {
    if refusal.is_null() || text.is_null() {
        return -libc::EFAULT;
    }
    // SAFETY: not null, so by the contract a refusal of a call in progress.
    let line = KMEM.refusal_site(unsafe { &*refusal });
    let site = line.text();
    if site.len() >= room {
        return -libc::ERANGE;
    }
    // SAFETY: by the contract `text` has `room` bytes: more than the site.
    unsafe {
        text.cast::<u8>().copy_from_nonoverlapping(site.as_ptr(), site.len());
        text.add(site.len()).write(0);
    }
    // A line has at most 400 bytes.
    site.len() as c_int
}
