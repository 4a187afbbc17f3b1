//! What a request comes to when it fails: the kernel's error number, and what is wrong where.

use std::fmt;
use std::ops::Deref;

use crate::alloc::{Shared, written};

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

/// What is wrong, in words. Where there was no memory for them, it says so.
#[derive(Clone)]
pub struct Text(Option<Shared<String>>);

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_ref().map_or("no memory to say what is wrong", |text| text.as_str())
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A failed request. Cheap to copy: all who wait for one load get the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({errno})")]
pub struct Error {
    /// The number a system call would return.
    pub errno: Errno,
    /// What is wrong, and where: section, symbol, parameter, value.
    pub what: Text,
    /// Whether it is a read of the file that failed.
    pub(crate) read: bool,
}

impl Error {
    /// An error with its explanation.
    pub fn new(errno: Errno, what: impl fmt::Display) -> Self {
        Self { errno, what: Text(written(what).and_then(Shared::try_new)), read: false }
    }

    /// The file is not a module that can be loaded.
    pub fn noexec(what: impl fmt::Display) -> Self {
        Self::new(Errno::ENOEXEC, what)
    }

    /// There is no memory for what is named.
    pub fn nomem(bytes: u64, of: &str) -> Self {
        Self::new(Errno::ENOMEM, format_args!("no memory for {bytes} bytes of {of}"))
    }

    /// A read that failed.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let errno = Errno(error.raw_os_error().unwrap_or(libc::EIO));
        Self { read: true, ..Self::new(errno, format_args!("{what}: {error}")) }
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
