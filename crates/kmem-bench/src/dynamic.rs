//! The dynamic linker: loads libraries, finds functions and the objects that contain them.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

/// A library that stays loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library(*mut c_void);

impl Library {
    /// A library that the process has loaded already.
    pub(crate) fn loaded(name: &str) -> Result<Self, String> {
        Self::open(Path::new(name), libc::RTLD_NOW | libc::RTLD_NOLOAD)
    }

    /// Loads a library. Other objects of the process do not see its symbols.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        Self::open(path, libc::RTLD_NOW | libc::RTLD_LOCAL)
    }

    /// The first definition in the order of the whole process.
    pub(crate) fn process() -> Self {
        Self(libc::RTLD_DEFAULT)
    }

    fn open(path: &Path, flags: i32) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: `name` ends in a zero byte. Constructors of the library run, as an allocator
        // needs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        if handle.is_null() { Err(last_error()) } else { Ok(Self(handle)) }
    }

    /// The address of `symbol`.
    pub(crate) fn symbol(self, symbol: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is never closed and `symbol` ends in a zero byte.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        if address.is_null() { Err(last_error()) } else { Ok(address) }
    }
}

fn last_error() -> String {
    // SAFETY: dlerror may be called at any time.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "unknown error of the dynamic linker".to_owned();
    }
    // SAFETY: a message that is not null is a C string of this thread.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// The file of the object that contains `address`.
pub(crate) fn object_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is writable; the address is only compared with ranges.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded; before, all fields were zero, which is valid. The linker's name of
    // a loaded object is a C string.
    let name = unsafe {
        let info = info.assume_init();
        if info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

/// True if two paths are the same file.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::{Library, object_of, same_file};
    use std::path::Path;

    #[test]
    fn malloc_of_the_c_library_lies_in_the_c_library() {
        let malloc = Library::loaded("libc.so.6").unwrap().symbol(c"malloc").unwrap();
        let object = object_of(malloc).unwrap();
        assert!(object.to_string_lossy().contains("libc.so.6"), "{object:?}");
    }

    #[test]
    fn a_missing_library_is_an_error_with_its_name() {
        let error = Library::loaded("/no/such/library.so").unwrap_err();
        assert!(error.contains("/no/such/library.so"), "{error}");
        assert!(!same_file(Path::new("/"), Path::new("/proc")));
    }
}
