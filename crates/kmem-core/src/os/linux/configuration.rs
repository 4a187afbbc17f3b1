//! Configuration texts: the symbol `kmem_conf`, the file `/etc/kmem.conf`, and the environment.
//!
//! The first allocation may come while the dynamic loader still relocates the program. Then a
//! pointer in the program's data is not an address yet.
//!
//! Context: any, signal handlers included.

use core::ffi::{CStr, c_char};

use super::Linux;
use super::descriptor::Descriptor;
use super::start::{self, weak};
use crate::os::ConfSource;

/// The file of the machine's administrator.
const PATH: &CStr = c"/etc/kmem.conf";

/// Addresses below 4 GiB, which no object has that the loader placed.
const LOW: usize = 1 << 32;

impl Linux {
    /// See [`Process::configuration`](crate::os::Process::configuration).
    pub(super) fn configuration_of(&self, source: ConfSource, buf: &mut [u8]) -> Option<usize> {
        match source {
            ConfSource::Program => of_program(buf),
            ConfSource::File if self.is_in_sandbox() || start::secure() => None,
            ConfSource::File => of_file(PATH, buf),
            ConfSource::Environment => {
                let len = start::environment(b"KMEM_CONF=", buf)?;
                (!start::secure()).then_some(len)
            }
        }
    }
}

/// Copies the text of `const char *kmem_conf`, which the program may define.
fn of_program(buf: &mut [u8]) -> Option<usize> {
    let symbol = weak!("kmem_conf") as *const *const c_char;
    // SAFETY: null, or an object of the program that holds a pointer.
    let text = *unsafe { symbol.as_ref() }?;
    // The loader placed the symbol and not yet its value, which is still an offset.
    let is_relocated = text.addr() >= LOW || symbol.addr() < LOW;
    if text.is_null() || !is_relocated {
        return None;
    }
    // SAFETY: the program defines `kmem_conf` as null or a C string, and the loader has relocated
    // the pointer.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    if let Some(room) = buf.get_mut(..text.len()) {
        room.copy_from_slice(text);
    }
    Some(text.len())
}

/// Reads a file into `buf`. A file that cannot be read counts as none. Of a file that does not fit,
/// one byte more is read, so that an endless one ends.
fn of_file(path: &CStr, buf: &mut [u8]) -> Option<usize> {
    // Does not wait for the writer of a FIFO, and makes no terminal that of the process.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = Descriptor::open(path, flags).ok()?;
    let mut len = 0;
    while len < buf.len() {
        match file.read(&mut buf[len..]) {
            0 => return Some(len),
            got => len += got,
        }
    }
    Some(len + file.read(&mut [0]))
}

#[cfg(all(test, not(miri)))]
mod tests {
    extern crate std;
    use super::*;

    fn read<const N: usize>(path: &CStr) -> (Option<usize>, [u8; N]) {
        let mut buf = [0; N];
        (of_file(path, &mut buf), buf)
    }

    #[test]
    fn file_that_does_not_fit_is_longer_than_the_room() {
        assert_eq!(read::<16>(c"/dev/zero"), (Some(17), [0; 16]));
    }

    #[test]
    fn file_that_cannot_be_read_counts_as_none() {
        assert_eq!(read::<16>(c"/no such file").0, None);
        assert_eq!(read::<16>(c"/dev/null").0, Some(0));
        assert_eq!(read::<16>(c"/").0, Some(0));
    }
}
