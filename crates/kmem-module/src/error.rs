//! What a request comes to when it fails: the kernel's error number, and what is wrong where.

use std::fmt;
use std::sync::Arc;

/// An error number of the system, as `finit_module(2)` and its relatives return it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(#[allow(missing_docs)] pub const $name: Self = Self(libc::$name);)*

            /// Its name, `E` and number if it has none here.
            #[must_use]
            pub fn name(self) -> String {
                match self.0 {
                    $(libc::$name => stringify!($name).to_owned(),)*
                    other => format!("E{other}"),
                }
            }
        }
    };
}

names! {
    E2BIG EAGAIN EBADF EBADMSG EBUSY EDEADLK EEXIST EFAULT EINTR EINVAL EIO EKEYREJECTED EMFILE ENFILE
    ENODATA ENOENT ENOEXEC ENOMEM ENOPKG ENOSYS EPERM EACCES ERANGE ETXTBSY EOPNOTSUPP ETIME EISDIR ENODEV
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A failed request. Cheap to copy: all who wait for one load get the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({errno})")]
pub struct Error {
    /// The number a system call would return.
    pub errno: Errno,
    /// What is wrong, and where: section, symbol, parameter, value.
    pub what: Arc<str>,
    /// Whether it is a read of the file that failed.
    pub(crate) read: bool,
}

impl Error {
    /// An error with its explanation.
    pub fn new(errno: Errno, what: impl Into<Arc<str>>) -> Self {
        Self { errno, what: what.into(), read: false }
    }

    /// The file is not a module that can be loaded.
    pub fn noexec(what: impl Into<Arc<str>>) -> Self {
        Self::new(Errno::ENOEXEC, what)
    }

    /// There is no memory for what is named.
    pub fn nomem(bytes: u64, of: &str) -> Self {
        Self::new(Errno::ENOMEM, format!("no memory for {bytes} bytes of {of}"))
    }

    /// A read that failed.
    pub fn io(what: &str, error: &std::io::Error) -> Self {
        let errno = Errno(error.raw_os_error().unwrap_or(libc::EIO));
        Self { read: true, ..Self::new(errno, format!("{what}: {error}")) }
    }

    /// Whether the next try may well succeed: whoever waited for the one that failed tries again.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.errno,
            Errno::ENOMEM | Errno::EINTR | Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE
        )
    }
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, Error>;
