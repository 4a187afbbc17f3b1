//! Misuse by the program: one line that says what the address is, then the end.

use super::Instance;
use crate::class::SizeClass;
use crate::os::Platform;

/// Why an address cannot be freed or resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not an address of this allocator.
    Foreign,
    /// The handle of a per-CPU object, or in one.
    PerCpu,
    /// In a part of the heap that was never handed out.
    NeverAllocated,
    /// A slab object that was never handed out.
    NeverAllocatedObject {
        /// Its size class, in bytes.
        size: u32,
    },
    /// A slab object that is free.
    FreeObject {
        /// Its size class, in bytes.
        size: u32,
        /// Return address of its last allocation, 0 if unknown.
        last: usize,
    },
    /// Inside a slab object.
    InsideObject {
        /// Address of the object.
        object: usize,
        /// Distance from its start.
        offset: u32,
        /// Its size class, in bytes.
        size: u32,
    },
    /// In a slab's own data.
    Metadata,
    /// A page allocation that is free.
    FreePages {
        /// Return address of its last allocation, 0 if unknown.
        last: usize,
    },
    /// Inside a page allocation.
    InsidePages {
        /// Address of the allocation.
        block: usize,
        /// Distance from its start.
        offset: usize,
        /// Its length.
        pages: u32,
    },
}

/// A line of text on the stack; what does not fit is lost.
pub(super) struct Line {
    text: [u8; 400],
    len: usize,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self { text: [0; 400], len: 0 }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.len < self.text.len() {
                self.text[self.len] = byte;
                self.len += 1;
            }
        }
    }

    /// Bytes from outside, with everything unprintable replaced.
    pub(super) fn printable(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.bytes(&[if byte.is_ascii_graphic() || byte == b' ' { byte } else { b'?' }]);
        }
    }

    /// A number in decimal, right-aligned in `width` columns.
    pub(super) fn padded(&mut self, value: u64, width: usize) {
        let mut digits = Self::new();
        digits.decimal(value as usize);
        self.right(digits.text(), width);
    }

    /// A size with a binary unit, right-aligned: `55.0 MiB`.
    pub(super) fn size(&mut self, bytes: u64, width: usize) {
        const UNITS: [&[u8]; 7] = [b" B", b" KiB", b" MiB", b" GiB", b" TiB", b" PiB", b" EiB"];
        let mut text = Self::new();
        let unit = (64 - bytes.leading_zeros()).saturating_sub(1) / 10;
        if unit == 0 {
            text.decimal(bytes as usize);
        } else {
            let tenths = (bytes >> (10 * (unit - 1))) * 10 / 1024;
            text.decimal((tenths / 10) as usize);
            text.bytes(b".");
            text.decimal((tenths % 10) as usize);
        }
        text.bytes(UNITS[unit as usize]);
        self.right(text.text(), width);
    }

    fn right(&mut self, text: &[u8], width: usize) {
        for _ in text.len()..width {
            self.bytes(b" ");
        }
        self.bytes(text);
    }

    /// The same without blanks.
    pub(super) fn word(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.bytes(&[if byte.is_ascii_graphic() { byte } else { b'?' }]);
        }
    }

    /// An address with all its digits.
    pub(super) fn address(&mut self, value: usize) {
        self.bytes(b"0x");
        for i in (0..16).rev() {
            self.bytes(&[b"0123456789abcdef"[value >> (i * 4) & 15]]);
        }
    }

    pub(super) fn hex(&mut self, value: usize) {
        self.bytes(b"0x");
        let digits = (usize::BITS - value.leading_zeros()).div_ceil(4).max(1);
        for i in (0..digits).rev() {
            self.bytes(&[b"0123456789abcdef"[value >> (i * 4) & 15]]);
        }
    }

    /// A byte in two digits.
    pub(super) fn hex_byte(&mut self, byte: u8) {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
        self.bytes(&[digit(byte >> 4), digit(byte)]);
    }

    pub(super) fn decimal(&mut self, value: usize) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = value;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.bytes(&digits[at..]);
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl Fault {
    /// Whether the address was freed before.
    fn is_double(self) -> bool {
        matches!(self, Self::FreeObject { .. } | Self::FreePages { .. })
    }

    fn describe(self, line: &mut Line) {
        let class = |line: &mut Line, size: u32| {
            line.decimal(size as usize);
            line.bytes(b"-byte object");
        };
        let last = |line: &mut Line, last: usize| {
            if last != 0 {
                line.bytes(b", last allocated by the call that returns to ");
                line.hex(last);
            }
        };
        match self {
            Self::Foreign => line.bytes(b"is not memory of this allocator"),
            Self::PerCpu => line.bytes(b"is per-CPU memory"),
            Self::NeverAllocated => line.bytes(b"was never allocated"),
            Self::NeverAllocatedObject { size } => {
                line.bytes(b"was never allocated (a free ");
                class(line, size);
                line.bytes(b")");
            }
            Self::FreeObject { size, last: site } => {
                line.bytes(b"is a free ");
                class(line, size);
                last(line, site);
            }
            Self::InsideObject { object, offset, size } => {
                line.bytes(b"is ");
                line.decimal(offset as usize);
                line.bytes(b" bytes inside the ");
                class(line, size);
                line.bytes(b" at ");
                line.hex(object);
            }
            Self::Metadata => line.bytes(b"was never allocated (it is the allocator's own data)"),
            Self::FreePages { last: site } => {
                line.bytes(b"is a free page allocation");
                last(line, site);
            }
            Self::InsidePages { block, offset, pages } => {
                line.bytes(b"is ");
                line.decimal(offset);
                line.bytes(b" bytes inside the allocation of ");
                line.decimal(pages as usize);
                line.bytes(b" pages at ");
                line.hex(block);
            }
        }
    }
}

impl<P: Platform> Instance<P> {
    /// Reports a misuse of `call` and ends the program.
    #[cold]
    pub(super) fn fault(&self, call: &str, at: usize, fault: Fault) -> ! {
        let mut line = Line::new();
        line.bytes(b"kmem: ");
        if fault.is_double() && call == "free" {
            line.bytes(b"double free: ");
        } else {
            line.bytes(b"invalid ");
            line.bytes(call.as_bytes());
            line.bytes(b": ");
        }
        line.hex(at);
        line.bytes(b" ");
        fault.describe(&mut line);
        line.bytes(b"\n");
        self.end(line.text())
    }

    /// Says what is wrong, and ends the program.
    pub(super) fn end(&self, text: &[u8]) -> ! {
        self.platform.print(text);
        self.platform.fatal()
    }

    /// An object was returned to its slab although it is free there: two threads freed it at
    /// the same moment.
    #[cold]
    pub(super) fn freed_twice(&self, object: usize, class: SizeClass) -> ! {
        let mut line = Line::new();
        line.bytes(b"kmem: double free: the ");
        line.decimal(self.geometry(class).size as usize);
        line.bytes(b"-byte object at ");
        line.hex(object);
        line.bytes(b" was freed twice\n");
        self.end(line.text())
    }

    /// A page was returned although it is free.
    #[cold]
    pub(super) fn page_freed_twice(&self, page: usize) -> ! {
        let mut line = Line::new();
        line.bytes(b"kmem: double free: the page at ");
        line.hex(page);
        line.bytes(b" is free already\n");
        self.end(line.text())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn numbers_are_written_whole() {
        let mut line = Line::new();
        line.hex(0);
        line.bytes(b" ");
        line.hex(0x7fff_dead_beef);
        line.bytes(b" ");
        line.decimal(0);
        line.bytes(b" ");
        line.decimal(18_446_744_073_709_551_615);
        assert_eq!(line.text(), b"0x0 0x7fffdeadbeef 0 18446744073709551615");
    }

    #[test]
    fn sizes_have_one_decimal_and_are_aligned() {
        let of = |bytes| {
            let mut line = Line::new();
            line.size(bytes, 10);
            std::string::String::from_utf8(line.text().to_vec()).unwrap()
        };
        assert_eq!(of(0), "       0 B");
        assert_eq!(of(1023), "    1023 B");
        assert_eq!(of(1024), "   1.0 KiB");
        assert_eq!(of(57_671_680), "  55.0 MiB");
        assert_eq!(of(u64::MAX), "  15.9 EiB");
    }

    #[test]
    fn a_long_line_is_cut_not_overrun() {
        let mut line = Line::new();
        for _ in 0..100 {
            line.printable(b"0123456789\x1b");
        }
        assert_eq!(line.text().len(), 400);
        assert!(!line.text().contains(&0x1b));
    }
}
