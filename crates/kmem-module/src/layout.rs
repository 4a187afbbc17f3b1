//! Where the sections of a module lie in its memory, found out from the section table before there is any.
//!
//! ```text
//! text | rodata | ro_after_init | data || init.text | init.rodata | init.data
//! RX     R        RW, then R      RW      RX          R             RW           given back after init
//! ```
//!
//! Each part is whole pages, so that each can be protected alone. Veneers follow the text, the table of far addresses
//! (GOT) the read-only data. A section's contents are copied: sections that overlap in the file do not in memory.

use std::fmt;
use std::ops::Range;

use crate::elf::constants as elf;
use crate::elf::{Elf, Section};
use crate::error::{Errno, Error, Result};
use crate::os::PAGE;

/// A part of a module's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Code.
    Text,
    /// Never written once it is relocated.
    RoData,
    /// Not written any more after init.
    RoAfterInit,
    /// Written to.
    Data,
    /// Code of init only.
    InitText,
    /// Constants of init only.
    InitRoData,
    /// Variables of init only.
    InitData,
}

impl Part {
    /// All, in the order of memory.
    pub const ALL: [Self; 7] = [
        Self::Text,
        Self::RoData,
        Self::RoAfterInit,
        Self::Data,
        Self::InitText,
        Self::InitRoData,
        Self::InitData,
    ];

    /// Whether it is given back after init.
    #[must_use]
    pub fn is_init(self) -> bool {
        self >= Self::InitText
    }

    /// The part a section belongs to; none if it is not loaded.
    #[must_use]
    pub fn of(section: &Section, name: &str) -> Option<Self> {
        // What the loader itself reads needs no place in the module's memory; unwinding tables nobody would know of.
        if !section.is_allocated() || matches!(name, ".modinfo" | "__versions" | ".eh_frame") {
            return None;
        }
        let init = name.starts_with(".init") && !name.starts_with(".init_array");
        // Writable for the compiler, as relocations are written to them; for nobody after that.
        let relocated = [".data.rel.ro", ".init_array", ".fini_array", "kmem_"];
        Some(if section.is_executable() {
            if init { Self::InitText } else { Self::Text }
        } else if !section.is_writable() || relocated.iter().any(|start| name.starts_with(start)) {
            if init { Self::InitRoData } else { Self::RoData }
        } else if name == ".data..ro_after_init" || name == "__jump_table" {
            Self::RoAfterInit
        } else if init {
            Self::InitData
        } else {
            Self::Data
        })
    }
}

/// The section of per-CPU variables.
pub const PERCPU: &str = ".data..percpu";

/// Per-CPU variables: a copy for each CPU, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerCpu {
    /// Where the first copy is.
    pub offset: u64,
    /// From one copy to the next.
    pub unit: u64,
    /// Bytes of a copy.
    pub size: u64,
}

/// What is to be laid out beside sections, and how much there may be.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// Far addresses.
    pub got: u64,
    /// Veneers.
    pub veneers: u64,
    /// CPUs that per-CPU variables have copies for.
    pub cpus: u64,
    /// Most bytes in all.
    pub most: u64,
}

/// Bytes of a veneer.
pub const VENEER: u64 = 16;

/// Where everything lies, as offsets in the module's memory.
#[derive(Clone, Debug)]
pub struct Layout {
    sections: Vec<Option<u64>>,
    parts: [Range<u64>; 7],
    /// The far addresses.
    pub got: u64,
    /// The veneers.
    pub veneers: u64,
    /// Per-CPU variables.
    pub percpu: Option<PerCpu>,
    /// Bytes of code: text sections and veneers, without padding to pages.
    pub text: u64,
    /// Bytes of everything.
    pub total: u64,
}

impl Layout {
    /// Lays out a file.
    ///
    /// # Errors
    /// `E2BIG` for more than is wanted; `ENOMEM` if there is no memory for the table of sections.
    pub fn new(file: &Elf<'_>, wants: Wants) -> Result<Self> {
        let too_big = |what: fmt::Arguments<'_>| {
            Error::new(
                Errno::E2BIG,
                format_args!("{what}: the module takes more than {} bytes", wants.most),
            )
        };
        let mut sections = Vec::new();
        let count = usize::from(file.count());
        sections
            .try_reserve_exact(count)
            .map_err(|_| Error::nomem(count as u64 * 16, "the layout"))?;
        sections.resize(count, None);
        let mut placed = Vec::new();
        placed
            .try_reserve_exact(count)
            .map_err(|_| Error::nomem(count as u64 * 16, "the layout"))?;
        for (number, section) in file.sections() {
            let name = file.name(&section);
            if let Some(part) = Part::of(&section, name) {
                placed.push((part, number, section, name == PERCPU));
            }
        }
        let mut this = Self {
            sections,
            parts: Default::default(),
            got: 0,
            veneers: 0,
            percpu: None,
            text: 0,
            total: 0,
        };
        let mut at = 0_u64;
        for (part, range) in Part::ALL.into_iter().zip(0..) {
            let start = at;
            for (_, number, section, percpu) in placed.iter().filter(|p| p.0 == part) {
                let (size, align) = (section.size, section.align.max(1));
                let name = format_args!("section {number}");
                let (size, align) = if *percpu {
                    let align = align.max(64);
                    let unit = size.checked_next_multiple_of(align).ok_or_else(|| too_big(name))?;
                    let all = unit.checked_mul(wants.cpus).ok_or_else(|| too_big(name))?;
                    let offset = at.next_multiple_of(align);
                    this.percpu = Some(PerCpu { offset, unit, size });
                    (all, align)
                } else {
                    (size, align)
                };
                // `at` is at most the limit, and an alignment at most 2 MiB.
                let offset = at.next_multiple_of(align);
                let end = offset.checked_add(size).filter(|&end| end <= wants.most);
                at = end.ok_or_else(|| too_big(name))?;
                this.sections[usize::from(*number)] = Some(offset);
            }
            let extra = |at: &mut u64, count: u64, size: u64| {
                let offset = at.next_multiple_of(size);
                *at = offset + count * size;
                offset
            };
            if part == Part::Text {
                this.veneers = extra(&mut at, wants.veneers, VENEER);
                this.text += at - start;
            } else if part == Part::RoData {
                this.got = extra(&mut at, wants.got, 8);
            } else if part == Part::InitText {
                this.text += at - start;
            }
            at = at.next_multiple_of(PAGE);
            this.parts[range] = start..at;
        }
        if at > wants.most {
            return Err(too_big(format_args!("all sections")));
        }
        this.total = at.max(PAGE);
        Ok(this)
    }

    /// Where a section lies; none if it is not loaded.
    #[must_use]
    pub fn section(&self, number: u16) -> Option<u64> {
        self.sections.get(usize::from(number)).copied().flatten()
    }

    /// Where a part lies.
    #[must_use]
    pub fn part(&self, part: Part) -> Range<u64> {
        self.parts[part as usize].clone()
    }

    /// Where what is kept after init ends.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.parts[Part::InitText as usize].start
    }

    /// Whether `len` bytes at `offset` are in one part of those given.
    #[must_use]
    pub fn is_in(&self, parts: &[Part], offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        parts.iter().any(|&part| {
            let range = self.part(part);
            range.start <= offset && end <= range.end
        })
    }
}

/// Whether the contents of a section are zeroes that are not in the file.
#[must_use]
pub fn is_zeroed(section: &Section) -> bool {
    section.kind == elf::SHT_NOBITS
}
