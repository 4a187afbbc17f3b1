//! Functions by which a program maps memory itself: `mmap`, `munmap`, `mremap`, `brk`, `sbrk`,
//! `shmat`, `shmdt`. Each passes the call on, and notes the call site of memory without a file. A
//! reader outside the process joins these records with the kernel's mappings.
//!
//! The records are names and no accounts; see [`kmem_layout::mapping`]. A call that unmaps takes
//! its sequence number before the system call, and then ends only older records. Thus it never ends
//! the record of a thread that got these addresses meanwhile.
//!
//! Context: any, signal handlers and forked children included. A child inherits the table, which is
//! right for the child's mappings, too. No code here waits or allocates. It makes no system call of
//! its own, but for records of the black box. These are due before memory at its peak is unmapped.
//! Only `brk` and `sbrk` go through the C library, which knows the end of the data segment.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use kmem_core::alloc_tag::Change;
use kmem_core::os::linux::syscall::syscall;
use kmem_core::request::Caller;
use kmem_layout::mapping::{FIRST_ADDRESS, MappingRecord, MappingTable, RECORDS, record_state};

use crate::call_site::with_caller;
use crate::process::next;
use crate::{KMEM, errno, thread};

const PAGE: usize = 4096;

/// A table on pages of its own. Readers follow pointers into anonymous memory only, and the first
/// page of a library's variables may be one of its file.
#[repr(align(4096))]
struct Aligned(MappingTable);

static TABLE: &MappingTable = &ALIGNED.0;

// SAFETY: zeroed memory is a valid, empty table.
static ALIGNED: Aligned = unsafe { core::mem::zeroed() };

/// Address ranges of the records of each word of the table's `used`, which spare most calls a look
/// at most records.
static HULLS: [Hull; RECORDS / 64] = [const { Hull::new() }; RECORDS / 64];

/// A 1 bit is a word that may have records. It spares most calls a look at most hulls.
static WORDS: AtomicU64 = AtomicU64::new(0);
const _: () = assert!(RECORDS / 64 <= 64);

/// Bytes in all records.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bits of an address below those that choose a word. Records of 16 MiB go to one word, so hulls
/// are small.
const REGION_SHIFT: u32 = 24;

/// Tells readers where the records are.
pub(crate) fn start() {
    KMEM.show_mappings(TABLE);
}

/// Exports `$name`, which calls `$inner` with its six arguments and two further ones on the stack.
/// They are its return address and the address of the call's record; see [`crate::call_site`].
macro_rules! with_caller_on_stack {
    ($($name:ident => $inner:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                kmem_core::begin_record!(),
                "push rbp",
                "push [rbp + 8]",
                "call {}",
                "leave",
                ".cfi_def_cfa 7, 8",
                "ret",
                ".cfi_endproc",
                sym $inner
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                kmem_core::begin_record!(),
                "mov x6, x30",
                "mov x7, x29",
                "bl {}",
                "ldp x29, x30, [sp], #16",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                sym $inner
            );
        }
    )*};
}

with_caller_on_stack! {
    mmap => mmap_at;
    mmap64 => mmap_at;
    mremap => mremap_at;
}

with_caller! {
    brk (end: *mut c_void) => brk_at, "rsi", "rdx", "x1", "x2";
    sbrk (by: isize) => sbrk_at, "rsi", "rdx", "x1", "x2";
    shmat (id: c_int, to: *const c_void, flags: c_int) => shmat_at, "rcx", "r8", "x3", "x4";
}

/// Makes a system call about mappings. Returns its result, or -1 with `errno`.
///
/// # Safety
/// As for the system call.
#[inline(always)]
unsafe fn system(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the same contract.
    let result = unsafe { syscall(number, args) };
    if (-4095..0).contains(&result) { errno::failed(result) } else { result }
}

/// # Safety
/// As for mmap(2).
unsafe extern "C" fn mmap_at(
    to: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
    ret: usize,
    frame: usize,
) -> isize {
    if flags & libc::MAP_ANONYMOUS != 0 {
        KMEM.before_mapping(len as u64);
    }
    let before = now();
    let args = [to, len, prot as usize, flags as usize, fd as usize, offset];
    if flags & libc::MAP_FIXED != 0 {
        leaves(pages(len));
    }
    // SAFETY: the same contract.
    let start = unsafe { system(libc::SYS_mmap, args) };
    if start != -1 {
        let from = start as usize;
        let end = from + pages(len);
        // An older record of it is of a mapping that the program has unmapped by a system call.
        forget(from, end, before);
        if flags & libc::MAP_ANONYMOUS != 0 {
            note(from, end, ret, frame);
            came(end - from);
        }
    }
    start
}

/// # Safety
/// As for munmap(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: usize, len: usize) -> c_int {
    leaves(pages(len));
    let before = now();
    // SAFETY: the same contract.
    let result = unsafe { system(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
    if result == 0 {
        forget(at, at + pages(len), before);
        KMEM.unmapped();
    }
    result as c_int
}

/// # Safety
/// As for mremap(2).
unsafe extern "C" fn mremap_at(
    old: usize,
    old_len: usize,
    len: usize,
    flags: c_int,
    to: usize,
    _unused: usize,
    ret: usize,
    frame: usize,
) -> isize {
    leaves(pages(old_len).saturating_sub(pages(len)));
    let before = now();
    // The last argument is there only with one of these flags.
    let keeps = flags & libc::MREMAP_DONTUNMAP != 0;
    let to = if keeps || flags & libc::MREMAP_FIXED != 0 { to } else { 0 };
    // SAFETY: the same contract.
    let start = unsafe { system(libc::SYS_mremap, [old, old_len, len, flags as usize, to, 0]) };
    if start != -1 {
        let (from, end) = (start as usize, start as usize + pages(len));
        let old_end = old + pages(old_len);
        // A mapping of a file has no record.
        let is_known = is_known(old, old_end.max(old + PAGE));
        if !keeps {
            forget(old, old_end, before);
        }
        forget(from, end, before);
        if is_known {
            note(from, end, ret, frame);
            came(pages(len).saturating_sub(pages(old_len)));
        }
    }
    start
}

type Brk = unsafe extern "C" fn(usize) -> c_int;
type Sbrk = unsafe extern "C" fn(isize) -> isize;

unsafe extern "C" fn no_brk(_end: usize) -> c_int {
    errno::set(libc::ENOMEM);
    -1
}

unsafe extern "C" fn no_sbrk(_by: isize) -> isize {
    errno::set(libc::ENOMEM);
    -1
}

/// The C library's `sbrk`, which keeps the end of the data segment.
fn next_sbrk() -> Sbrk {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    // SAFETY: the C library's `sbrk` or `no_sbrk`, both of that type.
    unsafe { transmute::<*mut c_void, Sbrk>(next(&NEXT, c"sbrk", no_sbrk as _)) }
}

/// # Safety
/// As for brk(2).
unsafe extern "C" fn brk_at(end: usize, ret: usize, frame: usize) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    // SAFETY: the C library's `brk` or `no_brk`, both of that type.
    let next = unsafe { transmute::<*mut c_void, Brk>(next(&NEXT, c"brk", no_brk as _)) };
    let before = now();
    // SAFETY: `sbrk` of 0 changes nothing.
    let old = unsafe { next_sbrk()(0) };
    if old != -1 {
        leaves((old as usize).saturating_sub(end));
    }
    // SAFETY: the same contract.
    let result = unsafe { next(end) };
    if result == 0 && old != -1 {
        moved(old as usize, end, before, ret, frame);
    }
    result
}

/// # Safety
/// As for sbrk(2).
unsafe extern "C" fn sbrk_at(by: isize, ret: usize, frame: usize) -> isize {
    leaves(by.min(0).unsigned_abs());
    let before = now();
    // SAFETY: the same contract.
    let old = unsafe { next_sbrk()(by) };
    if old != -1 {
        moved(old as usize, (old as usize).wrapping_add_signed(by), before, ret, frame);
    }
    old
}

/// Notes that the end of the data segment moved.
fn moved(old: usize, end: usize, before: u64, ret: usize, frame: usize) {
    if old < end {
        forget(old, end, before);
        note(old, end, ret, frame);
        came(end - old);
    } else {
        forget(end, old, before);
    }
}

/// # Safety
/// As for shmat(2).
unsafe extern "C" fn shmat_at(
    id: c_int,
    to: *const c_void,
    flags: c_int,
    ret: usize,
    frame: usize,
) -> isize {
    let before = now();
    // SAFETY: the same contract.
    let start =
        unsafe { system(libc::SYS_shmat, [id as usize, to as usize, flags as usize, 0, 0, 0]) };
    if start != -1 {
        let (from, bytes) = (start as usize, segment_bytes(id));
        forget(from, from + bytes, before);
        note(from, from + bytes, ret, frame);
        came(bytes);
    }
    start
}

/// Bytes of the pages of a segment of shared memory. Where the kernel may not be asked it is one
/// page: a reader outside the process knows the length of the mapping.
fn segment_bytes(id: c_int) -> usize {
    if KMEM.platform().is_in_sandbox() {
        return PAGE;
    }
    let mut status = MaybeUninit::<libc::shmid_ds>::zeroed();
    let args = [id as usize, libc::IPC_STAT as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel writes one `shmid_ds`, of which all bytes are initialised before.
    let (result, status) = unsafe { (syscall(libc::SYS_shmctl, args), status.assume_init()) };
    if result == 0 { pages(status.shm_segsz).max(PAGE) } else { PAGE }
}

/// # Safety
/// As for shmdt(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn shmdt(at: usize) -> c_int {
    let bytes = length_from(at).unwrap_or(PAGE);
    leaves(bytes);
    let before = now();
    // SAFETY: the same contract.
    let result = unsafe { system(libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]) };
    if result == 0 {
        forget(at, at.saturating_add(bytes), before);
    }
    result as c_int
}

/// Bytes of the pages of a length that the kernel has accepted.
fn pages(len: usize) -> usize {
    len.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// The next sequence number. Records with a lower one were made before now.
fn now() -> u64 {
    TABLE.count.load(Ordering::SeqCst) + record_state::FIRST
}

/// Notes that bytes are about to be unmapped.
fn leaves(bytes: usize) {
    moves(bytes, true);
}

/// Notes that bytes were mapped.
fn came(bytes: usize) {
    moves(bytes, false);
}

/// Lets the black box have a record, if one is due.
fn moves(bytes: usize, is_loss: bool) {
    let total = BYTES.load(Ordering::Relaxed);
    KMEM.note_mapping(Change { bytes: bytes as u64, total, is_loss });
}

/// Notes the call that mapped a range.
fn note(start: usize, end: usize, ret: usize, frame: usize) {
    // A call below a line is known by itself, too, so its address alone would find that site.
    // SAFETY: the key of a return address.
    let caller = unsafe { Caller::in_frame(thread::key_here(ret), frame) };
    // An interpreter maps arenas itself, for objects of many lines.
    let tag = if KMEM.is_of_interpreter(ret) { None } else { KMEM.tag_for(caller) };
    let site = match tag {
        Some(tag) => u64::from(tag.0),
        None => (ret as u64).max(FIRST_ADDRESS),
    };
    let seq = TABLE.count.fetch_add(1, Ordering::SeqCst) + record_state::FIRST;
    add(start as u64, end as u64, site, seq);
}

/// A range that all records of a word lie in. It shrinks only when the word has no records left.
struct Hull {
    /// Complement of the lowest start; 0: there is no record.
    lowest: AtomicU64,
    /// Highest end.
    highest: AtomicU64,
}

impl Hull {
    const fn new() -> Self {
        Self { lowest: AtomicU64::new(0), highest: AtomicU64::new(0) }
    }

    fn meets(&self, from: u64, to: u64) -> bool {
        !self.lowest.load(Ordering::SeqCst) < to && self.highest.load(Ordering::SeqCst) > from
    }

    /// Takes in a range. The caller has taken a bit of the word number `word`.
    fn widen(&self, word: usize, start: u64, end: u64) {
        if WORDS.load(Ordering::SeqCst) & 1 << word == 0 {
            WORDS.fetch_or(1 << word, Ordering::SeqCst);
        }
        self.lowest.fetch_max(!start, Ordering::SeqCst);
        self.highest.fetch_max(end, Ordering::SeqCst);
    }

    /// Empties the hull of a word that has no records left.
    #[cold]
    fn empty(&self, word: usize) {
        WORDS.fetch_and(!(1 << word), Ordering::SeqCst);
        self.lowest.store(0, Ordering::SeqCst);
        self.highest.store(0, Ordering::SeqCst);
        // The hull may just have taken in the range of a record that a thread added meanwhile. A
        // thread that adds one after this look also widens the hull after these stores.
        if TABLE.used[word].load(Ordering::SeqCst) != 0 {
            self.widen(word, 0, u64::MAX);
        }
    }
}

/// Adds a record, to the word of its region if that has room.
fn add(start: u64, end: u64, site: u64, seq: u64) {
    let words = TABLE.used.len();
    let first = (start >> REGION_SHIFT) as usize;
    for word in (first..first + words).map(|word| word % words) {
        let used = &TABLE.used[word];
        let mut free = !used.load(Ordering::Relaxed);
        while free != 0 {
            let bit = free & free.wrapping_neg();
            let taken = used.fetch_or(bit, Ordering::SeqCst);
            if taken & bit == 0 {
                HULLS[word].widen(word, start, end);
                BYTES.fetch_add(end - start, Ordering::Relaxed);
                let record = &TABLE.records[word * 64 + bit.trailing_zeros() as usize];
                record.start.store(start, Ordering::Relaxed);
                record.end.store(end, Ordering::Relaxed);
                record.site.store(site, Ordering::Relaxed);
                record.seq.store(seq, Ordering::Release);
                return;
            }
            free = !taken;
        }
    }
    TABLE.lost.fetch_add(1, Ordering::Relaxed);
}

/// Takes a range out of all records that are older than `before`.
fn forget(from: usize, to: usize, before: u64) {
    let (from, to) = (from as u64, to as u64);
    let mut words = WORDS.load(Ordering::SeqCst);
    while words != 0 {
        let word = words.trailing_zeros() as usize;
        words &= words - 1;
        if HULLS[word].meets(from, to) {
            forget_in(word, from, to, before);
        }
    }
}

/// Returns whether a record has a part of a range.
fn is_known(from: usize, to: usize) -> bool {
    let (from, to) = (from as u64, to as u64);
    let words = (0..HULLS.len()).filter(|&word| HULLS[word].meets(from, to));
    words.flat_map(records_of).any(|record| {
        record.start.load(Ordering::Relaxed) < to && record.end.load(Ordering::Relaxed) > from
    })
}

/// The records in use of a word.
fn records_of(word: usize) -> impl Iterator<Item = &'static MappingRecord> {
    let used = TABLE.used[word].load(Ordering::Relaxed);
    let records = TABLE.records[word * 64..][..64].iter().enumerate();
    records.filter(move |(bit, _)| used & 1 << bit != 0).map(|(_, record)| record)
}

/// Length of the range that begins at an address.
fn length_from(start: usize) -> Option<usize> {
    let start = start as u64;
    (0..HULLS.len()).find_map(|word| {
        let mut records = records_of(word);
        let record = records.find(|record| record.start.load(Ordering::Relaxed) == start)?;
        let end = record.end.load(Ordering::Relaxed);
        (record.seq.load(Ordering::Acquire) >= record_state::FIRST)
            .then_some(end.checked_sub(start)? as usize)
    })
}

/// [`forget`] for the records of one word.
fn forget_in(word: usize, from: u64, to: u64, before: u64) {
    let mut used = TABLE.used[word].load(Ordering::Relaxed);
    while used != 0 {
        let bit = used & used.wrapping_neg();
        used &= !bit;
        let record = &TABLE.records[word * 64 + bit.trailing_zeros() as usize];
        if record.start.load(Ordering::Relaxed) < to
            && record.end.load(Ordering::Relaxed) > from
            && !cut(record, from, to, before)
            && TABLE.used[word].fetch_and(!bit, Ordering::SeqCst) == bit
        {
            HULLS[word].empty(word);
        }
    }
}

/// Takes a range out of a record that is older than `before`. Returns whether the record stays in
/// use. A record that another thread changes at this time stays as it is.
fn cut(record: &MappingRecord, from: u64, to: u64, before: u64) -> bool {
    let seq = record.seq.load(Ordering::Relaxed);
    if !(record_state::FIRST..before).contains(&seq) {
        return true;
    }
    let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
    if record.seq.compare_exchange(seq, record_state::BUSY, done, failed).is_err() {
        return true;
    }
    let (start, end) = (record.start.load(Ordering::Relaxed), record.end.load(Ordering::Relaxed));
    let mut rest = None;
    if start < to && from < end {
        if from <= start && end <= to {
            BYTES.fetch_sub(end - start, Ordering::Relaxed);
            record.seq.store(record_state::EMPTY, Ordering::Release);
            return false;
        }
        if start < from {
            // The part behind the gap is added again, by `add`.
            BYTES.fetch_sub(end - from, Ordering::Relaxed);
            record.end.store(from, Ordering::Relaxed);
            rest = (to < end).then(|| (record.site.load(Ordering::Relaxed), end));
        } else {
            BYTES.fetch_sub(to - start, Ordering::Relaxed);
            record.start.store(to, Ordering::Relaxed);
        }
    }
    record.seq.store(seq, Ordering::Release);
    if let Some((site, end)) = rest {
        add(to, end, site, seq);
    }
    true
}
