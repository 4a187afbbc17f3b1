//! Parameters of a module: `name=value` words, separated by blanks and quoted as on the kernel's
//! command line.

use std::fmt;

use crate::alloc::{self, Lossy};
use crate::elf::{Elf, u16_at, u32_at, u64_at};
use crate::error::{Errno, Error, Result, warn};
use crate::image::Image;
use crate::layout::Part;
use crate::symbols::each_entry;

/// Bytes of a `struct kmem_param`.
const PARAM: usize = 32;

/// Most bytes of a string that are shown: as a file in `/sys`, a page.
const MOST_TEXT: usize = 4096;

/// Type of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the kernel's names
pub enum Type {
    Byte,
    Short,
    Ushort,
    Int,
    Uint,
    Long,
    Ulong,
    Ullong,
    Hexint,
    Charp,
    Bool,
    Invbool,
}

const TYPES: [(Type, &str, usize); 12] = [
    (Type::Byte, "byte", 1),
    (Type::Short, "short", 2),
    (Type::Ushort, "ushort", 2),
    (Type::Int, "int", 4),
    (Type::Uint, "uint", 4),
    (Type::Long, "long", 8),
    (Type::Ulong, "ulong", 8),
    (Type::Ullong, "ullong", 8),
    (Type::Hexint, "hexint", 4),
    (Type::Charp, "charp", 8),
    (Type::Bool, "bool", 1),
    (Type::Invbool, "invbool", 1),
];

impl Type {
    fn bytes(self) -> usize {
        TYPES[self as usize].2
    }

    fn name(self) -> &'static str {
        TYPES[self as usize].1
    }
}

/// The destination of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Variable,
    /// Number of elements, and the place for the number of values given.
    Array(u32, Option<u64>),
    /// Bytes of the string, its zero byte included.
    String(u32),
}

/// A parameter of a module. Places are offsets in the image, in parts that are writable before init
/// ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Permissions of its file in `/sys/module/NAME/parameters`; 0: it has none, and is not shown.
    pub permissions: u16,
    offset: u64,
    of: Type,
    kind: Kind,
}

/// Reads the section of parameters after relocation.
///
/// # Errors
/// `ENOEXEC`: a name or value is not in the module's memory; `ENOMEM`.
pub fn params(file: &Elf<'_>, image: &Image) -> Result<Vec<Param>> {
    let mut found = Vec::new();
    each_entry(file, image, "kmem_params", PARAM, |number, entry| {
        let bad =
            |what: fmt::Arguments<'_>| Error::noexec(format_args!("parameter {number}: {what}"));
        let name = image
            .string(u64_at(entry, 0))
            .ok_or_else(|| bad(format_args!("its name is not in the module")))?;
        let name = std::str::from_utf8(name);
        let name = name.map_err(|_| bad(format_args!("its name is no text")))?;
        let of = TYPES.get(usize::from(entry[30])).map(|t| t.0);
        let of = of.ok_or_else(|| bad(format_args!("{name}: type {} is unknown", entry[30])))?;
        let room = u32_at(entry, 24);
        let writable = [Part::RoAfterInit, Part::Data, Part::InitData];
        let place = |address: u64, len: u64, align: u64| {
            let offset = image.offset(address)?;
            let fits = image.layout.is_in(&writable, offset, len) && address.is_multiple_of(align);
            fits.then_some(offset)
        };
        let (len, kind) = match entry[31] {
            0 => (of.bytes() as u64, Kind::Variable),
            1 => {
                let count = match u64_at(entry, 16) {
                    0 => None,
                    at => Some(place(at, 4, 4).ok_or_else(|| {
                        bad(format_args!("{name}: its count is not in the module's data"))
                    })?),
                };
                (u64::from(room) * of.bytes() as u64, Kind::Array(room, count))
            }
            2 => (u64::from(room), Kind::String(room)),
            other => return Err(bad(format_args!("{name}: kind {other} is unknown"))),
        };
        let align = if kind == Kind::String(room) { 1 } else { of.bytes() as u64 };
        let offset = place(u64_at(entry, 8), len, align)
            .ok_or_else(|| bad(format_args!("{name}: its value is not in the module's data")))?;
        let permissions = u16_at(entry, 28);
        alloc::push(&mut found, Param { name: alloc::text(name)?, permissions, offset, of, kind })
    })?;
    Ok(found)
}

/// The strings that `charp` parameters point to, which live as long as the module.
pub type Strings = Vec<Vec<u8>>;

/// Splits arguments into words, and calls `each` until it returns false. Quotes keep blanks
/// together and are removed. An opening quote may stand at the start of a word or behind the `=`.
fn each_word(args: &str, mut each: impl FnMut(&str) -> Result<bool>) -> Result<()> {
    let mut word = alloc::text(args)?;
    word.clear();
    let (mut quoted, mut begun) = (false, false);
    if args.bytes().filter(|&b| b == b'"').count() % 2 != 0 {
        let what = format_args!("arguments: a quote is not closed in {args:?}");
        return Err(Error::new(Errno::EINVAL, what));
    }
    for c in args.chars() {
        match c {
            '"' => (quoted, begun) = (!quoted, true),
            c if c.is_ascii_whitespace() && !quoted => {
                if begun && !each(&word)? {
                    return Ok(());
                }
                word.clear();
                begun = false;
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun { each(&word).map(drop) } else { Ok(()) }
}

/// Writes the values of arguments into the image of a module that is not sealed yet. As in the
/// kernel, an unknown parameter and arguments behind the word `--` are ignored with a warning.
///
/// # Errors
/// `EINVAL` or `ERANGE`: a value does not fit; `ENOMEM`. The text names the parameter.
pub fn parse(module: &str, args: &str, params: &[Param], image: &mut Image) -> Result<Strings> {
    let mut strings = Strings::new();
    let mut is_over = false;
    each_word(args, |word| {
        if is_over {
            warn(format_args!("{module}: parameters after `--' ignored, from {word:?} on"));
            return Ok(false);
        }
        if word == "--" {
            is_over = true;
            return Ok(true);
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        // As in the kernel, a dash equals an underscore.
        let normal = |b: u8| if b == b'-' { b'_' } else { b };
        let is = |param: &&Param| param.name.bytes().map(normal).eq(name.bytes().map(normal));
        let Some(param) = params.iter().find(is) else {
            warn(format_args!("{module}: unknown parameter {name:?} ignored"));
            return Ok(true);
        };
        param.set(value, image, &mut strings).map(|()| true)
    })?;
    Ok(strings)
}

impl Param {
    fn bad(&self, errno: Errno, what: impl fmt::Display) -> Error {
        Error::new(errno, format_args!("parameter {}: {what}", self.name))
    }

    /// Returns whether its value can be read while its module is live: it is shown, and its
    /// variables are not given back after init.
    pub(crate) fn is_readable(&self, image: &Image) -> bool {
        let count = if let Kind::Array(_, count) = self.kind { count } else { None };
        let is_kept = |offset: u64| offset < image.layout.kept();
        self.permissions != 0 && is_kept(self.offset) && count.is_none_or(is_kept)
    }

    /// Its value, as the kernel writes it.
    ///
    /// # Safety
    /// Its module is live. A `charp` points to a string or is null.
    pub(crate) unsafe fn value<'a>(&'a self, image: &'a Image) -> impl fmt::Display + 'a {
        Value { param: self, image }
    }

    fn set(&self, value: Option<&str>, image: &mut Image, strings: &mut Strings) -> Result<()> {
        match (self.kind, value) {
            (Kind::Variable, value) => self.set_one(self.offset, value, image, strings),
            (_, None) => Err(self.bad(Errno::EINVAL, "needs a value")),
            (Kind::String(room), Some(value)) => {
                if value.len() >= room as usize {
                    let what = format_args!(
                        "{} bytes are too long for {}",
                        value.len(),
                        room.saturating_sub(1)
                    );
                    return Err(self.bad(Errno::EINVAL, what));
                }
                let to = &mut image.bytes_mut()[self.offset as usize..];
                to[..value.len()].copy_from_slice(value.as_bytes());
                to[value.len()] = 0;
                Ok(())
            }
            (Kind::Array(room, count), Some(values)) => {
                let mut given = 0_u32;
                for value in values.split(',') {
                    if given == room {
                        return Err(
                            self.bad(Errno::EINVAL, format_args!("more than {room} values"))
                        );
                    }
                    let at = self.offset + u64::from(given) * self.of.bytes() as u64;
                    self.set_one(at, Some(value), image, strings)?;
                    given += 1;
                }
                if let Some(at) = count {
                    image.bytes_mut()[at as usize..][..4].copy_from_slice(&given.to_le_bytes());
                }
                Ok(())
            }
        }
    }

    fn set_one(
        &self,
        at: u64,
        value: Option<&str>,
        image: &mut Image,
        strings: &mut Strings,
    ) -> Result<()> {
        let to = &mut image.bytes_mut()[at as usize..][..self.of.bytes()];
        match (self.of, value) {
            (Type::Bool | Type::Invbool, value) => {
                let on = match value {
                    None | Some("y" | "Y" | "1" | "on" | "On" | "t" | "T") => true,
                    Some("n" | "N" | "0" | "off" | "Off" | "f" | "F") => false,
                    Some(other) => {
                        return Err(
                            self.bad(Errno::EINVAL, format_args!("{other:?} is no bool (y or n)"))
                        );
                    }
                };
                to[0] = u8::from(on ^ (self.of == Type::Invbool));
            }
            (_, None) => return Err(self.bad(Errno::EINVAL, "needs a value")),
            (Type::Charp, Some(value)) => {
                let mut string = alloc::list(value.len() + 1)?;
                string.extend_from_slice(value.as_bytes());
                string.push(0);
                to.copy_from_slice(&(string.as_ptr() as u64).to_le_bytes());
                // This moves the vector, not its bytes.
                alloc::push(strings, string)?;
            }
            (_, Some(value)) => {
                let number = self.number(value)?;
                to.copy_from_slice(&number.to_le_bytes()[..to.len()]);
            }
        }
        Ok(())
    }

    /// Parses a number in C's notation.
    ///
    /// # Errors
    /// `EINVAL`: it is no number; `ERANGE`: it does not fit the type.
    fn number(&self, text: &str) -> Result<i128> {
        let trimmed = text.trim();
        let (negative, digits) = match trimmed.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
        };
        let parsed = if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            u64::from_str_radix(hex, 16)
        } else if digits.len() > 1 && digits.starts_with('0') {
            u64::from_str_radix(&digits[1..], 8)
        } else {
            digits.parse()
        };
        let name = self.of.name();
        let parsed = match parsed {
            // `from_str_radix` also accepts a sign.
            Ok(value) if !digits.contains(['+', '-']) => i128::from(value),
            Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => {
                return Err(self.bad(Errno::ERANGE, format_args!("{text:?} does not fit {name}")));
            }
            _ => {
                return Err(self.bad(Errno::EINVAL, format_args!("{text:?} is no number ({name})")));
            }
        };
        let value = if negative { -parsed } else { parsed };
        let (least, most) = match self.of {
            Type::Byte => (0, i128::from(u8::MAX)),
            Type::Short => (i128::from(i16::MIN), i128::from(i16::MAX)),
            Type::Ushort => (0, i128::from(u16::MAX)),
            Type::Int => (i128::from(i32::MIN), i128::from(i32::MAX)),
            Type::Uint | Type::Hexint => (0, i128::from(u32::MAX)),
            Type::Long => (i128::from(i64::MIN), i128::from(i64::MAX)),
            _ => (0, i128::from(u64::MAX)),
        };
        if value < least || value > most {
            return Err(self.bad(Errno::ERANGE, format_args!("{text:?} does not fit {name}")));
        }
        Ok(value)
    }
}

/// The value of a parameter of a live module, whose string, if it is one, is valid.
struct Value<'a> {
    param: &'a Param,
    image: &'a Image,
}

impl Value<'_> {
    /// Reads a word of the module's data, which other threads may write.
    fn word<T: Copy>(&self, offset: u64) -> T {
        let at = self.image.at(offset).cast::<T>();
        // SAFETY: `params` checked that the place is in the module's data, and aligned. Any bytes
        // are a value, and a value is read by one access.
        unsafe { at.as_ptr().read_volatile() }
    }

    /// Writes the string at `at`, up to a zero byte or `most` bytes.
    fn string(f: &mut fmt::Formatter<'_>, at: *const u8, most: usize) -> fmt::Result {
        let mut bytes = [0; MOST_TEXT];
        let mut len = 0;
        while len < most.min(MOST_TEXT) {
            // SAFETY: the string has not ended before this byte, and it is in the module's data, or
            // valid by the contract of `Param::value`.
            bytes[len] = unsafe { at.add(len).read_volatile() };
            if bytes[len] == 0 {
                break;
            }
            len += 1;
        }
        write!(f, "{}", Lossy(&bytes[..len]))
    }

    fn one(&self, f: &mut fmt::Formatter<'_>, offset: u64) -> fmt::Result {
        let is_on = |on: u8| if on != 0 { "Y" } else { "N" };
        match self.param.of {
            Type::Byte => write!(f, "{}", self.word::<u8>(offset)),
            Type::Short => write!(f, "{}", self.word::<i16>(offset)),
            Type::Ushort => write!(f, "{}", self.word::<u16>(offset)),
            Type::Int => write!(f, "{}", self.word::<i32>(offset)),
            Type::Uint => write!(f, "{}", self.word::<u32>(offset)),
            Type::Long => write!(f, "{}", self.word::<i64>(offset)),
            Type::Ulong | Type::Ullong => write!(f, "{}", self.word::<u64>(offset)),
            // C's `%#08x` has no prefix for zero.
            Type::Hexint => match self.word::<u32>(offset) {
                0 => f.write_str("00000000"),
                value => write!(f, "{value:#08x}"),
            },
            Type::Bool => f.write_str(is_on(self.word(offset))),
            Type::Invbool => f.write_str(is_on(u8::from(self.word::<u8>(offset) == 0))),
            Type::Charp => match self.word::<u64>(offset) {
                0 => f.write_str("(null)"),
                at => Self::string(f, at as *const u8, usize::MAX),
            },
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Param { offset, of, .. } = *self.param;
        match self.param.kind {
            Kind::Variable => self.one(f, offset),
            Kind::String(room) => Self::string(f, self.image.at(offset).as_ptr(), room as usize),
            Kind::Array(room, count) => {
                let count = count.map_or(room, |at| self.word::<u32>(at).min(room));
                for number in 0..count {
                    if number > 0 {
                        f.write_str(",")?;
                    }
                    self.one(f, offset + u64::from(number) * of.bytes() as u64)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &str) -> Result<Vec<String>> {
        let mut words = Vec::new();
        each_word(args, |word| {
            words.push(word.to_owned());
            Ok(true)
        })?;
        Ok(words)
    }

    #[test]
    fn quotes_keep_blanks_together() {
        assert_eq!(
            words(" a=1  \"b=2 3\" c=\"4 5\" d=\"\" ").unwrap(),
            ["a=1", "b=2 3", "c=4 5", "d="]
        );
        assert!(words("a=\"1").unwrap_err().what.contains("not closed"));
    }

    #[test]
    fn numbers_fit_their_type_or_are_refused() {
        let number = |of, text: &str| {
            let param =
                Param { name: "n".to_owned(), permissions: 0, offset: 0, of, kind: Kind::Variable };
            param.number(text).map_err(|e| e.errno)
        };
        assert_eq!(number(Type::Int, "-0x10"), Ok(-16));
        assert_eq!(number(Type::Int, "010"), Ok(8));
        assert_eq!(number(Type::Ullong, "18446744073709551615"), Ok(i128::from(u64::MAX)));
        assert_eq!(number(Type::Byte, "256"), Err(Errno::ERANGE));
        assert_eq!(number(Type::Uint, "-1"), Err(Errno::ERANGE));
        assert_eq!(number(Type::Ullong, "18446744073709551616"), Err(Errno::ERANGE));
        for bad in ["", "x", "1x", "0x", "--1", "+-1", "0x-1", "1 2"] {
            assert_eq!(number(Type::Int, bad), Err(Errno::EINVAL), "{bad}");
        }
    }
}
