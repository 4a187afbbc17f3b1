//! The options: one table, from which texts are parsed and the page of options is written.

use kmem_layout::root::profiling;
use kmem_layout::site::MAX_DEPTH;

use super::{CheckPages, Complaint, Conf, GroupBy, Python, Text, Thp};

/// An option of the configuration.
pub struct ConfOption {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// Its value when it is not given; empty for none.
    pub default: &'static str,
    /// The effect, in a sentence.
    pub meaning: &'static str,
    pub(super) set: fn(&mut Conf, &[u8]) -> Result<(), Complaint>,
}

impl ConfOption {
    /// Returns whether a text may give the option this value; an empty one for none. A text can
    /// hold no value with a comma in it, or with a blank at one of its ends.
    ///
    /// # Examples
    /// ```
    /// use kmem_core::conf::nearest;
    ///
    /// let depth = nearest(b"depth").unwrap();
    /// assert!(depth.takes(b"32") && !depth.takes(b"33"));
    /// assert!(!nearest(b"blackbox").unwrap().takes(b"a,b"));
    /// ```
    #[must_use]
    pub fn takes(&self, value: &[u8]) -> bool {
        let fits = !value.contains(&b',') && value.trim_ascii() == value;
        fits && (self.set)(&mut Conf::DEFAULT.clone(), value).is_ok()
    }
}

/// A field that is on or off.
macro_rules! switch {
    ($field:ident) => {
        |conf, value| {
            conf.$field = switch(value)?;
            Ok(())
        }
    };
}

/// All options, those that most programs need first.
pub const OPTIONS: &[ConfOption] = &[
    ConfOption {
        name: "mem_profiling",
        values: "`0`, `1`, `never`",
        default: "`1`",
        meaning: "The switch of the books at the start. `never` keeps no books, and cannot be \
                  switched on later.",
        set: |conf, value| {
            conf.profiling = match value {
                b"0" => profiling::OFF,
                b"1" => profiling::ON,
                b"never" => profiling::NEVER,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "depth",
        values: "1 to 32",
        default: "`1`",
        meaning: "Return addresses by which the callers of a call site are told apart.",
        set: |conf, value| {
            let depth = number(value).filter(|depth| (1..=MAX_DEPTH).contains(depth));
            conf.depth = depth.ok_or(Complaint::BadValue)?;
            Ok(())
        },
    },
    ConfOption {
        name: "skip",
        values: "a list of at most 256 bytes",
        default: "",
        meaning: "Functions that pass requests on: names, joined by `+`, in which `*` stands for \
                  any text and `?` for any letter. Their memory belongs to their callers.",
        set: |conf, value| {
            conf.skip = Text::of(value)?;
            Ok(())
        },
    },
    ConfOption {
        name: "python",
        values: "`auto`, `off`",
        default: "`auto`",
        meaning: "In a process with CPython 3.8 to 3.14, name call sites by Python's file, line \
                  and function, or never do. No effect beside `debug_pagealloc`.",
        set: |conf, value| {
            conf.python = match value {
                b"auto" => Python::Auto,
                b"off" => Python::Off,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "peak",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Keep the books of the highest use. `kmem run` sets it.",
        set: switch!(peak),
    },
    ConfOption {
        name: "blackbox",
        values: "a path of at most 512 bytes",
        default: "",
        meaning: "A file that outlives the process. In the path `%p` is the process, `%h` the \
                  host, `%t` and `%n` the time in seconds and nanoseconds, `%e` the executable.",
        set: |conf, value| {
            conf.blackbox = Text::of(value)?;
            Ok(())
        },
    },
    ConfOption {
        name: "cumulative",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Count every call in the black box. Closes the fast paths.",
        set: switch!(cumulative),
    },
    ConfOption {
        name: "age",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Note when each allocation was made. Closes the fast paths.",
        set: switch!(age),
    },
    ConfOption {
        name: "group-by",
        values: "`nothing`, `thread-name`",
        default: "`nothing`",
        meaning: "The group of a thread that chooses none: the root, or the one that has the \
                  thread's name.",
        set: |conf, value| {
            conf.group_by = match value {
                b"nothing" => GroupBy::Nothing,
                b"thread-name" => GroupBy::ThreadName,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "groups",
        values: "`auto`, `always`",
        default: "`auto`",
        meaning: "Groups beside `mem_profiling:never`: none, or with a word for each object, which \
                  is written only while a group pays for the object.",
        set: |conf, value| {
            conf.groups = match value {
                b"auto" => false,
                b"always" => true,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "decay_ms",
        values: "0 to 3600000",
        default: "`20`",
        meaning: "Milliseconds for which free memory is kept before the system gets it back. With \
                  `0`, CPUs keep no free pages.",
        set: |conf, value| {
            conf.decay_ms = milliseconds(value)?;
            Ok(())
        },
    },
    ConfOption {
        name: "demand_ms",
        values: "0 to 3600000",
        default: "`500`",
        meaning: "Milliseconds for which free memory is kept, up to as much as was in use at \
                  once in that time. A program that works in phases finds it there.",
        set: |conf, value| {
            conf.demand_ms = milliseconds(value)?;
            Ok(())
        },
    },
    ConfOption {
        name: "background_thread",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Start a thread that gives free memory back while the program makes no calls, in \
                  the program and in each forked child.",
        set: switch!(background_thread),
    },
    ConfOption {
        name: "thp",
        values: "`never`, `auto`, `always`",
        default: "`auto`",
        meaning: "Transparent huge pages: never, where a heap of at least 16 MiB is densely used, \
                  or for the whole heap.",
        set: |conf, value| {
            conf.thp = match value {
                b"never" => Thp::Never,
                b"auto" => Thp::Auto,
                b"always" => Thp::Always,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "check_pages",
        values: "`off`, `refill`, `every`",
        default: "`refill`",
        meaning: "Check free pages never, when a CPU takes them from a zone, or at every \
                  allocation and free. `refill` looks at the first page of each block, `every` at \
                  all pages. `every` closes the fast paths.",
        set: |conf, value| {
            conf.check_pages = match value {
                b"off" => CheckPages::Off,
                b"refill" => CheckPages::Refill,
                b"every" => CheckPages::Every,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "bad_page",
        values: "`report`, `end`",
        default: "`report`",
        meaning: "A bad page is reported and taken out of use, and the program goes on or ends.",
        set: |conf, value| {
            conf.fatal_bad_page = match value {
                b"report" => false,
                b"end" => true,
                _ => return Err(Complaint::BadValue),
            };
            Ok(())
        },
    },
    ConfOption {
        name: "debug_pagealloc",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Free pages, and pages that were never used, cannot be read or written.",
        set: switch!(debug_pagealloc),
    },
    ConfOption {
        name: "page_poison",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Free pages hold a pattern. A page that was written to while it was free is \
                  reported and taken out of use.",
        set: switch!(page_poison),
    },
    ConfOption {
        name: "init_on_alloc",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Memory is zeroed when it is allocated.",
        set: switch!(init_on_alloc),
    },
    ConfOption {
        name: "init_on_free",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Memory is zeroed when it is freed. No effect beside `page_poison`.",
        set: switch!(init_on_free),
    },
    ConfOption {
        name: "shuffle",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Blocks of 1 to 512 pages and objects of a slab are handed out in random order.",
        set: switch!(shuffle),
    },
    ConfOption {
        name: "hardened",
        values: "`0`, `1`; alone: `1`",
        default: "`0`",
        meaning: "All of `redzone`, `quarantine_kb:256`, `check_caches`, `check_interfaces`, \
                  `shuffle`, `init_on_alloc`, `page_poison`, `check_pages:every` and \
                  `bad_page:end`. Options after this one change single ones.",
        set: |conf, value| {
            let on = value.is_empty() || switch(value)?;
            conf.redzone = on;
            conf.quarantine_kb = if on { 256 } else { 0 };
            conf.check_caches = on;
            conf.check_interfaces = on;
            conf.shuffle = on;
            conf.init_on_alloc = on;
            conf.page_poison = on;
            conf.fatal_bad_page = on;
            conf.check_pages = if on { CheckPages::Every } else { CheckPages::Refill };
            Ok(())
        },
    },
    ConfOption {
        name: "redzone",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Fill the bytes behind and in front of an object, and check them when the object \
                  is freed or resized. Closes the fast paths.",
        set: switch!(redzone),
    },
    ConfOption {
        name: "quarantine_kb",
        values: "0 to 1048576",
        default: "`0`",
        meaning: "KiB of freed objects that are filled with a pattern and held back. A write to \
                  one is found when it leaves. Closes the fast paths.",
        set: |conf, value| {
            let most = |kb: &u32| *kb <= 1 << 20;
            conf.quarantine_kb = number(value).filter(most).ok_or(Complaint::BadValue)?;
            Ok(())
        },
    },
    ConfOption {
        name: "check_caches",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Report an object that is freed to a cache or pool that it is not of. Closes the \
                  fast paths.",
        set: switch!(check_caches),
    },
    ConfOption {
        name: "check_interfaces",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Report an object that is freed by other functions than those that allocated it: \
                  of `new` by `free`, of `new[]` by `delete`. Closes the fast paths.",
        set: switch!(check_interfaces),
    },
    ConfOption {
        name: "guard",
        values: "`0`, `1`; alone: `1`",
        default: "`0`",
        meaning: "Each block ends in front of a page that cannot be read or written, and takes at \
                  least a page itself. It cannot be used once it is freed. Switches on \
                  `check_interfaces`. Closes the fast paths.",
        set: |conf, value| {
            conf.guard = value.is_empty() || switch(value)?;
            conf.check_interfaces |= conf.guard;
            Ok(())
        },
    },
    ConfOption {
        name: "guard_pages",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "A page that cannot be read or written lies behind each block of more than \
                  32 KiB, as behind areas of `vmalloc`. Such blocks have no poison.",
        set: switch!(guard_pages),
    },
    ConfOption {
        name: "check_sizes",
        values: "`0`, `1`",
        default: "`1`",
        meaning: "Report a sized `delete` or `free_sized` whose size is not that of the request. \
                  Small sizes are compared by their class.",
        set: switch!(check_sizes),
    },
    ConfOption {
        name: "debug",
        values: "`0`, `1`; alone: `1`",
        default: "`0`",
        meaning: "Check the accounting of every call. Closes the fast paths.",
        set: |conf, value| {
            conf.debug = value.is_empty() || switch(value)?;
            Ok(())
        },
    },
    ConfOption {
        name: "rseq",
        values: "`on`, `off`",
        default: "`on`",
        meaning: "Arrays of CPUs by restartable sequences, or by a try-lock.",
        set: switch!(rseq),
    },
    ConfOption {
        name: "sandbox",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "The program is started under a filter of system calls. kmem makes only those \
                  of the C library's allocator.",
        set: switch!(sandbox),
    },
    ConfOption {
        name: "numa",
        values: "`on`, `off`",
        default: "`on`",
        meaning: "Memory of its own for each node of the machine. With `off`, there is one node.",
        set: switch!(numa),
    },
    ConfOption {
        name: "strict",
        values: "`0`, `1`",
        default: "`0`",
        meaning: "Refuse to start with a bad configuration.",
        set: switch!(strict),
    },
    ConfOption {
        name: "boxes",
        values: "a path of at most 512 bytes",
        default: "",
        meaning: "A directory. Without `blackbox`, the process and its forked children keep a \
                  black box each there. `kmem run` sets it.",
        set: |conf, value| {
            conf.boxes = Text::of(value)?;
            Ok(())
        },
    },
    ConfOption {
        name: "report",
        values: "a name of at most 100 bytes",
        default: "",
        meaning: "The abstract socket to connect to at exit. `kmem run` sets it.",
        set: |conf, value| {
            conf.report = Text::of(value)?;
            Ok(())
        },
    },
];

fn switch(value: &[u8]) -> Result<bool, Complaint> {
    match value {
        b"1" | b"on" => Ok(true),
        b"0" | b"off" => Ok(false),
        _ => Err(Complaint::BadValue),
    }
}

/// A time of at most an hour.
fn milliseconds(value: &[u8]) -> Result<u32, Complaint> {
    number(value).filter(|&ms| ms <= 3_600_000).ok_or(Complaint::BadValue)
}

/// A decimal number without a sign.
fn number(value: &[u8]) -> Option<u32> {
    if value.is_empty() || value.len() > 10 {
        return None;
    }
    value.iter().try_fold(0u32, |n, &b| {
        let digit = b.is_ascii_digit().then(|| u32::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_the_default_that_it_says() {
        for option in OPTIONS.iter().filter(|option| !option.default.is_empty()) {
            let mut conf = Conf::DEFAULT;
            let value = option.default.trim_matches('`');
            assert_eq!((option.set)(&mut conf, value.as_bytes()), Ok(()), "{}", option.name);
            assert_eq!(conf, Conf::DEFAULT, "{}", option.name);
        }
    }

    #[test]
    fn every_option_refuses_a_value_that_it_does_not_name() {
        for option in OPTIONS.iter().filter(|option| !option.default.is_empty()) {
            let mut conf = Conf::DEFAULT;
            let set = (option.set)(&mut conf, b"often");
            assert_eq!((set, conf), (Err(Complaint::BadValue), Conf::DEFAULT), "{}", option.name);
        }
    }
}
