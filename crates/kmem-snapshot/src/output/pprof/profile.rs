//! The messages of a profile, with their field numbers.
//!
//! Source: `proto/profile.proto` of google/pprof. Strings are indexes into the table of strings,
//! whose first entry is empty. Ids of mappings, locations and functions begin at 1, and 0 is none.

use prost::Message;

/// A whole profile.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// Meaning of each value of a sample.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The call stacks.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// The files in memory, the main program first.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// The calls.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// The functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// The strings.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// Regular expression of functions that are left out, with all that they call.
    #[prost(int64, tag = "7")]
    pub drop_frames: i64,
    /// Nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// Unit in which samples were taken.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// Units between samples.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Texts for people.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The type of values that is shown first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// Meaning of a value.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A call stack.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Its calls, the innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// Its values.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Its labels.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label of a call stack.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Label {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Its text.
    #[prost(int64, tag = "2")]
    pub str: i64,
}

/// A part of a file in memory.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Mapping {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// One past the last address.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset of the first address in the file.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Path of the file.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build id, in lowercase hexadecimal digits.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// True when all of its calls have a function.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// True when all of its calls have a source file.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// True when all of its calls have a line.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
}

/// A call.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The mapping that holds it.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// An address in the instruction.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// The line that makes the call; empty if it is not known.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A line of source.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Line {
    /// Its function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Its number.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name for programs.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Its source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
