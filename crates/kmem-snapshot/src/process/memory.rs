//! Another process's memory: copied by `process_vm_readv`, written by `process_vm_writev`.

use std::io;

use crate::error::ReadError;

/// Most spans in one system call (`IOV_MAX`).
const MAX_SPANS: usize = 1024;

/// A range of another process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
}

/// The memory of one process.
#[derive(Debug, Clone)]
pub struct Memory {
    pid: u32,
}

impl Memory {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid }
    }

    /// Copies `into.len()` bytes from `addr`.
    ///
    /// # Errors
    ///
    /// Fails when part of the range is not mapped, or the process may not be read.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let span = Span { addr, len: into.len() };
        if self.read_spans(&[span], into)?[0] {
            Ok(())
        } else {
            Err(ReadError::Memory {
                pid: self.pid,
                addr,
                len: span.len,
                source: io::Error::from_raw_os_error(libc::EFAULT),
            })
        }
    }

    /// Copies spans into `into`, one after the other, in order. Tells for each whether all of
    /// it could be read; one that has vanished does not stop the others.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone or may not be read.
    ///
    /// # Panics
    ///
    /// When `into` is shorter than the spans together.
    pub fn read_spans(&self, spans: &[Span], into: &mut [u8]) -> Result<Vec<bool>, ReadError> {
        let mut whole = vec![false; spans.len()];
        let mut next = 0;
        let mut offset = 0;
        while next < spans.len() {
            let batch = &spans[next..spans.len().min(next + MAX_SPANS)];
            let total: usize = batch.iter().map(|s| s.len).sum();
            let copied = match read_batch(self.pid, batch, &mut into[offset..offset + total]) {
                Ok(copied) => copied,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => 0,
                Err(source) => return Err(self.error(batch[0], source)),
            };
            // Whole spans that lie within what was copied; the one after them is lost.
            let mut done = 0;
            for span in batch {
                if done + span.len > copied {
                    break;
                }
                done += span.len;
                whole[next] = true;
                next += 1;
            }
            offset += done;
            if done < total {
                offset += spans[next].len;
                next += 1;
            }
        }
        Ok(whole)
    }

    /// Writes `bytes` at `addr`, with one system call if the kernel takes all of it.
    ///
    /// Pages that the process itself may not write are not written.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone or may not be written, or part of the range is not mapped
    /// or not writable; what comes before that part may have been written.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), ReadError> {
        let mut done = 0;
        while done < bytes.len() {
            let span = Span { addr: addr.wrapping_add(done as u64), len: bytes.len() - done };
            match write_at(self.pid, span.addr, &bytes[done..]) {
                Ok(0) => return Err(self.error(span, io::ErrorKind::WriteZero.into())),
                Ok(written) => done += written.min(span.len),
                Err(source) => return Err(self.error(span, source)),
            }
        }
        Ok(())
    }

    fn error(&self, span: Span, source: io::Error) -> ReadError {
        match source.raw_os_error() {
            Some(libc::ESRCH) => ReadError::NoProcess { pid: self.pid },
            Some(libc::EPERM) => ReadError::Permission { pid: self.pid, what: "memory".to_owned() },
            _ => ReadError::Memory { pid: self.pid, addr: span.addr, len: span.len, source },
        }
    }
}

/// One system call. Returns the bytes copied, which end at the first span that failed.
fn read_batch(pid: u32, spans: &[Span], into: &mut [u8]) -> io::Result<usize> {
    let total: usize = spans.iter().map(|s| s.len).sum();
    assert!(spans.len() <= MAX_SPANS && total <= into.len());
    let remote: Vec<libc::iovec> = spans
        .iter()
        .map(|s| libc::iovec { iov_base: s.addr as *mut libc::c_void, iov_len: s.len })
        .collect();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: total };
    // SAFETY:
    // - `local` is one entry that covers `total <= into.len()` bytes, borrowed mutably.
    // - `remote` has `remote.len()` entries; the addresses in it are of the other process,
    //   and the kernel checks them there.
    let copied = unsafe {
        libc::process_vm_readv(
            pid.cast_signed(),
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// One system call. Returns the bytes written.
fn write_at(pid: u32, addr: u64, bytes: &[u8]) -> io::Result<usize> {
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY:
    // - `local` is one entry that covers `bytes`, borrowed for the call; the kernel only reads it.
    // - `remote` is one entry; its address is of the other process, and the kernel checks it
    //   there, against what that process may write.
    let written = unsafe {
        libc::process_vm_writev(pid.cast_signed(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_span_does_not_stop_the_others() {
        let memory = Memory::new(std::process::id());
        let data: Vec<u8> = (0..=255).collect();
        let at = data.as_ptr() as u64;
        let spans: Vec<Span> = (0..3000_u64)
            .map(|i| Span { addr: if i % 7 == 3 { 8 } else { at + i % 200 }, len: 5 })
            .collect();
        let mut into = vec![0; 5 * spans.len()];
        let whole = memory.read_spans(&spans, &mut into).unwrap();
        for (i, got) in into.chunks(5).enumerate() {
            assert_eq!(whole[i], i % 7 != 3);
            if whole[i] {
                assert_eq!(got, &data[i % 200..i % 200 + 5]);
            }
        }
    }

    #[test]
    fn unmapped_memory_and_absent_processes_are_errors() {
        let memory = Memory::new(std::process::id());
        let mut into = [0; 8];
        assert!(matches!(memory.read(16, &mut into), Err(ReadError::Memory { .. })));
        assert!(matches!(memory.read(u64::MAX - 3, &mut into), Err(ReadError::Memory { .. })));
        assert!(matches!(memory.write(16, &[1]), Err(ReadError::Memory { .. })));
        assert!(matches!(memory.write(u64::MAX - 3, &[1; 8]), Err(ReadError::Memory { .. })));
        let memory = Memory::new(0x7fff_fff0);
        assert!(matches!(memory.read(16, &mut into), Err(ReadError::NoProcess { .. })));
        assert!(matches!(memory.write(16, &[1]), Err(ReadError::NoProcess { .. })));
    }
}
