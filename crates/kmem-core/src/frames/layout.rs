//! Places of fields in the structures of CPython, by its version.
//!
//! Up to 3.12 they are those of the released headers, which `scripts/python-layouts.sh` prints.
//! From 3.13 on the runtime begins with a table of them (`_Py_DebugOffsets`), which debuggers read.

/// Bytes before the contents of a bytes object, and offset of its length.
pub(super) const BYTES: usize = 32;
pub(super) const LENGTH: usize = 16;
/// No such field.
const NONE: u16 = u16::MAX;

/// The table that says which line an instruction is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// 3.8 and 3.9: pairs of bytes, distances between the beginnings of lines.
    Starts,
    /// 3.10: pairs of bytes, lengths of ranges.
    Ranges,
    /// 3.11 and later (PEP 657).
    Locations,
}

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    thread_id: u16,
    /// In the thread state: the frame, or the C frame that leads to it.
    frame: u16,
    /// In the C frame: the frame.
    c_frame: u16,
    /// In the frame: the instruction.
    instruction: u16,
    /// In the frame: the index of the last instruction, before 3.11.
    last: u16,
    /// Bytes of one of that index.
    unit: u16,
    /// In the frame: the code object.
    code: u16,
    pub(super) file: u16,
    pub(super) function: u16,
    pub(super) first_line: u16,
    pub(super) table: u16,
    bytecode: u16,
    /// Bytes of the header of a text of ASCII, and of another one.
    pub(super) ascii: u16,
    pub(super) compact: u16,
    pub(super) lines: Lines,
}

impl Layout {
    pub(super) const fn thread_id(&self) -> usize {
        self.thread_id as usize
    }
    pub(super) const fn frame(&self) -> usize {
        self.frame as usize
    }
    pub(super) const fn code(&self) -> usize {
        self.code as usize
    }
    pub(super) const fn last(&self) -> usize {
        self.last as usize
    }
    pub(super) const fn unit(&self) -> usize {
        self.unit as usize
    }
    /// The bytecode of a code object, or before 3.11 the place of its address.
    pub(super) const fn bytecode(&self) -> usize {
        self.bytecode as usize
    }
    /// The frame in a C frame. `None`: the thread state leads to the frame itself.
    pub(super) const fn c_frame(&self) -> Option<usize> {
        if self.c_frame == NONE { None } else { Some(self.c_frame as usize) }
    }
    /// The instruction in a frame. `None`: before 3.11.
    pub(super) const fn instruction(&self) -> Option<usize> {
        if self.instruction == NONE { None } else { Some(self.instruction as usize) }
    }

    /// The layout of no version.
    pub(super) const ZERO: Self = Self {
        thread_id: 0,
        frame: 0,
        c_frame: NONE,
        instruction: NONE,
        last: 0,
        unit: 1,
        code: 0,
        file: 0,
        function: 0,
        first_line: 0,
        table: 0,
        bytecode: 0,
        ascii: 0,
        compact: 0,
        lines: Lines::Locations,
    };

    /// Offset of the global thread state in the runtime, and the layout, of a version up to 3.12:
    /// its number behind the `3.`. From 3.12 on each thread has the word itself.
    pub(super) const fn of_minor(minor: u32) -> Option<(usize, Self)> {
        let before_11 = Self {
            thread_id: 176,
            frame: 24,
            last: 104,
            unit: 1,
            code: 32,
            file: 104,
            function: 112,
            first_line: 40,
            table: 120,
            bytecode: 48,
            ascii: 48,
            compact: 72,
            lines: Lines::Starts,
            ..Self::ZERO
        };
        let from_11 =
            Self { frame: 56, instruction: 56, file: 112, function: 128, table: 136, ..Self::ZERO };
        Some(match minor {
            8 => (1368, before_11),
            9 => (568, before_11),
            10 => (568, Self { last: 96, unit: 2, lines: Lines::Ranges, ..before_11 }),
            11 => (
                576,
                Self {
                    thread_id: 152,
                    c_frame: 8,
                    code: 32,
                    first_line: 72,
                    bytecode: 184,
                    ascii: 48,
                    compact: 72,
                    ..from_11
                },
            ),
            12 => (
                0,
                Self {
                    thread_id: 136,
                    c_frame: 0,
                    code: 0,
                    first_line: 68,
                    bytecode: 192,
                    ascii: 40,
                    compact: 56,
                    ..from_11
                },
            ),
            _ => return None,
        })
    }

    /// The layout that the runtime of a version tells itself. `None`: it makes no sense.
    pub(super) fn of_offsets(minor: u32, offsets: &[u64; OFFSETS]) -> Option<Self> {
        let numbers = match minor {
            13 => OF_13,
            14 => OF_14,
            _ => return None,
        };
        let [
            frame,
            thread_id,
            code,
            instruction,
            file,
            function,
            table,
            first_line,
            bytecode,
            ascii,
        ] = numbers.map(|number| offsets.get(number).copied().unwrap_or(u64::MAX));
        let field = |offset: u64| u16::try_from(offset).ok().filter(|&offset| offset < 4096);
        let ascii = field(ascii)?;
        Some(Self {
            thread_id: field(thread_id)?,
            frame: field(frame)?,
            instruction: field(instruction)?,
            code: field(code)?,
            file: field(file)?,
            function: field(function)?,
            first_line: field(first_line)?,
            table: field(table)?,
            bytecode: field(bytecode)?,
            ascii,
            compact: ascii + 16,
            ..Self::ZERO
        })
    }
}

/// Words of the table in the runtime that are read.
pub(super) const OFFSETS: usize = 96;
/// Its first bytes.
pub(super) const COOKIE: &[u8; 8] = b"xdebugpy";
/// Numbers of the words with the version, and with the mark of a build without the one lock.
pub(super) const VERSION: usize = 1;
pub(super) const FREE_THREADED: usize = 2;

/// Numbers of the words in 3.13, in this order: the frame and the number of a thread. The code and
/// the instruction of a frame. File, qualified name, table of lines, first line and bytecode of a
/// code. The bytes of a text's header.
const OF_13: [usize; 10] = [23, 24, 30, 31, 35, 37, 38, 39, 43, 70];
/// Those of 3.14, which has three words more in front of them, two more in the frame, one more in
/// the code, and sets.
const OF_14: [usize; 10] = [26, 27, 33, 34, 40, 42, 43, 44, 48, 80];
