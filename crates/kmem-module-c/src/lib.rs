//! `libkmem_modules.so`: the functions of `kmem/module.h` over the one loader of the process.
//!
//! The library is separate from `libkmem.so`, because the loader needs the standard library and
//! decoders. Functions return a negative error number on failure, and keep its text for
//! [`kmem_module_error`] of the same thread.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kmem_module::keyring::Keyring;
use kmem_module::loader::WhenLive;
use kmem_module::signature::Verify;
use kmem_module::stats::Stat;
use kmem_module::{Config, Errno, Error, Loader, Result};

thread_local! {
    /// The error of this thread's last call that failed.
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The loader, made by the first call that needs it.
static LOADER: OnceLock<Loader> = OnceLock::new();
/// Held while the loader is made.
static MAKING: Mutex<()> = Mutex::new(());

fn error(errno: Errno, what: &str) -> Error {
    Error::new(errno, what)
}

/// Makes the loader with a configuration, or finds it.
///
/// # Errors
/// `EBUSY`: there is a configuration, but the loader exists already; `ENOMEM`.
fn begin(config: Option<Config>) -> Result<&'static Loader> {
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    match (LOADER.get(), config) {
        (Some(_), Some(_)) => Err(error(Errno::EBUSY, "the loader has begun; configure it before")),
        (Some(loader), None) => Ok(loader),
        (None, config) => {
            let loader = Loader::new(config.unwrap_or_default())?;
            Ok(LOADER.get_or_init(|| loader))
        }
    }
}

fn loader() -> Result<&'static Loader> {
    LOADER.get().map_or_else(|| begin(None), Ok)
}

/// Turns a result into that of a C function, and keeps an error for [`kmem_module_error`].
fn number(result: Result<c_int>) -> c_int {
    match result {
        Ok(number) => number,
        Err(error) => {
            let number = -error.errno.0;
            let _ = LAST.try_with(|last| last.replace(Some(error)));
            number
        }
    }
}

/// A text from C. `what` names it in an error.
///
/// # Errors
/// `EFAULT`: it is null; `EINVAL`: it is not UTF-8.
///
/// # Safety
/// `at` is null, or a C string that lives as long as the result.
unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str> {
    if at.is_null() {
        return Err(Error::new(Errno::EFAULT, format_args!("{what} is null")));
    }
    // SAFETY: the same contract.
    let text = unsafe { CStr::from_ptr(at) }.to_str();
    text.map_err(|_| Error::new(Errno::EINVAL, format_args!("{what} is not UTF-8")))
}

/// Copies a text with its zero byte to `room` bytes at `to`, cut off if it is longer. Returns its
/// whole length.
///
/// # Errors
/// `EFAULT`: `to` is null and `room` is not 0; `E2BIG`: the length does not fit the result.
///
/// # Safety
/// `to` is null or valid for writing `room` bytes.
unsafe fn give(text: &str, to: *mut c_char, room: usize) -> Result<c_int> {
    if to.is_null() && room > 0 {
        return Err(error(Errno::EFAULT, "the room for the text is null"));
    }
    let len = text.len();
    if let Some(most) = room.checked_sub(1) {
        let copied = len.min(most);
        // SAFETY: by the contract `to` has `room` bytes: more than `copied`.
        unsafe {
            to.copy_from_nonoverlapping(text.as_ptr().cast(), copied);
            to.add(copied).write(0);
        }
    }
    c_int::try_from(len).map_err(|_| error(Errno::E2BIG, "the text is too long"))
}

/// `struct kmem_module_config`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ModuleConfig {
    size: u64,
    search_path: *const c_char,
    most_bytes: u64,
    most_requests: u32,
    flags: u32,
    certificates: *const c_char,
    verify: Option<VerifyFunction>,
    verify_data: *mut c_void,
}

/// Bytes of the structure before it had fields for signatures.
const FIRST_SIZE: u64 = 32;

const _: () = assert!(std::mem::offset_of!(ModuleConfig, certificates) == FIRST_SIZE as usize);

/// `kmem_module_config::verify`: the module, its signature, and `verify_data`.
type VerifyFunction =
    unsafe extern "C" fn(*const c_void, usize, *const c_void, usize, *mut c_void) -> c_int;

/// The host's function that verifies signatures.
struct HostVerifies {
    function: VerifyFunction,
    data: *mut c_void,
}

// SAFETY: any thread may call the function with its data, as `kmem/module.h` demands.
unsafe impl Send for HostVerifies {}
// SAFETY: any thread may call the function with its data, as `kmem/module.h` demands.
unsafe impl Sync for HostVerifies {}

impl Verify for HostVerifies {
    fn verify(&self, module: &[u8], signature: &[u8]) -> Result<()> {
        let (at, len) = (signature.as_ptr().cast(), signature.len());
        // SAFETY: the host's function, its data, and two ranges of bytes to read.
        let result =
            unsafe { (self.function)(module.as_ptr().cast(), module.len(), at, len, self.data) };
        match result {
            0 => Ok(()),
            ..0 => Err(error(Errno(result.saturating_neg()), "the host refuses the signature")),
            _ => Err(error(Errno::EKEYREJECTED, "the host refuses the signature")),
        }
    }
}

/// Reads a configuration, whose size tells its version. Fields that the version has not are zero.
///
/// # Errors
/// `EFAULT`: it is null; `EINVAL`: its size is that of no version.
///
/// # Safety
/// `at` is null, or a structure of the size in its first field.
unsafe fn read(at: *const ModuleConfig) -> Result<ModuleConfig> {
    // SAFETY: the same contract: null, or a size that can be read.
    let size = unsafe { at.cast::<u64>().as_ref() };
    let size = *size.ok_or_else(|| error(Errno::EFAULT, "the configuration is null"))?;
    if size != FIRST_SIZE && size != size_of::<ModuleConfig>() as u64 {
        return Err(error(Errno::EINVAL, "the configuration has a size of no version"));
    }
    let mut config = std::mem::MaybeUninit::<ModuleConfig>::zeroed();
    // SAFETY: both have `size` bytes. Zeroes are valid for all fields.
    unsafe {
        let to = config.as_mut_ptr().cast::<u8>();
        to.copy_from_nonoverlapping(at.cast(), size as usize);
        Ok(config.assume_init())
    }
}

/// The verifier of signatures that a configuration asks for.
///
/// # Errors
/// `EINVAL`: it asks for two; those of [`Keyring::from_file`].
///
/// # Safety
/// Its path is null or a C string.
unsafe fn verifier(given: &ModuleConfig) -> Result<Option<Arc<dyn Verify>>> {
    match (given.verify, given.certificates.is_null()) {
        (None, true) => Ok(None),
        (Some(function), true) => {
            Ok(Some(Arc::new(HostVerifies { function, data: given.verify_data })))
        }
        (None, false) => {
            // SAFETY: the contract: a C string.
            let path = unsafe { CStr::from_ptr(given.certificates) };
            let path = Path::new(OsStr::from_bytes(path.to_bytes()));
            Ok(Some(Arc::new(Keyring::from_file(path)?)))
        }
        (Some(_), false) => Err(error(Errno::EINVAL, "both certificates and a function to verify")),
    }
}

/// `KMEM_MODULE_REFUSE_LIVE`.
const REFUSE_LIVE: u32 = 1;
/// `KMEM_MODULE_PERF_MAP`.
const PERF_MAP: u32 = 2;

/// See `kmem/module.h`.
///
/// # Safety
/// `config` is null, or a structure of the size in its first field; its paths are null or C
/// strings. Any thread may call its function with its data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_module_configure(config: *const ModuleConfig) -> c_int {
    let configure = || {
        // SAFETY: the same contract.
        let given = unsafe { read(config) }?;
        if given.flags & !(REFUSE_LIVE | PERF_MAP) != 0 {
            return Err(error(Errno::EINVAL, "unknown flags in the configuration"));
        }
        let mut config = Config::default();
        if !given.search_path.is_null() {
            // SAFETY: the contract: a C string.
            let path = unsafe { CStr::from_ptr(given.search_path) }.to_bytes();
            let dirs = path.split(|&b| b == b':').filter(|dir| !dir.is_empty());
            config.search_path = dirs.map(|dir| PathBuf::from(OsStr::from_bytes(dir))).collect();
        }
        if given.most_bytes != 0 {
            config.most = given.most_bytes;
        }
        if given.most_requests != 0 {
            config.most_requests = given.most_requests;
        }
        if given.flags & REFUSE_LIVE != 0 {
            config.when_live = WhenLive::Refuse;
        }
        config.perf_map = given.flags & PERF_MAP != 0;
        // SAFETY: the same contract.
        config.verify = unsafe { verifier(&given) }?;
        begin(Some(config)).map(|_| 0)
    };
    number(configure())
}

/// The arguments of a module; null means none.
///
/// # Safety
/// `args` is null, or a C string that lives as long as the result.
unsafe fn arguments<'a>(args: *const c_char) -> Result<&'a str> {
    // SAFETY: the same contract.
    if args.is_null() { Ok("") } else { unsafe { text(args, "the arguments") } }
}

/// See `kmem/module.h`.
///
/// # Safety
/// `args` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_finit_module(fd: c_int, args: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the same contract.
    let load = || loader()?.finit_module(fd, unsafe { arguments(args) }?, flags);
    number(load().map(|()| 0))
}

/// See `kmem/module.h`.
///
/// # Safety
/// `image` is null or valid for reading `len` bytes, which no thread writes during the call; `args`
/// is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_init_module(
    image: *const c_void,
    len: usize,
    args: *const c_char,
) -> c_int {
    let load = || {
        if image.is_null() {
            return Err(error(Errno::EFAULT, "the image is null"));
        }
        // SAFETY: the same contract.
        let bytes = unsafe { std::slice::from_raw_parts(image.cast(), len) };
        // SAFETY: the same contract.
        loader()?.init_module(bytes, unsafe { arguments(args) }?)
    };
    number(load().map(|()| 0))
}

/// See `kmem/module.h`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_delete_module(name: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the same contract.
    let unload = || loader()?.delete_module(unsafe { text(name, "the name") }?, flags);
    number(unload().map(|()| 0))
}

/// See `kmem/module.h`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_request_module(name: *const c_char) -> c_int {
    // SAFETY: the same contract.
    let request = || loader()?.request_module(unsafe { text(name, "the name") }?);
    number(request().map(|()| 0))
}

/// See `kmem/module.h`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_symbol_get(name: *const c_char) -> *mut c_void {
    let get = || {
        // SAFETY: the same contract.
        let name = unsafe { text(name, "the name") }?;
        loader()?.symbol_get(name).ok_or_else(|| {
            Error::new(Errno::ENOENT, format_args!("no live module exports {name:?}"))
        })
    };
    let mut address = 0;
    number(get().map(|found| {
        address = found;
        0
    }));
    address as *mut c_void
}

/// See `kmem/module.h`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_symbol_put(name: *const c_char) -> c_int {
    let put = || {
        // SAFETY: the same contract.
        let name = unsafe { text(name, "the name") }?;
        match loader()?.symbol_put(name) {
            true => Ok(0),
            false => Err(Error::new(Errno::ENOENT, format_args!("no module exports {name:?}"))),
        }
    };
    number(put())
}

/// See `kmem/module.h`.
///
/// # Safety
/// `module` and `name` are null or C strings; `to` is null or valid for writing `room` bytes. A
/// `charp` parameter points to a string or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_module_parameter(
    module: *const c_char,
    name: *const c_char,
    to: *mut c_char,
    room: usize,
) -> c_int {
    let show = || {
        // SAFETY: the same contract.
        let (module, name) = unsafe { (text(module, "the module")?, text(name, "the name")?) };
        let value = loader()?.parameter(module, name)?;
        // SAFETY: the same contract.
        unsafe { give(&value, to, room) }
    };
    number(show())
}

/// `struct kmem_module_stat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ModuleStat {
    size: u64,
    values: [u64; Stat::ALL.len()],
    wasted: u64,
    held: u64,
    held_peak: u64,
}

/// See `kmem/module.h`.
///
/// # Safety
/// `stat` is null, or valid for reading a size and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_module_stat(stat: *mut ModuleStat) -> c_int {
    let fill = || {
        // SAFETY: the contract: null, or a size that can be read.
        let size = unsafe { stat.cast::<u64>().as_ref() };
        match size {
            None => return Err(error(Errno::EFAULT, "the structure is null")),
            Some(&size) if size != size_of::<ModuleStat>() as u64 => {
                return Err(error(Errno::EINVAL, "the structure has a size of no version"));
            }
            Some(_) => {}
        }
        let stats = loader()?.stats();
        // SAFETY: by the contract it is as long as its size says: a `ModuleStat`.
        unsafe {
            stat.write(ModuleStat {
                size: size_of::<ModuleStat>() as u64,
                values: stats.values,
                wasted: stats.wasted(),
                held: stats.held,
                held_peak: stats.held_peak,
            });
        }
        Ok(0)
    };
    number(fill())
}

/// See `kmem/module.h`.
///
/// # Safety
/// `to` is null or valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_module_stat_text(to: *mut c_char, room: usize) -> c_int {
    // SAFETY: the same contract.
    number(loader().and_then(|loader| unsafe { give(&loader.stats().to_string(), to, room) }))
}

/// See `kmem/module.h`.
///
/// # Safety
/// `to` is null or valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_module_list_text(to: *mut c_char, room: usize) -> c_int {
    // SAFETY: the same contract.
    number(loader().and_then(|loader| unsafe { give(&loader.proc_modules(true), to, room) }))
}

/// See `kmem/module.h`.
///
/// # Safety
/// `to` is null or valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kmem_module_error(to: *mut c_char, room: usize) -> c_int {
    let last = LAST.try_with(|last| last.borrow().clone()).ok().flatten();
    let text = last.as_ref().map_or("", |error| &error.what);
    // SAFETY: the same contract.
    unsafe { give(text, to, room) }.unwrap_or_else(|error| -error.errno.0)
}
