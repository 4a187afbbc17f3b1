//! Numbers in tables of frames. Each function returns `None` where the bytes end, or make no sense.

use crate::os::CodeObject;

/// The bytes from a place in a table up to the end of the entry.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Address of `bytes`.
    address: usize,
}

/// The encoding of pointers (`DW_EH_PE_*`).
#[derive(Clone, Copy)]
pub(super) struct Pointers(pub(super) u8);

impl Pointers {
    /// Addresses of eight bytes.
    pub(super) const ABSOLUTE: Self = Self(0);
    /// Added to the number: its own address.
    const RELATIVE: u8 = 0x10;

    /// Bytes of a pointer.
    pub(super) fn size(self) -> Option<usize> {
        match self.0 & 7 {
            0 | 4 => Some(8),
            3 => Some(4),
            2 => Some(2),
            _ => None,
        }
    }

    /// The encoding of a length.
    pub(super) fn without_base(self) -> Self {
        Self(self.0 & 7)
    }
}

impl<'a> Reader<'a> {
    /// The contents of an entry, behind its length.
    pub(super) fn entry(object: &CodeObject<'a>, address: usize) -> Option<Self> {
        let bytes = object.bytes.get(address.wrapping_sub(object.address)..)?;
        let mut rest = Self { bytes, address };
        let len = rest.u32()? as usize;
        // No length ends the table. The largest one marks a form that no compiler writes.
        let bytes = rest.bytes.get(..len).filter(|bytes| !bytes.is_empty())?;
        Some(Self { bytes, ..rest })
    }

    pub(super) fn address(&self) -> usize {
        self.address
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        self.address = self.address.wrapping_add(len);
        Some(taken)
    }

    pub(super) fn skip(&mut self, len: usize) -> Option<()> {
        self.take(len).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_ne_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Bytes up to a zero, which is skipped.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.bytes.iter().position(|&byte| byte == 0)?;
        let text = self.take(len)?;
        self.skip(1)?;
        Some(text)
    }

    /// A part that begins with its length.
    pub(super) fn part(&mut self) -> Option<Self> {
        let len = usize::try_from(self.unsigned()?).ok()?;
        let address = self.address;
        Some(Self { bytes: self.take(len)?, address })
    }

    /// The bits of a number in groups of seven, and how many there are.
    fn groups(&mut self) -> Option<(u64, u32)> {
        let (mut number, mut bits) = (0, 0);
        loop {
            let byte = self.u8()?;
            if bits >= u64::BITS {
                return None;
            }
            number |= u64::from(byte & 0x7f) << bits;
            bits += 7;
            if byte & 0x80 == 0 {
                return Some((number, bits));
            }
        }
    }

    /// A number of any length (ULEB128).
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        self.groups().map(|(number, _)| number)
    }

    /// A number of any length, with a sign (SLEB128).
    pub(super) fn signed(&mut self) -> Option<i64> {
        let (number, bits) = self.groups()?;
        let unused = u64::BITS.saturating_sub(bits);
        Some((number << unused) as i64 >> unused)
    }

    /// A pointer, or a length in the form of one.
    pub(super) fn pointer(&mut self, encoding: Pointers) -> Option<usize> {
        let base = match encoding.0 & 0xf0 {
            0 => 0,
            Pointers::RELATIVE => self.address,
            _ => return None,
        };
        let is_signed = encoding.0 & 8 != 0;
        let number = match encoding.size()? {
            8 => self.array().map(u64::from_ne_bytes)? as usize,
            4 if is_signed => self.u32()? as i32 as usize,
            4 => self.u32()? as usize,
            _ if is_signed => self.u16()? as i16 as usize,
            _ => self.u16()? as usize,
        };
        Some(base.wrapping_add(number))
    }
}
