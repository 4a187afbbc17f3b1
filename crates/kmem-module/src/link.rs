//! Linking: makes a module's memory from a checked file. Copies sections, resolves symbols, applies
//! relocations. No code of the module runs.

use std::ffi::CStr;
use std::ops::Range;

use crate::alloc;
use crate::elf::constants as elf;
use crate::elf::{Elf, Machine, Symbol, Symtab, u64_at};
use crate::error::{Errno, Error, Result};
use crate::image::Image;
use crate::kallsyms::Kallsyms;
use crate::layout::{self, Layout, Part, PerCpu, Wants};
use crate::os::Account;
use crate::params::{self, Param};
use crate::relocate::{Far, Needs};
use crate::source::Window;
use crate::symbols::{self, Export};

/// Bytes of a static tag (`struct kmem_alloc_tag`).
const TAG: u64 = size_of::<kmem_core::StaticTag>() as u64;

/// Most symbols for starts and ends of sections in a module.
const MAX_BOUNDS: u32 = 1024;

/// Gives a module definitions of its undefined symbols, and memory for its per-CPU variables.
pub trait Resolve {
    /// Finds the value of a name. `None`: there is no such symbol.
    ///
    /// # Errors
    /// The module may not use the symbol.
    fn resolve(&mut self, name: &CStr) -> Result<Option<u64>>;

    /// Finds memory for the module's per-CPU variables. Returns the address that operations on them
    /// take (the kernel's `percpu_modalloc`).
    ///
    /// # Errors
    /// `ENOMEM`.
    fn percpu(&mut self, variables: PerCpu) -> Result<u64>;
}

/// Settings of a link.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The processor to link for.
    pub machine: Machine,
    /// The address to link for. `None`: that of the memory. A module with an address is not run;
    /// its per-CPU variables are in reach of its code.
    pub base: Option<u64>,
    /// Most bytes of the module's memory.
    pub most: u64,
    /// Value of `__this_module`.
    pub this_module: u64,
}

/// A linked module. Addresses are those that it is linked for.
pub struct Linked {
    /// Its memory, not sealed yet.
    pub image: Image,
    /// Address of `init_module`.
    pub init: Option<u64>,
    /// Address of `cleanup_module`.
    pub exit: Option<u64>,
    /// Addresses of constructors.
    pub init_array: Vec<u64>,
    /// Addresses of destructors.
    pub fini_array: Vec<u64>,
    /// Its exported symbols.
    pub exports: Vec<Export>,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Addresses of its static tags.
    pub tags: Option<Range<u64>>,
    /// Offsets in the image of the first values of its per-CPU variables, for all copies.
    pub percpu: Option<Range<u64>>,
}

/// Per-CPU variables, and the address that operations on them take.
type Copies = Option<(PerCpu, u64)>;

/// Links a file.
///
/// # Errors
/// `ENOEXEC`: the file is wrong; `ENOENT`: a symbol is unknown; `E2BIG`: it needs more than
/// [`Options::most`] bytes; `ENOMEM`; those of [`Resolve`].
pub fn link(
    file: &Elf<'_>,
    account: &Account,
    options: &Options,
    resolve: &mut dyn Resolve,
) -> Result<Linked> {
    let symtab = Symtab::read(file, account)?;
    let mut window = Window::new(file.source, account)?;
    let percpu = PerCpu::of(file)?;
    let far = if options.base.is_none() { Far::Is(percpu) } else { Far::InReach };
    let needs = Needs::count(file, &symtab, &mut window, account, options.machine, far)?;
    let kallsyms = Kallsyms::count(file, &symtab);
    let wants = Wants {
        got: needs.got,
        veneers: needs.veneers,
        symbols: kallsyms.size(),
        most: options.most,
    };
    let layout = Layout::new(file, wants)?;
    let copies = match percpu {
        Some(variables) => Some((variables, resolve.percpu(variables)?)),
        None => None,
    };
    let mut image = Image::map(account, layout, options.base)?;
    for (number, section) in file.sections() {
        let Some(offset) = image.layout.section(number) else { continue };
        if !layout::is_zeroed(&section) {
            let to = &mut image.bytes_mut()[offset as usize..][..section.size as usize];
            file.source.read(account, section.offset, to, "a section")?;
        }
    }
    let mut values = account.buffer(u64::from(symtab.len()) * 8, "the values of symbols")?;
    let mut bounds = 0;
    for (number, symbol) in symtab.iter() {
        let value = match copies {
            Some((PerCpu { section, .. }, at)) if symbol.section == section => {
                at.wrapping_add(symbol.value)
            }
            _ => value(file, &symtab, &symbol, &image, options, resolve, &mut bounds)?,
        };
        values[number as usize * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    let percpu_at = copies.map_or(0, |(_, at)| at);
    needs.write_tables(&values, percpu_at, &mut image);
    needs.apply(file, &symtab, &values, &mut image, &mut window, account)?;
    kallsyms.write(file, &symtab, &values, options.machine, &mut image);
    let template = |(PerCpu { section, size, .. }, _)| {
        let start = image.layout.section(section)?;
        Some(start..start + size)
    };
    Ok(Linked {
        init: function(&symtab, &values, &image, "init_module", &[Part::Text, Part::InitText])?,
        exit: function(&symtab, &values, &image, "cleanup_module", &[Part::Text])?,
        init_array: array(file, &image, ".init_array", &[Part::Text, Part::InitText])?,
        fini_array: array(file, &image, ".fini_array", &[Part::Text])?,
        exports: symbols::exports(file, &image, &variables(copies))?,
        params: params::params(file, &image)?,
        tags: tags(file, &image)?,
        percpu: copies.and_then(template),
        image,
    })
}

/// Addresses of the per-CPU variables.
fn variables(copies: Copies) -> Range<u64> {
    copies.map_or(0..0, |(PerCpu { size, .. }, at)| at..at.wrapping_add(size))
}

/// The value of a symbol. `bounds` counts symbols for starts and ends of sections.
fn value(
    file: &Elf<'_>,
    symtab: &Symtab<'_>,
    symbol: &Symbol,
    image: &Image,
    options: &Options,
    resolve: &mut dyn Resolve,
    bounds: &mut u32,
) -> Result<u64> {
    match symbol.section {
        elf::SHN_ABS => return Ok(symbol.value),
        elf::SHN_UNDEF => {}
        section => {
            // A symbol of a section that is not loaded has no address.
            let start = image.layout.section(section);
            return Ok(start.map_or(0, |start| image.base().wrapping_add(start + symbol.value)));
        }
    }
    let name = symtab.name_c(symbol);
    if name.to_bytes().starts_with(b"__st") {
        // Each search goes through all sections, so their number is bounded.
        *bounds += 1;
        if *bounds > MAX_BOUNDS {
            let what = format_args!("more than {MAX_BOUNDS} undefined symbols called __st..");
            return Err(Error::new(Errno::E2BIG, what));
        }
    }
    if let Some(value) = linkers_own(file, image, options, name.to_bytes()) {
        return Ok(value);
    }
    match resolve.resolve(name)? {
        Some(value) => Ok(value),
        None if symbol.is_weak() => Ok(0),
        None => {
            let name = symtab.name(symbol);
            Err(Error::new(Errno::ENOENT, format_args!("unknown symbol {name:?}")))
        }
    }
}

/// The values of symbols that the linker itself defines.
fn linkers_own(file: &Elf<'_>, image: &Image, options: &Options, name: &[u8]) -> Option<u64> {
    let bounds = |section: &[u8]| {
        let (number, section) = file.find(std::str::from_utf8(section).ok()?)?;
        let start = image.base().wrapping_add(image.layout.section(number)?);
        Some((start, start.wrapping_add(section.size)))
    };
    match name {
        b"_GLOBAL_OFFSET_TABLE_" => Some(image.base().wrapping_add(image.layout.got)),
        b"__this_module" => Some(options.this_module),
        _ => match (name.strip_prefix(b"__start_"), name.strip_prefix(b"__stop_")) {
            (Some(section), _) => bounds(section).map(|range| range.0),
            (_, Some(section)) => bounds(section).map(|range| range.1),
            _ => None,
        },
    }
}

/// The address of a global function of the module, which must lie in one of `parts`.
fn function(
    symtab: &Symtab<'_>,
    values: &[u8],
    image: &Image,
    name: &str,
    parts: &[Part],
) -> Result<Option<u64>> {
    let found = symtab.iter().find(|(_, symbol)| {
        symbol.section != elf::SHN_UNDEF
            && !symbol.is_local()
            && symtab.name_bytes(symbol) == name.as_bytes()
    });
    let Some((number, _)) = found else { return Ok(None) };
    let address = u64_at(values, number as usize * 8);
    in_text(image, address, parts, name).map(Some)
}

fn in_text(image: &Image, address: u64, parts: &[Part], what: &str) -> Result<u64> {
    match image.offset(address) {
        Some(offset) if image.layout.is_in(parts, offset, 1) => Ok(address),
        _ => Err(Error::noexec(format_args!("{what} ({address:#x}) is not in the module's code"))),
    }
}

/// The addresses in an array of functions, which must lie in one of `parts`.
fn array(file: &Elf<'_>, image: &Image, name: &str, parts: &[Part]) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    symbols::each_entry(file, image, name, 8, |_, entry| {
        match u64_at(entry, 0) {
            0 | u64::MAX => {}
            address => alloc::push(&mut found, in_text(image, address, parts, name)?)?,
        }
        Ok(())
    })?;
    Ok(found)
}

/// The addresses of the static tags. Checks that their names are strings of the module.
fn tags(file: &Elf<'_>, image: &Image) -> Result<Option<Range<u64>>> {
    let mut count = 0;
    symbols::each_entry(
        file,
        image,
        kmem_core::codetag::SECTION,
        TAG as usize,
        |number, entry| {
            for (at, field, required) in
                [(0, "module", false), (8, "file", true), (16, "function", true)]
            {
                let address = u64_at(entry, at);
                if (address == 0 && !required) || image.string(address).is_some() {
                    continue;
                }
                return Err(Error::noexec(format_args!(
                    "code tag {number}: its {field} ({address:#x}) is no string of the module"
                )));
            }
            count += 1;
            Ok(())
        },
    )?;
    let Some((number, _)) = file.find(kmem_core::codetag::SECTION).filter(|_| count > 0) else {
        return Ok(None);
    };
    let start = image.layout.section(number).map(|offset| image.base().wrapping_add(offset));
    let start = start.filter(|start| start.is_multiple_of(8));
    let start = start.ok_or_else(|| Error::noexec("code tags are not aligned to 8 bytes"))?;
    Ok(Some(start..start.wrapping_add(count * TAG)))
}
