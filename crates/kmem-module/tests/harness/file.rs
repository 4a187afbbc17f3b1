//! A module's file in memory, to be damaged.

use kmem_module::elf::Machine;
use kmem_module::link::Options;
use kmem_module::os::{Account, Gauge, Linux};
use kmem_module::source::Source;
use kmem_module::tryout::{Report, try_out};
use kmem_module::{Error, Result};
use std::sync::Arc;

/// The bytes of a file.
#[derive(Clone)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

pub(crate) const SHDR: usize = 64;

impl Bytes {
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.0[at..at + 2].try_into().unwrap())
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    /// A copy with bytes of it replaced.
    #[must_use]
    pub(crate) fn with(&self, at: usize, bytes: &[u8]) -> Self {
        let mut copy = self.clone();
        copy.0[at..at + bytes.len()].copy_from_slice(bytes);
        copy
    }

    pub(crate) fn shoff(&self) -> usize {
        self.u64(40) as usize
    }

    pub(crate) fn shnum(&self) -> usize {
        self.u16(60).into()
    }

    /// Where entry `number` of the section table is.
    pub(crate) fn entry(&self, number: usize) -> usize {
        self.shoff() + number * SHDR
    }

    pub(crate) fn name(&self, number: usize) -> String {
        let names = self.u64(self.entry(self.u16(62).into()) + 24) as usize;
        let at = names + self.u32(self.entry(number)) as usize;
        let end = self.0[at..].iter().position(|&b| b == 0).unwrap();
        String::from_utf8(self.0[at..at + end].to_vec()).unwrap()
    }

    /// Number of the section of this name.
    #[track_caller]
    pub(crate) fn section(&self, name: &str) -> usize {
        let found = (1..self.shnum()).find(|&number| self.name(number) == name);
        found.unwrap_or_else(|| panic!("no section {name}"))
    }

    /// Where a field of a section's entry is.
    pub(crate) fn field(&self, section: &str, offset: usize) -> usize {
        self.entry(self.section(section)) + offset
    }

    /// Where the contents of a section are.
    pub(crate) fn contents(&self, section: &str) -> usize {
        self.u64(self.field(section, 24)) as usize
    }

    /// Where symbol `name` is in the file.
    #[track_caller]
    pub(crate) fn symbol(&self, name: &str) -> usize {
        let (table, names) = (self.contents(".symtab"), self.contents(".strtab"));
        let count = self.u64(self.field(".symtab", 32)) as usize / 24;
        let is = |at: usize| {
            self.0[names + self.u32(at) as usize..].starts_with(&[name.as_bytes(), &[0]].concat())
        };
        (0..count)
            .map(|i| table + i * 24)
            .find(|&at| is(at))
            .unwrap_or_else(|| panic!("no symbol {name}"))
    }

    /// Tries it out. Whatever comes of it, nothing may be left.
    #[track_caller]
    pub(crate) fn try_out(&self) -> Result<Report> {
        try_bytes(&self.0)
    }

    /// Tries it out, and it must be refused, for this reason.
    #[track_caller]
    pub(crate) fn refused(&self, what: &str) -> Error {
        let error = self.try_out().expect_err(what);
        assert!(error.to_string().contains(what), "{error}, and not {what}");
        error
    }
}

pub(crate) const OPTIONS: Options =
    Options { machine: Machine::HERE, base: None, most: 64 << 20, this_module: 0x1000 };

#[track_caller]
pub(crate) fn try_bytes(bytes: &[u8]) -> Result<Report> {
    let gauge = Arc::<Gauge>::default();
    let account = Account::new(Arc::new(Linux), gauge.clone()).unwrap();
    let result = try_out(Source::Bytes(bytes), &account, &super::Host, &OPTIONS);
    assert_eq!(gauge.now(), 0, "bytes are left");
    result
}
