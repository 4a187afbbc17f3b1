//! The configuration of an instance: `opt:val,opt:val`. It is read once at the start, without
//! allocating, from each [`ConfSource`](crate::os::ConfSource): the program, a file, the
//! environment. The last of equal options wins. An unknown option or a bad value is reported and
//! left out. It ends the program only with `strict:1`. The idea is that of `malloc_conf` and
//! `/etc/malloc.conf` in jemalloc.

mod file;
mod message;
mod nearest;
mod options;

pub use file::lines;
pub use message::{Message, Taken};
pub use nearest::nearest;
pub use options::{ConfOption, OPTIONS};

/// Longest accepted text, in bytes.
pub const MAX_TEXT: usize = 4096;
/// Longest socket name of `report`, in bytes.
pub const MAX_NAME: usize = 100;
/// Longest path of `blackbox` and of `boxes`, in bytes.
pub const MAX_PATH: usize = 512;
/// Longest text of `skip`, in bytes.
pub const MAX_PATTERNS: usize = 256;

/// The configuration of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conf {
    /// `rseq:on|off`: whether CPU arrays use restartable sequences instead of locks.
    pub rseq: bool,
    /// `numa:on|off`: whether each node of the machine has zones of its own.
    pub numa: bool,
    /// `mem_profiling:0|1|never`, as [`kmem_layout::root::profiling`].
    pub profiling: u32,
    /// `peak:0|1`: keep the books of the moment of highest use.
    pub peak: bool,
    /// `decay_ms:N`: milliseconds for which free memory is kept before the system gets it back.
    pub decay_ms: u32,
    /// `demand_ms:N`: milliseconds for which as much memory is kept as was in use at once.
    pub demand_ms: u32,
    /// `background_thread:0|1`: a thread gives memory back while the program makes no calls.
    pub background_thread: bool,
    /// `thp:never|auto|always`: when memory is backed with huge pages.
    pub thp: Thp,
    /// `check_pages:off|refill|every`: when free pages are checked.
    pub check_pages: CheckPages,
    /// `bad_page:report|end`: whether a bad page ends the program.
    pub fatal_bad_page: bool,
    /// `debug_pagealloc:0|1`: free pages and never used ones cannot be read or written.
    pub debug_pagealloc: bool,
    /// `page_poison:0|1`: free pages are filled with a pattern, which is checked when they are
    /// allocated.
    pub page_poison: bool,
    /// `init_on_alloc:0|1`: memory of any size reads as zero when it is allocated.
    pub init_on_alloc: bool,
    /// `init_on_free:0|1`: memory of any size is zeroed when it is freed.
    pub init_on_free: bool,
    /// `shuffle:0|1`: blocks of pages that CPUs keep, and objects of slabs, are allocated in random
    /// order.
    pub shuffle: bool,
    /// `redzone:0|1`: the bytes around an object are checked when it is freed.
    pub redzone: bool,
    /// `check_caches:0|1`: an object that is freed to another cache than its own is reported.
    pub check_caches: bool,
    /// `check_interfaces:0|1`: an object that is freed by other functions than those that allocated
    /// it is reported.
    pub check_interfaces: bool,
    /// `guard:0|1`: each block ends in front of an inaccessible page, and cannot be used once it is
    /// freed.
    pub guard: bool,
    /// `guard_pages:0|1`: each large block has an inaccessible page behind it.
    pub guard_pages: bool,
    /// `check_sizes:0|1`: a sized free of another size is reported.
    pub check_sizes: bool,
    /// `quarantine_kb:N`: KiB of freed objects that are held back, and checked before they are used
    /// again.
    pub quarantine_kb: u32,
    /// `debug:0|1`, or `debug` alone: check the accounting of every call.
    pub debug: bool,
    /// `cumulative:0|1`: count every call, in the black box.
    pub cumulative: bool,
    /// `age:0|1`: note when each allocation was made.
    pub age: bool,
    /// `depth:N`: number of return addresses by which callers of a call site are told apart.
    pub depth: u32,
    /// `skip:PATTERNS`: functions that are taken for allocation wrappers, besides those that are
    /// known: see [`kmem_layout::wrapper::matches_any`].
    pub skip: Text<MAX_PATTERNS>,
    /// `python:auto|off`: whether the lines of a CPython in the process are call sites.
    pub python: Python,
    /// `blackbox:PATH`: the file of the black box, which outlives the process.
    pub blackbox: Text<MAX_PATH>,
    /// `boxes:DIRECTORY`: where this process and its forked children make their black boxes.
    pub boxes: Text<MAX_PATH>,
    /// `groups:auto|always`: whether there are groups without books too.
    pub groups: bool,
    /// `group-by:thread-name|nothing`: the group of a thread that chooses none. The code that
    /// starts threads reads it; the core does not.
    pub group_by: GroupBy,
    /// `sandbox:0|1`: the program is started under a filter of system calls.
    pub sandbox: bool,
    /// `strict:0|1`: refuse to start with a bad configuration.
    pub strict: bool,
    /// `report:NAME`: the abstract socket to connect to at exit.
    pub report: Text<MAX_NAME>,
}

/// When free pages are checked, like the kernel's levels of `debug_pagealloc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckPages {
    /// Never.
    Off,
    /// When a CPU takes them from a zone.
    Refill,
    /// Also at every allocation and free.
    Every,
}

/// When the heap is backed with transparent huge pages; see [`Conf::thp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Thp {
    /// Never, also where the system would do so by itself.
    Never = 0,
    /// Where memory is densely used.
    Auto = 1,
    /// Always, if the system has them.
    Always = 2,
}

/// The group of a thread that chooses none; see [`Conf::group_by`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupBy {
    /// The root.
    Nothing,
    /// The group below the root that has the thread's name.
    ThreadName,
}

/// Use of the lines of a CPython in the process as call sites; see [`Conf::python`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Python {
    /// Where one is found.
    Auto,
    /// Never.
    Off,
}

/// A text of at most `N` bytes; empty for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const NONE: Self = Self { bytes: [0; N], len: 0 };

    fn of(value: &[u8]) -> Result<Self, Complaint> {
        let mut text = Self::NONE;
        if value.is_empty() || value.len() > N {
            return Err(Complaint::BadValue);
        }
        text.bytes[..value.len()].copy_from_slice(value);
        text.len = value.len();
        Ok(text)
    }

    /// The text; `None` if it is empty.
    pub fn get(&self) -> Option<&[u8]> {
        (self.len > 0).then_some(&self.bytes[..self.len])
    }
}

/// The fault of one `opt:val`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// There is no such option.
    UnknownOption,
    /// The option does not take that value.
    BadValue,
}

impl Conf {
    /// The configuration of an empty text.
    pub const DEFAULT: Self = Self {
        rseq: true,
        numa: true,
        profiling: kmem_layout::root::profiling::ON,
        peak: false,
        decay_ms: 20,
        demand_ms: 500,
        background_thread: false,
        thp: Thp::Auto,
        check_pages: CheckPages::Refill,
        fatal_bad_page: false,
        debug_pagealloc: false,
        page_poison: false,
        init_on_alloc: false,
        init_on_free: false,
        shuffle: false,
        redzone: false,
        check_caches: false,
        check_interfaces: false,
        guard: false,
        guard_pages: false,
        check_sizes: true,
        quarantine_kb: 0,
        sandbox: false,
        strict: false,
        debug: false,
        cumulative: false,
        age: false,
        depth: 1,
        groups: false,
        group_by: GroupBy::Nothing,
        blackbox: Text::NONE,
        skip: Text::NONE,
        python: Python::Auto,
        boxes: Text::NONE,
        report: Text::NONE,
    };

    /// Applies a text to this configuration. Calls `complain` with each part that is left out: the
    /// option if it is unknown, the whole part if its value is bad.
    ///
    /// # Examples
    /// ```
    /// use kmem_core::conf::{Complaint, Conf};
    ///
    /// let mut conf = Conf::DEFAULT;
    /// conf.apply(b"decay_ms:100,peak:often", |part, why| {
    ///     assert_eq!((part, why), (&b"peak:often"[..], Complaint::BadValue));
    /// });
    /// assert_eq!(conf.decay_ms, 100);
    /// ```
    pub fn apply(&mut self, text: &[u8], mut complain: impl FnMut(&[u8], Complaint)) {
        for part in text.split(|&b| b == b',') {
            let part = part.trim_ascii();
            let (key, value) = match part.iter().position(|&b| b == b':') {
                Some(at) => (part[..at].trim_ascii(), part[at + 1..].trim_ascii()),
                None => (part, &[][..]),
            };
            if key.is_empty() {
                continue;
            }
            if let Err(complaint) = self.set(key, value) {
                complain(if complaint == Complaint::BadValue { part } else { key }, complaint);
            }
        }
    }

    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Complaint> {
        let option = OPTIONS.iter().find(|option| option.name.as_bytes() == name);
        (option.ok_or(Complaint::UnknownOption)?.set)(self, value)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    fn parse(text: &str) -> (Conf, Vec<(String, Complaint)>) {
        let mut conf = Conf::DEFAULT;
        let mut complaints = Vec::new();
        conf.apply(text.as_bytes(), |part, why| {
            complaints.push((String::from_utf8_lossy(part).to_string(), why));
        });
        (conf, complaints)
    }

    #[test]
    fn nothing_means_the_defaults() {
        for text in ["", " ", ":::", ",,,", " , "] {
            assert_eq!(parse(text), (Conf::DEFAULT, Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn the_last_of_equal_keys_wins() {
        assert_eq!(parse("decay_ms:1,decay_ms:2").0.decay_ms, 2);
    }

    #[test]
    fn bad_values_keep_the_default_and_are_named() {
        for value in
            ["", "-1", "0x", "1e9", "18446744073709551616", "4294967296", "9999999G", "5 5"]
        {
            let text = std::format!("decay_ms:{value}");
            let (conf, complaints) = parse(&text);
            assert_eq!(conf, Conf::DEFAULT);
            assert_eq!(complaints, [(text.trim().to_string(), Complaint::BadValue)]);
        }
    }

    #[test]
    fn a_hardened_configuration_keeps_what_is_set_after_it() {
        let (conf, complaints) = parse("redzone:0,hardened,shuffle:0");
        assert!(conf.redzone && conf.check_caches && conf.quarantine_kb > 0 && !conf.shuffle);
        assert!(complaints.is_empty());
        assert_eq!(parse("hardened,hardened:0"), (Conf::DEFAULT, Vec::new()));
    }

    #[test]
    fn unknown_options_are_named() {
        let (conf, complaints) = parse("mem_profilign:0,rseq:off");
        assert!(!conf.rseq);
        assert_eq!(complaints, [("mem_profilign".to_string(), Complaint::UnknownOption)]);
    }
}
