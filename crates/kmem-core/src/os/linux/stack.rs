//! The bounds of each thread's own stack.
//!
//! ```text
//! main thread      sp ... frames ... | random bytes of the kernel, arguments, environment
//! other threads    sp ... frames ... | thread-local storage, thread pointer, descriptor
//! ```
//!
//! Both C libraries put a thread's descriptor at the high end of its stack. So the memory from the
//! stack pointer to the thread pointer is mapped as long as the thread runs, if both lie in one
//! mapping. Its low end is asked for, and kept in the thread's storage. Stacks that the program
//! made itself may be unmapped at any time. They are never kept.
//!
//! A program may give a thread one end of a mapping, and use the other end for a coroutine. Then
//! the memory between them may go. So a thread knows the part of the mapping that it has used, and
//! as much again. It asks another time when it comes further down.
//!
//! Context: any, signal handlers included.

use super::Linux;
use super::descriptor::Descriptor;
use super::start::{auxiliary, thread_pointer};
use super::syscall::sys;
use crate::os::Stack;
use crate::sync::Ordering;
use crate::units::PAGE_SIZE;
use core::ops::Range;

/// Bytes below the end of the main thread's stack that no other mapping takes. The kernel keeps 128
/// MiB free for that stack, and more if its limit is higher.
const MAIN_STACK: usize = 64 << 20;
/// The end of the main thread's stack, if it is not known.
const NONE: usize = 1;
/// Fewest bytes of a thread's stack (`PTHREAD_STACK_MIN`).
const SMALLEST: usize = 16 << 10;

/// The mapping that holds a thread's stack and descriptor, in pages below the thread pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Low {
    /// Down to here, it is the thread's own stack.
    own: u32,
    /// Down to here, it was one mapping when that was asked for.
    whole: u32,
}

impl Low {
    const NOT_ASKED: Self = Self { own: 0, whole: 0 };
    const NONE: Self = Self { own: 0, whole: u32::MAX };

    #[inline(always)]
    fn get() -> Self {
        let word = low::get() as u64;
        Self { own: word as u32, whole: (word >> 32) as u32 }
    }

    fn set(self) {
        low::set((u64::from(self.whole) << 32 | u64::from(self.own)) as usize);
    }

    /// Whole pages from an address up to the thread pointer.
    fn pages(at: usize, high: usize) -> u32 {
        u32::try_from(high.saturating_sub(at) / PAGE_SIZE).unwrap_or(u32::MAX - 1)
    }

    /// The address of a number of pages below the thread pointer.
    #[inline(always)]
    fn address(pages: u32, high: usize) -> usize {
        high.wrapping_sub(pages as usize * PAGE_SIZE)
    }

    /// Knowledge after the mapping was asked for, by a thread with this stack pointer.
    fn after(self, mapping: Option<Range<usize>>, here: usize, high: usize) -> Self {
        let Some(mapping) = mapping else { return Self::NONE };
        let whole = Self::pages(mapping.start, high).max(1);
        let own = match (mapping.start..high).contains(&here) {
            true => Self::pages(here.saturating_sub(SMALLEST.max(high - here)), high),
            false => self.own,
        };
        Self { own: own.min(whole), whole }
    }
}

/// The word of a [`Low`]; 0: not asked for.
mod low {
    crate::os::linux::thread_word::define!("kmem_stack");
}

impl Linux {
    /// The calling thread's own stack from `at` up. `None`: `at` is elsewhere, or nothing is known
    /// of the thread's stack. In a sandbox nothing is asked.
    #[inline(always)]
    pub(super) fn own_stack(&self, at: usize) -> Option<Stack> {
        self.known_stack(at).or_else(|| self.ask_for_stack(at))
    }

    #[inline(always)]
    fn known_stack(&self, at: usize) -> Option<Stack> {
        let here = stack_pointer();
        if at < here {
            return None;
        }
        let high = thread_pointer();
        if Low::address(Low::get().own, high) <= here && at < high {
            // SAFETY: both ends lie in the mapping of the thread's descriptor, in the part that is
            // the thread's stack. That stays as long as the thread runs. The thread is on this
            // stack, below `at`.
            return Some(unsafe { Stack::new(at..high) });
        }
        let end = self.main_stack_end.load(Ordering::Relaxed);
        if at < end && end - here <= MAIN_STACK {
            // SAFETY: nothing but the main thread's stack lies there, which is never unmapped. The
            // thread is on it, below `at`, so it has no gap above.
            return Some(unsafe { Stack::new(at..end) });
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn ask_for_stack(&self, at: usize) -> Option<Stack> {
        if self.main_stack_end.load(Ordering::Relaxed) == 0 {
            // Without a C library the vector is not known yet. Later calls ask again.
            let end = auxiliary(libc::AT_RANDOM)?;
            // SAFETY: these calls only return numbers.
            let is_main = unsafe { sys!(libc::SYS_gettid) == sys!(libc::SYS_getpid) };
            if is_main {
                self.main_thread.store(thread_pointer(), Ordering::Relaxed);
            }
            self.main_stack_end.store(end.max(NONE), Ordering::Relaxed);
            if let Some(stack) = self.known_stack(at) {
                return Some(stack);
            }
        }
        let (here, high, low) = (stack_pointer(), thread_pointer(), Low::get());
        if low == Low::NONE || at >= high {
            return None;
        }
        let is_new = low == Low::NOT_ASKED;
        if !is_new && here < Low::address(low.whole, high) {
            return None;
        }
        if self.is_in_sandbox() {
            // One mapping before the sandbox is taken for the stack.
            Low { own: low.whole, ..low }.set();
            return self.known_stack(at);
        }
        // By its thread pointer: in a child that another thread forked, that thread has the number
        // of a main thread.
        let is_main = self.main_thread.load(Ordering::Relaxed) == high;
        let mapping = if is_main { None } else { mapping_of(high) };
        low.after(mapping, here, high).set();
        self.known_stack(at)
    }
}

#[inline(always)]
fn stack_pointer() -> usize {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, rsp", out(reg) sp, options(nostack, nomem, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mov {}, sp", out(reg) sp, options(nostack, nomem, preserves_flags));
    }
    sp
}

/// The mapping of this process that holds an address.
fn mapping_of(at: usize) -> Option<Range<usize>> {
    let file = Descriptor::open(c"/proc/self/maps", libc::O_RDONLY).ok()?;
    let mut search = Search::of(at);
    let mut chunk = [0; 512];
    loop {
        let len = file.read(&mut chunk);
        if len == 0 {
            return None;
        }
        if let Some(found) = search.feed(&chunk[..len]) {
            return Some(found);
        }
    }
}

/// A search in the text of `/proc/self/maps`, which comes in parts. A line begins with the bounds
/// of a mapping, such as `7f00-7f80 rw-p`.
struct Search {
    at: usize,
    field: Field,
    start: usize,
    end: usize,
}

enum Field {
    Start,
    End,
    Rest,
}

impl Search {
    fn of(at: usize) -> Self {
        Self { at, field: Field::Start, start: 0, end: 0 }
    }

    /// Reads the next part of the text. Returns the mapping once it is found.
    fn feed(&mut self, text: &[u8]) -> Option<Range<usize>> {
        for &byte in text {
            let digit = (byte as char).to_digit(16);
            let more = |number: usize| number << 4 | digit.unwrap_or(0) as usize;
            match (&self.field, byte) {
                (_, b'\n') => *self = Self::of(self.at),
                (Field::Start, b'-') => self.field = Field::End,
                (Field::Start, _) => self.start = more(self.start),
                (Field::End, b' ') => {
                    self.field = Field::Rest;
                    if (self.start..self.end).contains(&self.at) {
                        return Some(self.start..self.end);
                    }
                }
                (Field::End, _) => self.end = more(self.end),
                (Field::Rest, _) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Process;

    #[test]
    fn a_mapping_is_found_in_a_text_that_comes_in_parts() {
        let text = b"1000-3000 r--p 00000000 00:00 0 /a-5000 b\n7f00-8f00 rw-p 0 0 0\n";
        for cut in 0..text.len() {
            let find = |at| {
                let mut search = Search::of(at);
                search.feed(&text[..cut]).or_else(|| search.feed(&text[cut..]))
            };
            assert_eq!(find(0x2fff), Some(0x1000..0x3000));
            assert_eq!(find(0x7f00), Some(0x7f00..0x8f00));
            assert_eq!(find(0x3000), None);
            assert_eq!(find(0x8f00), None);
        }
    }

    #[test]
    fn a_thread_knows_the_part_of_a_mapping_that_it_has_used_and_as_much_again() {
        let high = 0x7000_0000_0840;
        let mapping = || Some(high - (64 << 20)..high + 4096);
        let own = |low: Low| high - Low::address(low.own, high);
        let first = Low::NOT_ASKED.after(mapping(), high - 1000, high);
        assert_eq!(own(first), SMALLEST);
        let further = first.after(mapping(), high - (1 << 20), high);
        assert_eq!(own(further), 2 << 20);
        assert_eq!(own(further.after(mapping(), high - (63 << 20), high)), 64 << 20);
        // Below a hole the thread is elsewhere, and knows no more than the mapping has.
        let rest = Some(high - (1 << 20)..high + 4096);
        let holed = further.after(rest, high - (2 << 20), high);
        assert_eq!((own(holed), holed.whole), (1 << 20, 256));
        assert_eq!(own(first.after(mapping(), high - (65 << 20), high)), SMALLEST);
        assert!(first.after(None, high - 1000, high) == Low::NONE);
        assert!(Low::address(Low::NONE.own, high) == high);
    }

    #[test]
    fn each_thread_knows_its_own_stack_and_no_other() {
        static LINUX: Linux = Linux::new();
        let here = 0usize;
        let at = &raw const here as usize;
        let own = LINUX.stack(at & !7).expect("the stack of a thread is known");
        assert!(own.top() > at);
        assert_eq!(own.word(at & !7), Some(here));
        assert!(own.word(own.top() - 8).is_some());
        assert_eq!(own.word(own.top()), None);
        assert_eq!(own.word((at & !7) - 8), None);
        assert_eq!(own.word((at & !7) + 4), None);
        let heap = Box::new(0usize);
        assert!(LINUX.stack(&raw const *heap as usize).is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let here = 0usize;
                assert!(LINUX.stack(&raw const here as usize).is_some());
                assert!(LINUX.stack(at & !7).is_none(), "that of another thread");
            });
        });
    }
}
