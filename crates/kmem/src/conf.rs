//! `KMEM_CONF=opt:val,opt:val`. Read once at start, without allocating. The last of equal keys
//! wins. What is unknown or malformed is reported and left out; nothing here ends a program,
//! unless it asked for that with `strict:1`.

use crate::root::MAX_DEPTH;

/// Longest accepted text, in bytes.
pub const MAX_TEXT: usize = 4096;
/// Longest socket name of `report`.
pub const MAX_NAME: usize = 100;
/// Longest path of `blackbox`.
pub const MAX_PATH: usize = 512;

/// The configuration of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conf {
    /// `rseq:on|off`: critical sections, or locks.
    pub rseq: bool,
    /// `mem_profiling:0|1|never`, as [`crate::root::profiling`].
    pub profiling: u32,
    /// `peak:0|1`: keep the books of the highest use.
    pub peak: bool,
    /// `decay_ms:N`: how long free memory is kept before the system gets it back.
    pub decay_ms: u32,
    /// `check_pages:off|refill|every`: when free pages are looked at.
    pub check_pages: CheckPages,
    /// `debug_pagealloc:0|1`: free pages cannot be read or written.
    pub debug_pagealloc: bool,
    /// `page_poison:0|1`: free pages are filled with a pattern, which must be there still when they
    /// are allocated.
    pub page_poison: bool,
    /// `init_on_alloc:0|1`: pages read as zero when they are allocated.
    pub init_on_alloc: bool,
    /// `init_on_free:0|1`: pages are zeroed when they are freed.
    pub init_on_free: bool,
    /// `shuffle:0|1`: single and huge pages, and the objects of slabs, are handed out in random order.
    pub shuffle: bool,
    /// `redzone:0|1`: what is behind an object, and in front of it, is looked at when it is freed.
    pub redzone: bool,
    /// `check_caches:0|1`: an object that is given back to another cache than its own is found.
    pub check_caches: bool,
    /// `quarantine_kb:N`: so much freed memory of objects is held back, and looked at before it is used again.
    pub quarantine_kb: u32,
    /// `debug:0|1`, or `debug` alone: check the accounting of every call.
    pub debug: bool,
    /// `cumulative:0|1`: count every call, in the black box.
    pub cumulative: bool,
    /// `depth:N`: tell the callers of call sites apart, so many return addresses deep.
    pub depth: u32,
    /// `blackbox:PATH`: the file that outlives the process.
    pub blackbox: Text<MAX_PATH>,
    /// `group-by:thread-name|nothing`: which group a thread works in that chooses none. For the one who
    /// starts threads; the core does not look at it.
    pub group_by: GroupBy,
    /// `strict:0|1`: refuse to start with a bad configuration.
    pub strict: bool,
    /// `report:NAME`: the abstract socket to call at exit.
    pub report: Text<MAX_NAME>,
}

/// When free pages are looked at, as the kernel's levels of `debug_pagealloc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckPages {
    /// Never.
    Off,
    /// When they come from a zone to a CPU.
    Refill,
    /// At every allocation and free as well.
    Every,
}

/// See [`Conf::group_by`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupBy {
    /// The root.
    Nothing,
    /// The one named after the thread, below the root.
    ThreadName,
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

    /// The text.
    pub fn get(&self) -> Option<&[u8]> {
        (self.len > 0).then_some(&self.bytes[..self.len])
    }
}

/// What is wrong with one `opt:val`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// No such option.
    UnknownOption,
    /// The option does not take that value.
    BadValue,
}

impl Conf {
    /// What an empty text means.
    pub const DEFAULT: Self = Self {
        rseq: true,
        profiling: crate::root::profiling::ON,
        peak: false,
        decay_ms: 20,
        check_pages: CheckPages::Refill,
        debug_pagealloc: false,
        page_poison: false,
        init_on_alloc: false,
        init_on_free: false,
        shuffle: false,
        redzone: false,
        check_caches: false,
        quarantine_kb: 0,
        strict: false,
        debug: false,
        cumulative: false,
        depth: 1,
        group_by: GroupBy::Nothing,
        blackbox: Text::NONE,
        report: Text::NONE,
    };

    /// Applies a text on top of `self`. `complain` is told each part that was left out.
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

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Complaint> {
        match key {
            b"rseq" => self.rseq = switch(value)?,
            b"mem_profiling" => {
                self.profiling = match value {
                    b"0" => crate::root::profiling::OFF,
                    b"1" => crate::root::profiling::ON,
                    b"never" => crate::root::profiling::NEVER,
                    _ => return Err(Complaint::BadValue),
                }
            }
            b"peak" => self.peak = switch(value)?,
            b"strict" => self.strict = switch(value)?,
            b"decay_ms" => {
                self.decay_ms =
                    number(value).filter(|&ms| ms <= 3_600_000).ok_or(Complaint::BadValue)?;
            }
            b"report" => self.report = Text::of(value)?,
            b"blackbox" => self.blackbox = Text::of(value)?,
            b"cumulative" => self.cumulative = switch(value)?,
            b"check_pages" => {
                self.check_pages = match value {
                    b"off" => CheckPages::Off,
                    b"refill" => CheckPages::Refill,
                    b"every" => CheckPages::Every,
                    _ => return Err(Complaint::BadValue),
                }
            }
            b"debug_pagealloc" => self.debug_pagealloc = switch(value)?,
            b"page_poison" => self.page_poison = switch(value)?,
            b"init_on_alloc" => self.init_on_alloc = switch(value)?,
            b"init_on_free" => self.init_on_free = switch(value)?,
            b"shuffle" => self.shuffle = switch(value)?,
            b"redzone" => self.redzone = switch(value)?,
            b"check_caches" => self.check_caches = switch(value)?,
            b"quarantine_kb" => {
                self.quarantine_kb =
                    number(value).filter(|&kb| kb <= 1 << 20).ok_or(Complaint::BadValue)?;
            }
            b"debug" => self.debug = value.is_empty() || switch(value)?,
            b"group-by" => {
                self.group_by = match value {
                    b"nothing" => GroupBy::Nothing,
                    b"thread-name" => GroupBy::ThreadName,
                    _ => return Err(Complaint::BadValue),
                }
            }
            b"depth" => {
                let depth = number(value).filter(|depth| (1..=MAX_DEPTH).contains(depth));
                self.depth = depth.ok_or(Complaint::BadValue)?;
            }
            _ => return Err(Complaint::UnknownOption),
        }
        Ok(())
    }
}

fn switch(value: &[u8]) -> Result<bool, Complaint> {
    match value {
        b"1" | b"on" => Ok(true),
        b"0" | b"off" => Ok(false),
        _ => Err(Complaint::BadValue),
    }
}

/// A decimal number without sign.
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
    fn unknown_options_are_named() {
        let (conf, complaints) = parse("mem_profilign:0,rseq:off");
        assert!(!conf.rseq);
        assert_eq!(complaints, [("mem_profilign".to_string(), Complaint::UnknownOption)]);
    }
}
