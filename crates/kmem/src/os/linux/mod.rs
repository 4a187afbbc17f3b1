//! Linux: raw system calls, glibc's rseq registration, limits of the process.

use core::ptr::NonNull;

use super::{Budget, Platform};
use crate::root;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::units::{FRAME_SIZE, PAGE_SIZE};

pub mod call;
pub mod diagnose;
mod file;
pub mod start;
pub mod syscall;
use syscall::sys;

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const MADV_WIPEONFORK: i32 = 18;
const MREMAP_DONTUNMAP: i32 = 4;
const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

/// The Linux platform. Holds no state but what it learned of the kernel.
pub struct Linux {
    /// CPU slots, 0 until asked for.
    cpus: AtomicU32,
    /// Nodes, 0 until asked for.
    nodes: AtomicU32,
    /// Shared memory, of which only removing it drops the contents: from, to.
    shared: AtomicUsize,
    shared_end: AtomicUsize,
}

impl Linux {
    /// A platform value; the first call that needs it asks the kernel.
    pub const fn new() -> Self {
        Self {
            cpus: AtomicU32::new(0),
            nodes: AtomicU32::new(0),
            shared: AtomicUsize::new(0),
            shared_end: AtomicUsize::new(0),
        }
    }

    fn cpus(&self) -> u32 {
        let known = self.cpus.load(Ordering::Relaxed);
        if known != 0 { known } else { self.count_cpus() }
    }

    /// Apart, as the mask takes much of a stack.
    #[cold]
    #[inline(never)]
    fn count_cpus(&self) -> u32 {
        let mut mask = [0u64; 128];
        // SAFETY: the kernel writes at most the given length into `mask`.
        let got =
            unsafe { sys!(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
        let count = mask.iter().map(|w| w.count_ones()).sum::<u32>();
        let cpus = if got > 0 && count > 0 { count } else { 1 };
        self.cpus.store(cpus, Ordering::Relaxed);
        cpus
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

/// The value of a successful mmap.
fn mapped(ret: isize) -> Option<NonNull<u8>> {
    if (-4095..0).contains(&ret) { None } else { NonNull::new(ret as *mut u8) }
}

/// A resource limit, `usize::MAX` when there is none.
fn limit(resource: u32) -> usize {
    let mut lim = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel fills `lim`.
    unsafe { sys!(libc::SYS_prlimit64, 0, resource, 0, &raw mut lim) };
    if lim.rlim_cur == libc::RLIM_INFINITY { usize::MAX } else { lim.rlim_cur as usize }
}

/// Bytes of memory and swap of the machine.
fn machine_memory() -> usize {
    // SAFETY: all-zero is a valid sysinfo, and the kernel fills it.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { sys!(libc::SYS_sysinfo, &raw mut info) } < 0 {
        return 16 << 30;
    }
    let unit = (info.mem_unit as usize).max(1);
    (info.totalram as usize).saturating_add(info.totalswap as usize).saturating_mul(unit)
}

// SAFETY: mmap with no address hint returns fresh ranges; mprotect and madvise act on exactly
// the range given.
unsafe impl Platform for Linux {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let slack = align.saturating_sub(PAGE_SIZE);
        let span = bytes.checked_add(slack)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = mapped(unsafe {
            sys!(
                libc::SYS_mmap,
                0,
                span,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                usize::MAX,
                0
            )
        })?;
        let start = at.as_ptr() as usize;
        let aligned = start.next_multiple_of(align);
        // A trim that fails leaves a little address space unused.
        let (head, tail) = (aligned - start, start + span - (aligned + bytes));
        if head > 0 {
            // SAFETY: our own fresh mapping, in front of the aligned part.
            unsafe { sys!(libc::SYS_munmap, start, head) };
        }
        if tail > 0 {
            // SAFETY: our own fresh mapping, behind the aligned part.
            unsafe { sys!(libc::SYS_munmap, aligned + bytes, tail) };
        }
        // Nothing is in it yet: a core file that holds a zone's whole address space helps nobody.
        // SAFETY: our own fresh mapping; affects core files only.
        unsafe { sys!(libc::SYS_madvise, aligned, bytes, libc::MADV_DONTDUMP) };
        NonNull::new(aligned as *mut u8)
    }

    unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller gives up the range. A refusal (too many mappings) loses address
        // space only, so it is not an error.
        unsafe { sys!(libc::SYS_munmap, at.as_ptr(), bytes) };
    }

    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: a range of a reservation, by the caller's promise.
        unsafe {
            let done = sys!(libc::SYS_mprotect, at.as_ptr(), bytes, PROT_RW) == 0;
            if done {
                sys!(libc::SYS_madvise, at.as_ptr(), bytes, libc::MADV_DODUMP);
            }
            done
        }
    }

    unsafe fn protect(&self, at: NonNull<u8>, bytes: usize, accessible: bool) -> bool {
        let access = if accessible { PROT_RW } else { libc::PROT_NONE };
        // SAFETY: a committed range, by the caller's promise.
        unsafe { sys!(libc::SYS_mprotect, at.as_ptr(), bytes, access) == 0 }
    }

    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let start = at.as_ptr() as usize;
        let shared = self.shared.load(Ordering::Acquire);
        let is_shared = (shared..self.shared_end.load(Ordering::Relaxed)).contains(&start);
        let advice = if is_shared && shared != 0 { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        // SAFETY: contents not needed, by the caller's promise.
        unsafe { sys!(libc::SYS_madvise, start, bytes, advice) == 0 }
    }

    fn can_protect(&self) -> bool {
        true
    }

    unsafe fn advise_huge(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: advice on a range of ours; a refusal costs speed only.
        unsafe { sys!(libc::SYS_madvise, at.as_ptr(), bytes, libc::MADV_HUGEPAGE) };
    }

    unsafe fn remap(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
        // The old place stays mapped, so that nobody else's mapping can come between.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: ranges of ours, by the caller's promise.
        unsafe { sys!(libc::SYS_mremap, from, bytes, bytes, flags, to) == to as isize }
    }

    unsafe fn share(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: a descriptor of our own; an uncommitted range of ours.
        unsafe {
            let fd = sys!(libc::SYS_memfd_create, c"kmem-shared".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return false;
            }
            let at = at.as_ptr();
            let done = sys!(libc::SYS_ftruncate, fd, bytes) == 0
                && sys!(libc::SYS_mmap, at, bytes, libc::PROT_NONE, flags, fd, 0) == at as isize
                && sys!(libc::SYS_madvise, at, bytes, libc::MADV_DONTFORK) == 0;
            sys!(libc::SYS_close, fd);
            if done {
                self.shared_end.store(at as usize + bytes, Ordering::Relaxed);
                self.shared.store(at as usize, Ordering::Release);
            }
            done
        }
    }

    unsafe fn alias(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
        // An old length of zero makes a second mapping of shared memory.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: ranges of ours, by the caller's promise.
        unsafe { sys!(libc::SYS_mremap, from, 0, bytes, flags, to) == to as isize }
    }

    unsafe fn unalias(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let at = at.as_ptr();
        // SAFETY: a range of ours that nobody uses.
        unsafe { sys!(libc::SYS_mmap, at, bytes, PROT_RW, flags, usize::MAX, 0) == at as isize }
    }

    fn max_mappings(&self) -> usize {
        let mut text = [0; 24];
        let len = start::read_file(c"/proc/sys/vm/max_map_count", &mut text);
        let number = core::str::from_utf8(text[..len].trim_ascii()).ok();
        number.and_then(|digits| digits.parse().ok()).unwrap_or(65_530)
    }

    fn allows(&self, committed: usize) -> bool {
        committed <= limit(libc::RLIMIT_AS)
    }

    fn budget(&self) -> Budget {
        let memory = machine_memory();
        let ample = memory.saturating_mul(4).next_power_of_two().clamp(16 << 30, 16 << 40);
        // Under a limit of address space the program needs some for itself.
        let space = limit(libc::RLIMIT_AS);
        let share = |part: usize| (space / part).clamp(4 << 20, ample) & !(FRAME_SIZE - 1);
        let further = share(8).min(1 << 30);
        let memory = memory.min(limit(libc::RLIMIT_DATA)).min(space / 4);
        Budget { first_zone: share(4), min_zone: further, memory, cpus: self.cpus() }
    }

    fn possible_cpus(&self) -> u32 {
        let mut text = [0; 64];
        let len = start::read_file(c"/sys/devices/system/cpu/possible", &mut text);
        // `0-7`, or lists of such: the last number counts.
        let last = text[..len].trim_ascii().rsplit(|b| !b.is_ascii_digit()).next();
        let number = last.and_then(|digits| core::str::from_utf8(digits).ok()?.parse::<u32>().ok());
        number.map_or(0, |last| last.saturating_add(1)).max(self.cpus())
    }

    fn nodes(&self) -> u32 {
        let known = self.nodes.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let mut list = [0; 256];
        let len = start::read_file(c"/sys/devices/system/node/online", &mut list);
        let nodes = start::highest(&list[..len]).map_or(1, |node| node.saturating_add(1));
        self.nodes.store(nodes, Ordering::Relaxed);
        nodes
    }

    fn node(&self) -> u32 {
        let (mut cpu, mut node) = (0u32, 0u32);
        // SAFETY: the kernel fills both.
        let done = unsafe { sys!(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0) } == 0;
        if done && node < self.nodes() { node } else { 0 }
    }

    unsafe fn prefer_node(&self, at: NonNull<u8>, bytes: usize, node: u32) {
        let mut mask = [0u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else { return };
        *word = 1 << (node % 64);
        let bits = size_of_val(&mask) * 8;
        // SAFETY: a range of ours; affects only where its pages come from. A refusal costs speed.
        unsafe {
            sys!(libc::SYS_mbind, at.as_ptr(), bytes, libc::MPOL_PREFERRED, mask.as_ptr(), bits, 0)
        };
    }

    fn configuration(&self, buf: &mut [u8]) -> Option<usize> {
        let len = start::environment(b"KMEM_CONF=", buf)?;
        (!start::secure()).then_some(len)
    }

    fn slot_hint(&self) -> u32 {
        // Thread control blocks are at least a page apart.
        let tp = start::thread_pointer() >> 12;
        (tp.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % self.cpus()
    }

    fn now_ms(&self) -> u64 {
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel fills `ts`.
        unsafe { sys!(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC_COARSE, &raw mut ts) };
        (ts.tv_sec as u64).wrapping_mul(1000) + ts.tv_nsec as u64 / 1_000_000
    }

    fn ticks(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU has it.
        return unsafe { core::arch::x86_64::_rdtsc() };
        #[cfg(target_arch = "aarch64")]
        {
            let ticks: u64;
            // SAFETY: readable in user mode on Linux.
            unsafe {
                core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack))
            };
            // Between 24 MHz and 1 GHz; scaled as the slowest.
            ticks << 5
        }
    }

    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>> {
        let mut name = [0u8; 32];
        name[..root::MAPPING_NAME.len()].copy_from_slice(root::MAPPING_NAME.as_bytes());
        // SAFETY: `name` is NUL-terminated.
        let fd = unsafe { sys!(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a descriptor of our own; a new mapping.
        let at = unsafe {
            if sys!(libc::SYS_ftruncate, fd, bytes) == 0 {
                mapped(sys!(libc::SYS_mmap, 0, bytes, PROT_RW, libc::MAP_PRIVATE, fd, 0))
            } else {
                None
            }
        };
        // SAFETY: our own descriptor, used no more.
        unsafe { sys!(libc::SYS_close, fd) };
        at
    }

    unsafe fn wipe_on_fork(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: by the caller's promise; only affects children.
        unsafe { sys!(libc::SYS_madvise, at.as_ptr(), bytes, MADV_WIPEONFORK) == 0 }
    }

    fn fence_cpus(&self) -> bool {
        // SAFETY: membarrier touches no memory of ours. It asks to be registered first, which
        // is kept by the process, so the first try mostly succeeds.
        unsafe {
            if sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0 {
                return true;
            }
            sys!(libc::SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0
                && sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0
        }
    }

    fn barrier(&self) -> bool {
        // SAFETY: as for `fence_cpus`.
        unsafe {
            sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) == 0
                || sys!(libc::SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
                    && sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) == 0
        }
    }

    fn rseq_offset(&self) -> Option<isize> {
        start::glibc_rseq_offset()
    }

    fn peek(&self, at: usize, buf: &mut [u8]) -> usize {
        start::peek(at, buf)
    }

    fn map_file(
        &self,
        path: &[u8],
        bytes: usize,
        decide: impl Fn(&[u8]) -> super::File,
    ) -> Result<NonNull<u8>, &'static str> {
        file::map(path, bytes, decide)
    }

    fn process(&self) -> u32 {
        file::process()
    }

    fn wall_ns(&self) -> u64 {
        file::wall_ns()
    }

    fn executable(&self, buf: &mut [u8]) -> usize {
        file::executable(buf)
    }

    fn mappings(&self, buf: &mut [u8]) -> usize {
        file::mappings(buf)
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        // Memory may come back by other ways than the one that wakes.
        let patience = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a word and a time of ours.
        unsafe { sys!(libc::SYS_futex, word.as_ptr(), op, seen, &raw const patience) };
    }

    fn wake(&self, word: &AtomicU32) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: only the word's address is used.
        unsafe { sys!(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
    }

    fn signal_event(&self, fd: u32) {
        let one = 1u64;
        // SAFETY: reads eight bytes. A descriptor that is none any more is the owner's mistake.
        unsafe { sys!(libc::SYS_write, fd, &raw const one, 8) };
    }

    fn give_way(&self) {
        // SAFETY: no memory is involved.
        unsafe { sys!(libc::SYS_sched_yield) };
    }

    fn print(&self, text: &[u8]) {
        diagnose::print(text);
    }

    fn fatal(&self) -> ! {
        diagnose::fatal()
    }
}
