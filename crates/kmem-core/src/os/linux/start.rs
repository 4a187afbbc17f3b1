//! The process's environment, thread pointer, rseq area and files of `/proc`.
//!
//! The first allocation may come from the dynamic loader, before the C library has initialised
//! itself. So symbols of the C library are weak, and their addresses are tested.
//!
//! Context: any, signal handlers included.

use core::ffi::CStr;

use super::descriptor::Descriptor;
use super::syscall::sys;
use crate::os::HugePages;
use crate::units::PAGE_SIZE;

/// `prctl(2)`: copies the auxiliary vector. Linux 6.4 and later.
const PR_GET_AUXV: i32 = 0x4155_5856;

/// Address of a symbol that need not exist; null if it does not, or is not relocated yet.
///
/// The reference is weak in every object file that holds it, and goes through an alias. With link
/// time optimisation the program may define the symbol in the same object file, where `.weak` would
/// be refused.
#[cfg(target_arch = "x86_64")]
macro_rules! weak {
    ($name:literal) => {{
        let at: usize;
        // SAFETY: reads one slot of the global offset table.
        unsafe {
            core::arch::asm!(
                concat!(".weakref kmem_weak_", $name, ", ", $name),
                concat!("mov {0}, [rip + kmem_weak_", $name, "@GOTPCREL]"),
                out(reg) at, options(nostack, pure, readonly, preserves_flags)
            );
        }
        at
    }};
}
/// Address of a symbol that need not exist: as on x86-64.
#[cfg(target_arch = "aarch64")]
macro_rules! weak {
    ($name:literal) => {{
        let at: usize;
        // SAFETY: reads one slot of the global offset table.
        unsafe {
            core::arch::asm!(
                concat!(".weakref kmem_weak_", $name, ", ", $name),
                concat!("adrp {0}, :got:kmem_weak_", $name),
                concat!("ldr {0}, [{0}, :got_lo12:kmem_weak_", $name, "]"),
                out(reg) at, options(nostack, pure, readonly, preserves_flags)
            );
        }
        at
    }};
}

pub(super) use weak;

/// Value of the thread pointer, which differs between live threads.
#[inline]
pub fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: reads a register, or the first word of the thread control block, which points to
    // itself.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov {}, fs:0",
            out(reg) tp,
            options(nostack, pure, readonly, preserves_flags)
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) tp,
            options(nostack, pure, nomem, preserves_flags)
        );
    }
    tp
}

/// The calling thread's number for the C library (`pthread_self`).
#[inline]
pub fn thread_number() -> usize {
    if cfg!(target_arch = "x86_64") {
        return thread_pointer();
    }
    // SAFETY: the function has no requirements.
    unsafe { libc::pthread_self() as usize }
}

/// Offset in bytes of the rseq area from the thread pointer, and the CPU that the thread runs on.
/// `None`: glibc (2.35 or later) registered no area.
///
/// glibc reports a size of zero if it did not register one, or was told not to
/// (`GLIBC_TUNABLES=glibc.pthread.rseq=0`).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn glibc_rseq() -> Option<(isize, u32)> {
    let (offset, size) =
        (weak!("__rseq_offset") as *const isize, weak!("__rseq_size") as *const u32);
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: both are objects of the C library, constant since before the first thread.
    let (offset, size) = unsafe { (*offset, *size) };
    if size == 0 {
        return None;
    }
    // The cpu_id of a thread whose registration failed is negative.
    let cpu_id = (thread_pointer() as isize + offset + 4) as *const i32;
    // SAFETY: a word of the thread's rseq area, which glibc allocated.
    let cpu_id = unsafe { cpu_id.read_volatile() };
    u32::try_from(cpu_id).ok().map(|cpu| (offset, cpu))
}

/// `None`: there are restartable sections for x86-64 and AArch64 only; elsewhere a lock is used.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn glibc_rseq() -> Option<(isize, u32)> {
    None
}

/// Offset in bytes of the rseq area from the thread pointer. `None`: glibc registered none.
pub fn glibc_rseq_offset() -> Option<isize> {
    glibc_rseq().map(|(offset, _)| offset)
}

/// CPU that the calling thread runs on. `None`: glibc registered no rseq area for it.
pub(super) fn rseq_cpu() -> Option<u32> {
    glibc_rseq().map(|(_, cpu)| cpu)
}

/// Reads the beginning of a file into `buf`. Returns the number of bytes read, 0 on failure.
/// Does not block on a FIFO.
pub fn read_file(path: &CStr, buf: &mut [u8]) -> usize {
    let Ok(file) = Descriptor::open(path, libc::O_RDONLY | libc::O_NONBLOCK) else { return 0 };
    let mut len = 0;
    loop {
        match file.read(&mut buf[len..]) {
            0 => return len,
            got => len += got,
        }
    }
}

/// Reads a file with one number. `None`: there is no file, or no number in it.
pub(super) fn read_number(path: &CStr) -> Option<usize> {
    let mut text = [0; 24];
    let len = read_file(path, &mut text);
    core::str::from_utf8(text[..len].trim_ascii()).ok()?.parse().ok()
}

/// Pages of the process that are in memory: the second number of `/proc/self/statm`. `None`: there
/// is no such file. Linux counts by batches on each CPU, so the number is a little old.
pub(super) fn resident_pages() -> Option<u64> {
    let mut text = [0; 64];
    let file = Descriptor::open(c"/proc/self/statm", libc::O_RDONLY).ok()?;
    let len = file.read(&mut text);
    let second = text[..len].split(|&byte| byte == b' ').nth(1)?;
    core::str::from_utf8(second).ok()?.parse().ok()
}

/// Copies memory of this process at `at`, which may be unmapped, into `buf`. Returns the number of
/// bytes that could be read.
pub fn peek(at: usize, buf: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // The kernel reads no part of an entry of which one page is missing. So the part in the first
    // page has an entry of its own.
    let first = (PAGE_SIZE - at % PAGE_SIZE).min(buf.len());
    let iovec = |at: usize, len| libc::iovec { iov_base: at as *mut _, iov_len: len };
    let remote = [iovec(at, first), iovec(at.wrapping_add(first), buf.len() - first)];
    // SAFETY: the kernel writes only into `buf`; it fails where the other memory is unmapped.
    let got = unsafe {
        let pid = sys!(libc::SYS_getpid);
        sys!(libc::SYS_process_vm_readv, pid, &raw const local, 1, remote.as_ptr(), 2, 0)
    };
    usize::try_from(got).unwrap_or(0)
}

/// Value of the auxiliary vector (`getauxval(3)`), 0 if it has none. `None`: the C library has no
/// such function, or is not relocated yet.
pub fn auxiliary(kind: libc::c_ulong) -> Option<usize> {
    let getauxval = weak!("getauxval");
    if getauxval == 0 {
        return None;
    }
    // SAFETY: the C library's function, which only reads the vector.
    let getauxval =
        unsafe { core::mem::transmute::<usize, extern "C" fn(libc::c_ulong) -> usize>(getauxval) };
    Some(getauxval(kind))
}

/// Returns whether the program has more rights than the user who started it: set-user-ID,
/// set-group-ID, file capabilities, or a rule of a security module. The kernel says so in the
/// auxiliary vector (`AT_SECURE`).
pub fn secure() -> bool {
    if let Some(secure) = auxiliary(libc::AT_SECURE) {
        return secure != 0;
    }
    let mut vector = [0; 1024];
    // SAFETY: the kernel writes at most the given length into `vector`.
    let len =
        unsafe { sys!(libc::SYS_prctl, PR_GET_AUXV, vector.as_mut_ptr(), vector.len(), 0, 0) };
    // Kernels before 6.4 have the vector in /proc only.
    let len = match usize::try_from(len) {
        Ok(len) => len.min(vector.len()),
        Err(_) => read_file(c"/proc/self/auxv", &mut vector),
    };
    if let Some(secure) = entry_of(&vector[..len], libc::AT_SECURE) {
        return secure != 0;
    }
    // Without /proc: the kernel takes the mark "may be dumped" from a program that gains rights.
    // SAFETY: these calls only return numbers.
    unsafe {
        sys!(libc::SYS_getuid) != sys!(libc::SYS_geteuid)
            || sys!(libc::SYS_getgid) != sys!(libc::SYS_getegid)
            || sys!(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0) != 1
    }
}

/// Highest number of a CPU plus one, counting CPUs that may come online later; 0 if the kernel does
/// not say.
pub fn possible_cpus() -> u32 {
    let mut text = [0; 64];
    let len = read_file(c"/sys/devices/system/cpu/possible", &mut text);
    super::nodes::highest(&text[..len]).map_or(0, |last| last.saturating_add(1))
}

/// Most mappings that a process may have.
pub fn max_mappings() -> usize {
    read_number(c"/proc/sys/vm/max_map_count").unwrap_or(65_530)
}

/// Memory that the kernel backs with huge pages.
pub fn huge_pages() -> HugePages {
    let mut text = [0; 64];
    let len = read_file(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut text);
    let selected = text[..len].split(|&byte| byte == b'[' || byte == b']').nth(1);
    match selected {
        Some(b"madvise") => HugePages::OnAdvice,
        Some(b"always") => HugePages::Always,
        _ => HugePages::Never,
    }
}

/// Value of an entry of the auxiliary vector. `None`: there is no such entry.
fn entry_of(vector: &[u8], key: libc::c_ulong) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let entry = vector.chunks_exact(16).find(|entry| word(entry) == Some(key));
    word(&entry?[8..])
}

/// Copies the value of environment variable `name` (given with its `=`) into `buf`. Returns the
/// value's length in bytes, which exceeds that of `buf` if the value does not fit; then nothing is
/// copied. `None`: the variable is not set. Takes no lock of the C library.
pub fn environment(name: &[u8], buf: &mut [u8]) -> Option<usize> {
    let environ = weak!("environ") as *const *const *const u8;
    if environ.is_null() {
        return environment_from_proc(name, buf);
    }
    // SAFETY: an object of the C library.
    let list = unsafe { *environ };
    if list.is_null() {
        return environment_from_proc(name, buf);
    }
    let mut at = list;
    loop {
        // SAFETY: the list goes on up to its null pointer.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry that is not null is a C string.
        let text = unsafe { CStr::from_ptr(entry.cast()) }.to_bytes();
        if let Some(value) = text.strip_prefix(name) {
            if let Some(room) = buf.get_mut(..value.len()) {
                room.copy_from_slice(value);
            }
            return Some(value.len());
        }
        at = at.wrapping_add(1);
    }
}

/// Reads the variable from `/proc/self/environ`, for calls before the C library has initialised
/// itself; see [`environment`]. A value that does not fit counts as not set.
fn environment_from_proc(name: &[u8], buf: &mut [u8]) -> Option<usize> {
    let file = Descriptor::open(c"/proc/self/environ", libc::O_RDONLY).ok()?;
    let mut matched = 0; // Bytes of `name` seen; usize::MAX: not this entry.
    let mut value = 0;
    let mut chunk = [0u8; 512];
    loop {
        let got = file.read(&mut chunk);
        if got == 0 {
            return None;
        }
        for &byte in &chunk[..got] {
            if byte == 0 {
                if matched == name.len() {
                    return Some(value);
                }
                (matched, value) = (0, 0);
            } else if matched == name.len() {
                *buf.get_mut(value)? = byte;
                value += 1;
            } else if matched != usize::MAX {
                matched = if byte == name[matched] { matched + 1 } else { usize::MAX };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::entry_of;

    #[test]
    fn an_entry_of_the_auxiliary_vector_is_found() {
        let vector: [u64; 6] = [6, 4096, 23, 1, 0, 0];
        let bytes = vector.map(u64::to_ne_bytes);
        let bytes = bytes.as_flattened();
        assert_eq!(entry_of(bytes, 23), Some(1));
        assert_eq!(entry_of(bytes, 11), None);
        assert_eq!(entry_of(&bytes[..8], 6), None);
        assert_eq!(entry_of(&[], 23), None);
    }
}
