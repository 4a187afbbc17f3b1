//! Time, diagnostics and the process on Linux.

use core::time::Duration;

use super::syscall::sys;
use super::{Linux, diagnose, file, functions, objects, owner, path, probes, sigsegv, start};
use crate::os::functions::Functions;
use crate::os::{
    AccessReport, Clock, CodeObject, ConfSource, Console, File, Owner, Process, Residency, Return,
    Shape, SharedFile, Stack,
};
use crate::sync::AtomicU32;
use crate::units::PAGE_SIZE;

/// Spreads the kernel's random bytes; odd, from the digits of pi.
const MIX: u128 = 0x243F_6A88_85A3_08D3_1319_8A2E_0370_7345;

impl Clock for Linux {
    fn now_ms(&self) -> u64 {
        let time = self.clock.read(libc::CLOCK_MONOTONIC_COARSE);
        (time.tv_sec as u64).wrapping_mul(1000) + time.tv_nsec as u64 / 1_000_000
    }

    fn ticks(&self) -> u64 {
        // SAFETY: every x86-64 CPU has a time-stamp counter. Linux lets user mode read the register
        // of AArch64.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            return core::arch::x86_64::_rdtsc();
            #[cfg(target_arch = "aarch64")]
            {
                let ticks: u64;
                core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
                // The counter runs at 24 MHz to 1 GHz. Scale it as if it were the slowest.
                ticks << 5
            }
        }
    }

    /// The random bytes that the kernel gives each program (`AT_RANDOM`), mixed with the time: a
    /// forked child has the same bytes. This takes no system call.
    fn entropy(&self) -> u64 {
        let at = start::auxiliary(libc::AT_RANDOM).unwrap_or(0) as *const [u8; 16];
        // SAFETY: null, or the kernel put 16 bytes there for the life of the program. Nothing
        // writes them.
        let bytes = unsafe { at.as_ref() }.copied().unwrap_or_default();
        // The C library has its canaries from them, so what is used here does not tell them.
        let random = u128::from_ne_bytes(bytes).wrapping_mul(MIX);
        (random >> 64) as u64 ^ self.ticks()
    }

    fn wall_ns(&self) -> u64 {
        let time = self.clock.read(libc::CLOCK_REALTIME_COARSE);
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }
}

impl Console for Linux {
    fn print(&self, text: &[u8]) {
        if self.is_in_sandbox() {
            diagnose::write(text);
        } else {
            diagnose::print(text);
        }
    }

    fn fatal(&self) -> ! {
        diagnose::fatal()
    }
}

impl Process for Linux {
    fn report_accesses<R: AccessReport>(&self, value: usize) {
        sigsegv::report_to::<R>(value);
    }

    fn configuration(&self, source: ConfSource, buf: &mut [u8]) -> Option<usize> {
        self.configuration_of(source, buf)
    }

    fn start_in_sandbox(&self) {
        self.enter_at_start();
    }

    fn process(&self) -> u32 {
        path::process()
    }

    fn owner(&self) -> Owner {
        owner::this()
    }

    fn executable(&self, buf: &mut [u8]) -> usize {
        path::executable(buf)
    }

    fn mappings(&self, buf: &mut [u8]) -> usize {
        if self.is_in_sandbox() { 0 } else { file::mappings(buf) }
    }

    fn resident_pages(&self) -> Option<u64> {
        if self.is_in_sandbox() { None } else { start::resident_pages() }
    }

    fn resident_in(&self, at: usize, room: &mut [u8]) -> Residency {
        if self.is_in_sandbox() {
            return Residency::Unknown;
        }
        let bytes = room.len() * PAGE_SIZE;
        // SAFETY: the kernel writes a byte for each page of the range, of which `room` has as many.
        match unsafe { sys!(libc::SYS_mincore, at, bytes, room.as_mut_ptr()) } {
            0 => Residency::Pages(room.iter().map(|page| u64::from(page & 1)).sum()),
            errno if errno == -(libc::ENOMEM as isize) => Residency::NotMapped,
            _ => Residency::Unknown,
        }
    }

    fn peek(&self, at: usize, buf: &mut [u8]) -> usize {
        if self.is_in_sandbox() { 0 } else { start::peek(at, buf) }
    }

    fn may_make_files(&self) -> Result<(), &'static str> {
        if self.is_in_sandbox() { Err("the process is in a sandbox") } else { Ok(()) }
    }

    #[inline(always)]
    fn stack(&self, at: usize) -> Option<Stack> {
        self.own_stack(at)
    }

    fn with_object<T>(&self, at: usize, work: impl FnOnce(&CodeObject<'_>) -> T) -> Option<T> {
        let peek = |at, buf: &mut [u8]| self.peek(at, buf) == buf.len();
        objects::with(at, peek, work)
    }

    fn return_address(&self, word: usize) -> Return {
        if self.is_in_sandbox() {
            return Return::Unknown;
        }
        let peek = |at, buf: &mut [u8]| start::peek(at, buf) == buf.len();
        objects::return_address(word, peek)
    }

    fn with_functions<T>(
        &self,
        object: &CodeObject<'_>,
        work: impl FnOnce(&Functions<'_>) -> T,
    ) -> Option<T> {
        functions::with(self, object, work)
    }

    fn make_file(
        &self,
        path: &[u8],
        shape: Shape,
        head: &[u8],
        decide: impl Fn(&[u8], u64) -> File,
        file: &'static SharedFile,
    ) -> Result<(), &'static str> {
        self.may_make_files()?;
        file::make(path, shape, head, decide, file)
    }

    fn write_file(&self, file: &SharedFile, offset: usize, bytes: &[u8]) -> bool {
        if self.is_in_sandbox() {
            return file::store(file, offset, bytes);
        }
        file::write(file, offset, bytes)
    }

    fn copy_to_file(&self, file: &SharedFile, offset: usize, from: usize, len: usize) -> bool {
        // A sandbox forbids the call that tells whether there is memory.
        !self.is_in_sandbox() && file::copy(file, offset, from, len)
    }

    #[inline]
    fn is_traced(&self) -> bool {
        probes::is_traced()
    }

    fn trace_alloc(&self, at: usize, bytes: u64, weight: u64, calls: &[usize]) {
        probes::alloc(at, bytes, weight, calls);
    }

    fn trace_free(&self, at: usize) {
        probes::free(at);
    }

    fn signal_event(&self, fd: u32) {
        let one = 1u64;
        // SAFETY: the kernel reads the eight bytes of `one`.
        unsafe { sys!(libc::SYS_write, fd, &raw const one, 8) };
    }

    fn give_way(&self) {
        if self.is_in_sandbox() {
            return crate::sync::spin();
        }
        // SAFETY: the call touches no memory.
        unsafe { sys!(libc::SYS_sched_yield) };
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        // Look again after a while: memory may also come back without a call of `wake`.
        self.sleep_while(word, seen, Some(Duration::from_millis(10)));
    }

    fn wake(&self, word: &AtomicU32) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: only the word's address is used.
        unsafe { sys!(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
    }

    fn call_tender(&self) {
        self.wake_tender();
    }

    fn forget_tender(&self) {
        self.forget_tender_thread();
    }
}

impl Linux {
    /// Waits while a word has a value, for at most a time. May return at any time.
    pub(super) fn sleep_while(&self, word: &AtomicU32, value: u32, time: Option<Duration>) {
        let time = time.map(|time| libc::timespec {
            tv_sec: time.as_secs() as _,
            tv_nsec: i64::from(time.subsec_nanos()) as _,
        });
        let until = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel reads `word` and `time`, both live during the call.
        unsafe { sys!(libc::SYS_futex, word.as_ptr(), op, value, until) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_more_than_the_time() {
        let linux = Linux::new();
        let upper = |number: u64| number >> 32;
        assert_ne!(upper(linux.entropy()), upper(linux.ticks()));
        assert_ne!(linux.entropy(), linux.entropy());
    }
}
