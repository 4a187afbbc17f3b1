//! The layout of a module's memory, made from the section table before the memory is allocated.
//!
//! ```text
//!                                      || unmapped after init:
//! text | rodata | ro_after_init | data || init.text | init.rodata | init.data
//! RX   | R      | RW, then R    | RW   || RX        | R           | RW
//! ```
//!
//! Per-CPU variables are no part of this memory. Their section is loaded as a template, into the
//! data for init. The allocator has the copies.
//!
//! Each part is whole pages, so that its protection can differ. Veneers follow the text. The table
//! of far addresses (GOT) and the module's symbols follow the read-only data. Contents of sections
//! are copied, so sections that overlap in the file do not overlap in memory.

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
    /// Data that is not written after relocation.
    RoData,
    /// Data that is not written after init.
    RoAfterInit,
    /// Writable data.
    Data,
    /// Code that only init uses.
    InitText,
    /// Constants that only init uses.
    InitRoData,
    /// Variables that only init uses.
    InitData,
}

impl Part {
    /// All parts, in the order of memory.
    pub const ALL: [Self; 7] = [
        Self::Text,
        Self::RoData,
        Self::RoAfterInit,
        Self::Data,
        Self::InitText,
        Self::InitRoData,
        Self::InitData,
    ];

    /// Returns whether it is unmapped after init.
    #[must_use]
    pub fn is_init(self) -> bool {
        self >= Self::InitText
    }

    /// The part of a section. `None`: the section is not loaded.
    #[must_use]
    pub fn of(section: &Section, name: &str) -> Option<Self> {
        // The loader reads the first two from the file. Tables for unwinding are registered
        // nowhere.
        if !section.is_allocated() || matches!(name, ".modinfo" | "__versions" | ".eh_frame") {
            return None;
        }
        if name == PERCPU {
            return Some(Self::InitData);
        }
        let init = name.starts_with(".init") && !name.starts_with(".init_array");
        // The compiler makes these sections writable, but only relocation writes to them.
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

/// Most bytes of a module's per-CPU variables: the largest per-CPU object of the allocator.
pub const MAX_PERCPU: u64 = kmem_core::class::MAX_OBJECT as u64;

/// Per-CPU variables of a module. The allocator has a copy of them for each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerCpu {
    /// Number of their section.
    pub section: u16,
    /// Bytes of a copy.
    pub size: u64,
    /// Their alignment in bytes.
    pub align: u64,
}

impl PerCpu {
    /// The per-CPU variables of a file, if it has any.
    ///
    /// # Errors
    /// `E2BIG`: they have more than [`MAX_PERCPU`] bytes; `ENOEXEC`: they are aligned to more than
    /// a page.
    pub fn of(file: &Elf<'_>) -> Result<Option<Self>> {
        let found = file.find(PERCPU).filter(|(_, found)| found.is_allocated() && found.size > 0);
        let Some((number, Section { size, align, .. })) = found else { return Ok(None) };
        if size > MAX_PERCPU {
            let what = format_args!("per-CPU variables: {size} bytes are more than {MAX_PERCPU}");
            return Err(Error::new(Errno::E2BIG, what));
        }
        if align > PAGE {
            return Err(Error::noexec(format_args!(
                "per-CPU variables are aligned to {align} bytes, more than {PAGE}"
            )));
        }
        Ok(Some(Self { section: number, size, align: align.max(1) }))
    }
}

/// Space needed beside sections, and the limit.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// Number of far addresses.
    pub got: u64,
    /// Number of veneers.
    pub veneers: u64,
    /// Bytes of the symbols that are kept.
    pub symbols: u64,
    /// Most bytes of the memory.
    pub most: u64,
}

/// Bytes of a veneer.
pub const VENEER: u64 = 16;

/// The layout of a module's memory. Places are offsets in bytes.
#[derive(Clone, Debug)]
pub struct Layout {
    sections: Vec<Option<u64>>,
    parts: [Range<u64>; 7],
    /// Offset of the far addresses.
    pub got: u64,
    /// Offset of the veneers.
    pub veneers: u64,
    /// Offset of the symbols: an ELF file.
    pub symbols: u64,
    /// Bytes of the symbols.
    pub symbols_size: u64,
    /// Bytes of code: text sections and veneers, without padding to pages.
    pub text: u64,
    /// Bytes of the memory.
    pub total: u64,
}

impl Layout {
    /// Makes the layout of a file.
    ///
    /// # Errors
    /// `E2BIG`: it needs more than [`Wants::most`] bytes; `ENOMEM`.
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
                placed.push((part, number, section));
            }
        }
        let mut this = Self {
            sections,
            parts: Default::default(),
            got: 0,
            veneers: 0,
            symbols: 0,
            symbols_size: wants.symbols,
            text: 0,
            total: 0,
        };
        let mut at = 0_u64;
        for (part, range) in Part::ALL.into_iter().zip(0..) {
            let start = at;
            for (_, number, section) in placed.iter().filter(|p| p.0 == part) {
                let (size, align) = (section.size, section.align.max(1));
                // Cannot overflow: `at` is at most the limit, an alignment at most 2 MiB.
                let offset = at.next_multiple_of(align);
                let end = offset.checked_add(size).filter(|&end| end <= wants.most);
                at = end.ok_or_else(|| too_big(format_args!("section {number}")))?;
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
                this.symbols = extra(&mut at, wants.symbols.div_ceil(8), 8);
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

    /// Offset of a section. `None`: it is not loaded.
    #[must_use]
    pub fn section(&self, number: u16) -> Option<u64> {
        self.sections.get(usize::from(number)).copied().flatten()
    }

    /// Range of a part.
    #[must_use]
    pub fn part(&self, part: Part) -> Range<u64> {
        self.parts[part as usize].clone()
    }

    /// Bytes that stay mapped after init.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.parts[Part::InitText as usize].start
    }

    /// Returns whether `len` bytes at `offset` lie in one of the given parts.
    #[must_use]
    pub fn is_in(&self, parts: &[Part], offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        parts.iter().any(|&part| {
            let range = self.part(part);
            range.start <= offset && end <= range.end
        })
    }
}

/// Returns whether a section has no bytes in the file and is zero in memory.
#[must_use]
pub fn is_zeroed(section: &Section) -> bool {
    section.kind == elf::SHT_NOBITS
}
