//! Errors of requests: the kernel's error number, and a text that says what is wrong and where.

use std::fmt;
use std::ops::Deref;

use crate::alloc::{Shared, written};

/// An error number of the system, as `finit_module(2)` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(#[allow(missing_docs)] pub const $name: Self = Self(libc::$name);)*

            /// Its name, or `E` and the number if it is not in the list above.
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
    E2BIG EAGAIN EBADF EBADMSG EBUSY EDEADLK EEXIST EFAULT EFBIG EINTR EINVAL EIO EKEYREJECTED
    EMFILE ENFILE ENODATA ENOENT ENOEXEC ENOMEM ENOPKG ENOSYS EPERM EACCES ERANGE ETXTBSY EOPNOTSUPP
    ETIME EISDIR ENODEV
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

/// The text of an error. Without memory for it, a fixed text.
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

/// The error of a request. Copies share the text, because all threads that wait for a load get one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({errno})")]
pub struct Error {
    /// The number that a system call would return.
    pub errno: Errno,
    /// The cause and its place: section, symbol, parameter, value.
    pub what: Text,
    /// True if a read of the file failed.
    pub(crate) read: bool,
}

impl Error {
    /// Makes an error with a text.
    pub fn new(errno: Errno, what: impl fmt::Display) -> Self {
        Self { errno, what: Text(written(what).and_then(Shared::try_new)), read: false }
    }

    /// Makes an `ENOEXEC`: the file is not a module that can be loaded.
    pub fn noexec(what: impl fmt::Display) -> Self {
        Self::new(Errno::ENOEXEC, what)
    }

    /// Makes an `ENOMEM`: there is no memory for `bytes` bytes of `of`.
    pub fn nomem(bytes: u64, of: &str) -> Self {
        Self::new(Errno::ENOMEM, format_args!("no memory for {bytes} bytes of {of}"))
    }

    /// Makes the error of a failed read.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let errno = Errno(error.raw_os_error().unwrap_or(libc::EIO));
        Self { read: true, ..Self::new(errno, format_args!("{what}: {error}")) }
    }

    /// Returns whether another try may succeed. Threads that wait for a request with such an error
    /// try again.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.errno,
            Errno::ENOMEM | Errno::EINTR | Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE
        )
    }
}

/// Writes a warning to standard error, as the kernel does to its log. One that cannot be written is
/// lost.
pub(crate) fn warn(what: fmt::Arguments<'_>) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "kmem: {what}");
}

/// Result of a request.
pub type Result<T> = std::result::Result<T, Error>;
