//! Memory of Linux: anonymous mappings, reserved without access and made accessible on demand.

use core::ffi::CStr;
use core::ptr::NonNull;

use kmem_layout::root::{MAPPING_NAME, ZERO_FILE, ZERO_OFFSET};

use super::descriptor::Descriptor;
use super::sandbox::Question;
use super::syscall::sys;
use super::{Linux, cgroup, marks, start};
use crate::os::{Access, Budget, HugePages, Memory};
use crate::sync::Ordering;
use crate::units::{PAGE_SIZE, PAGEBLOCK_SIZE};

pub(super) const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const MADV_WIPEONFORK: i32 = 18;
const MREMAP_DONTUNMAP: i32 = 4;

/// Address in the return value of mmap; `None` for an error.
pub(super) fn mapped(ret: isize) -> Option<NonNull<u8>> {
    if (-4095..0).contains(&ret) { None } else { NonNull::new(ret as *mut u8) }
}

/// Soft limit of a resource; `usize::MAX` if there is none.
pub(super) fn limit(resource: u32) -> usize {
    let mut lim = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel fills `lim`.
    unsafe { sys!(libc::SYS_prlimit64, 0, resource, 0, &raw mut lim) };
    if lim.rlim_cur == libc::RLIM_INFINITY { usize::MAX } else { lim.rlim_cur as usize }
}

/// Bytes of memory and swap of a machine that does not say.
pub(super) const UNKNOWN_MEMORY: usize = 16 << 30;

/// The device of zeroes. `None`: what has its name is something else.
fn zero_device() -> Option<Descriptor> {
    let file = Descriptor::open(ZERO_FILE, libc::O_RDONLY | libc::O_NONBLOCK).ok()?;
    let status = file.status()?;
    let is_device = status.st_mode & libc::S_IFMT == libc::S_IFCHR;
    (is_device && status.st_rdev == libc::makedev(1, 5)).then_some(file)
}

impl Linux {
    /// Bytes of memory and swap of the machine.
    pub(super) fn machine_memory(&self) -> usize {
        let known = self.memory.load(Ordering::Relaxed);
        if known != 0 { known } else { self.ask_for_memory() }
    }

    /// Bytes that the process's control groups may have.
    fn group_memory(&self) -> usize {
        if self.group_memory.load(Ordering::Relaxed) == 0 {
            self.group_memory.store(cgroup::memory_limit(), Ordering::Relaxed);
        }
        self.group_memory.load(Ordering::Relaxed)
    }

    #[cold]
    fn ask_for_memory(&self) -> usize {
        // SAFETY: all-zero is a valid sysinfo, and the kernel fills it.
        let (info, result): (libc::sysinfo, _) = unsafe {
            let mut info = core::mem::zeroed();
            let result = sys!(libc::SYS_sysinfo, &raw mut info);
            (info, result)
        };
        let bytes = if result < 0 {
            UNKNOWN_MEMORY
        } else {
            let unit = (info.mem_unit as usize).max(1);
            (info.totalram as usize).saturating_add(info.totalswap as usize).saturating_mul(unit)
        };
        self.memory.store(bytes, Ordering::Relaxed);
        bytes
    }
}

// SAFETY: mmap without an address hint returns fresh ranges; mprotect and madvise act on exactly
// the range given.
unsafe impl Memory for Linux {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let slack = align.saturating_sub(PAGE_SIZE);
        let span = bytes.checked_add(slack)?;
        let accessible = self.accessible.is_wanted();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = mapped(unsafe {
            let access = if accessible { PROT_RW } else { libc::PROT_NONE };
            sys!(libc::SYS_mmap, 0, span, access, ANONYMOUS, usize::MAX, 0)
        })?;
        let start = at.as_ptr() as usize;
        let aligned = start.next_multiple_of(align);
        // A trim that fails leaves a little address space unused.
        let end = aligned + bytes;
        for (from, len) in [(start, aligned - start), (end, start + span - end)] {
            if len > 0 {
                // SAFETY: a part of the fresh mapping in front of the reservation or behind it,
                // which nothing uses.
                unsafe { sys!(libc::SYS_munmap, from, len) };
            }
        }
        self.own.add(aligned, bytes);
        // Reserved memory is empty and large, so core files should not contain it.
        // SAFETY: the fresh mapping. `release` removes its entry before the range.
        unsafe {
            if accessible {
                // Without an entry, the commit fails.
                self.accessible.add(aligned, bytes);
            } else {
                sys!(libc::SYS_madvise, aligned, bytes, libc::MADV_DONTDUMP);
            }
        }
        NonNull::new(aligned as *mut u8)
    }

    unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        self.accessible.remove(at.as_ptr() as usize, bytes);
        self.own.remove(at.as_ptr() as usize, bytes);
        // A refusal (too many mappings) only loses address space.
        // SAFETY: the range is a reservation that nothing uses, by the contract.
        unsafe { sys!(libc::SYS_munmap, at.as_ptr(), bytes) };
    }

    fn page_bytes(&self) -> usize {
        start::auxiliary(libc::AT_PAGESZ).filter(|&bytes| bytes != 0).unwrap_or(PAGE_SIZE)
    }

    fn releases_parts(&self) -> bool {
        // Their entries hold for whole reservations.
        self.accessible.is_empty()
    }

    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        if self.accessible.has(at.as_ptr() as usize) {
            return true;
        }
        // SAFETY: a range of a reservation, by the contract.
        unsafe {
            let done = sys!(libc::SYS_mprotect, at.as_ptr(), bytes, PROT_RW) == 0;
            if done {
                sys!(libc::SYS_madvise, at.as_ptr(), bytes, libc::MADV_DODUMP);
            }
            self.accessible.note(done);
            done
        }
    }

    fn reserve_shown(&self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        // Core files leave memory out that was never written.
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = mapped(unsafe {
            sys!(libc::SYS_mmap, 0, bytes, libc::PROT_READ, ANONYMOUS, usize::MAX, 0)
        })?;
        self.own.add(at.as_ptr() as usize, bytes);
        Some((at, true))
    }

    fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        debug_assert!(align <= PAGE_SIZE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at =
            mapped(unsafe { sys!(libc::SYS_mmap, 0, bytes, PROT_RW, ANONYMOUS, usize::MAX, 0) })?;
        self.own.add(at.as_ptr() as usize, bytes);
        Some(at)
    }

    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let start = at.as_ptr() as usize;
        let shared = self.shared.load(Ordering::Acquire);
        let is_shared = (shared..self.shared_end.load(Ordering::Relaxed)).contains(&start);
        let advice = if is_shared && shared != 0 { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        // SAFETY: a committed range whose contents are not needed, by the contract.
        unsafe { sys!(libc::SYS_madvise, start, bytes, advice) == 0 }
    }

    fn budget(&self) -> Budget {
        let memory = self.machine_memory();
        let ample = memory.saturating_mul(4).next_power_of_two().clamp(16 << 30, 16 << 40);
        // The tables of a zone are committed, so a limit of data counts them.
        let data = self.answer(Question::Data);
        let ample = ample.min(data.max(16 << 20));
        // Under a limit of address space, leave most of it to the program's other mappings.
        let space = self.answer(Question::AddressSpace);
        let share = |part: usize| (space / part).clamp(4 << 20, ample) & !(PAGEBLOCK_SIZE - 1);
        let further = share(8).min(1 << 30);
        let memory = memory.min(data).min(space / 4);
        let group = self.group_memory();
        Budget {
            first_zone: share(4),
            min_zone: further,
            areas: share(4),
            memory: memory.min(group),
            cpus: self.cpus(),
            scarce: space != usize::MAX,
            limit: if group < self.machine_memory() { group } else { usize::MAX },
        }
    }

    fn allows(&self, committed: usize) -> bool {
        committed <= self.answer(Question::AddressSpace)
    }

    /// The kernel's heuristic: in mode 0, a mapping of more than all memory and swap is refused
    /// (`__vm_enough_memory` in mm/util.c). Reservations are not counted, so it is applied here.
    fn grants(&self, bytes: usize) -> bool {
        if bytes <= self.machine_memory() {
            return true;
        }
        let mut mode = [0];
        if !self.is_in_sandbox() {
            start::read_file(c"/proc/sys/vm/overcommit_memory", &mut mode);
        }
        mode == *b"1"
    }

    fn can_protect(&self) -> bool {
        true
    }

    unsafe fn protect(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool {
        let (call, argument) = match access {
            Access::All => (libc::SYS_mprotect, PROT_RW),
            Access::None => (libc::SYS_mprotect, libc::PROT_NONE),
            Access::Marked if !self.marks.may_be_set(self) => return false,
            Access::Marked => (libc::SYS_madvise, marks::INSTALL),
            Access::Unmarked if !self.marks.are_set() => return true,
            Access::Unmarked if self.is_in_sandbox() => return false,
            Access::Unmarked => (libc::SYS_madvise, marks::REMOVE),
        };
        // SAFETY: a committed range that is not used while inaccessible, and whose contents are not
        // needed if it is marked, by the contract.
        let done = unsafe {
            let done = sys!(call, at.as_ptr(), bytes, argument) == 0;
            if access == Access::Marked && !done {
                // It may have marked a part.
                sys!(libc::SYS_madvise, at.as_ptr(), bytes, marks::REMOVE);
            }
            done
        };
        if access == Access::Marked { self.marks.note(at, done) } else { done }
    }

    fn max_mappings(&self) -> usize {
        self.answer(Question::Mappings)
    }

    fn huge_pages(&self) -> HugePages {
        let answer = self.answer(Question::HugePages);
        HugePages::numbered(answer as u32).unwrap_or(HugePages::Never)
    }

    unsafe fn advise_huge(&self, at: NonNull<u8>, bytes: usize, huge: bool) {
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // A refusal only costs speed, or memory.
        // SAFETY: a range of a reservation, by the contract; the advice keeps its contents.
        unsafe { sys!(libc::SYS_madvise, at.as_ptr(), bytes, advice) };
    }

    unsafe fn remap(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
        // The old range stays mapped: otherwise another mapping could take its place.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: two committed ranges that the caller alone uses, by the contract.
        unsafe { sys!(libc::SYS_mremap, from, bytes, bytes, flags, to) == to as isize }
    }

    unsafe fn share(&self, at: NonNull<u8>, bytes: usize) -> bool {
        if self.is_in_sandbox() {
            return false;
        }
        let Some(file) = Descriptor::in_memory(c"kmem-shared", bytes) else { return false };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: a range of a reservation of which nothing is committed, by the contract.
        unsafe {
            let (at, fd) = (at.as_ptr(), file.0);
            let done = sys!(libc::SYS_mmap, at, bytes, libc::PROT_NONE, flags, fd, 0)
                == at as isize
                && sys!(libc::SYS_madvise, at, bytes, libc::MADV_DONTFORK) == 0;
            if done {
                self.shared_end.store(at as usize + bytes, Ordering::Relaxed);
                self.shared.store(at as usize, Ordering::Release);
            }
            done
        }
    }

    unsafe fn alias(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
        // An old length of zero makes a second mapping of shared memory: see mremap(2).
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: `from` is shared, and the caller alone uses `to`, by the contract.
        unsafe { sys!(libc::SYS_mremap, from, 0, bytes, flags, to) == to as isize }
    }

    unsafe fn unalias(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let flags = ANONYMOUS | libc::MAP_FIXED;
        let at = at.as_ptr();
        // SAFETY: a target of `alias` that the caller alone uses, by the contract.
        unsafe { sys!(libc::SYS_mmap, at, bytes, PROT_RW, flags, usize::MAX, 0) == at as isize }
    }

    unsafe fn prefer_node(&self, at: NonNull<u8>, bytes: usize, node: u32) {
        if self.is_in_sandbox() {
            return;
        }
        let mut mask = [0u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else { return };
        *word = 1 << (node % 64);
        let bits = size_of_val(&mask) * 8;
        // A refusal only costs speed.
        // SAFETY: a range of a reservation, by the contract; only the place of its pages changes.
        unsafe {
            sys!(libc::SYS_mbind, at.as_ptr(), bytes, libc::MPOL_PREFERRED, mask.as_ptr(), bits, 0)
        };
    }

    unsafe fn show(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // Memory that cannot be written counts towards no limit, and reads share a page of zeroes.
        // An accessible reservation reads as zero already. A commit could not undo this.
        // SAFETY: a range of a reservation of which nothing is committed, by the contract.
        self.accessible.has(at.as_ptr() as usize)
            || unsafe { sys!(libc::SYS_mprotect, at.as_ptr(), bytes, libc::PROT_READ) == 0 }
    }

    unsafe fn wipe_on_fork(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: a private, anonymous range, by the contract; only forked children see a change.
        unsafe { sys!(libc::SYS_madvise, at.as_ptr(), bytes, MADV_WIPEONFORK) == 0 }
    }

    fn has_reserved(&self, at: usize) -> bool {
        self.own.has(at)
    }

    fn reservations(&self) -> (u64, u32) {
        self.own.place()
    }

    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>> {
        if self.is_in_sandbox() {
            return None;
        }
        let mut name = [0u8; 32];
        name[..MAPPING_NAME.len()].copy_from_slice(MAPPING_NAME.as_bytes());
        let name = CStr::from_bytes_until_nul(&name).ok()?;
        let (file, offset) = match Descriptor::in_memory(name, bytes) {
            Some(file) => (file, 0),
            None => (zero_device()?, ZERO_OFFSET),
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        mapped(unsafe {
            sys!(libc::SYS_mmap, 0, bytes, PROT_RW, libc::MAP_PRIVATE, file.0, offset)
        })
    }
}
