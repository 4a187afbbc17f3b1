//! The text of `/proc/allocinfo`, written and read.
//!
//! ```text
//! allocinfo - version: 2.0
//! #     <size>  <calls> <tag info>
//! %12lli %8llu <file>:<line> func:<function>
//! %12lli %8llu <file>:<line> [<module>] func:<function>
//! ```
//!
//! Every data line ends with a space and a newline. In version 2.0 `key:value` pairs may stand
//! between the function and that space. The writer adds pairs only when its caller asks for them.
//! The reader keeps pairs that it does not know, and [`Row::write`] gives back the bytes that were
//! read.
//!
//! A call site of a program becomes such a line:
//!
//! | known of the site | file:line | module | func |
//! |---|---|---|---|
//! | source | `/src/a.c:12` | base name of a shared object; none for the main executable | `f` |
//! | symbol only | `libx.so+0x1234:0` | like with a source | `f` |
//! | nothing | `libx.so+0x1234:0` | like with a source | `libx.so+0x1234` |
//! | a static tag | its own | its own; none for the main program | its own |
//! | allocated with profiling off | `kmem:0` | none | `not_tagged` |
//! | allocated with the site table full | `kmem:0` | none | `other_sites` |
//! | the allocator's own memory, on request | `kmem:0` | none | `zone_tables`, `slab_tables`, .. |
//!
//! A chain of callers becomes the line of the call site that it resolves to. The offset is the
//! address in the file, as `addr2line -e libx.so 0x1234` takes it, so the call sites of one
//! function stay apart. Readers split lines at white space. So white space and control characters
//! in names are written as octal escapes (`\040`), as in `/proc/self/mounts`.
//!
//! Source: `lib/alloc_tag.c` in Linux; `Documentation/mm/allocation-profiling.rst`.

mod read;
mod write;

pub use read::{LineError, NodeRow, Reader, Row, merge};
pub use write::{Version, write_header, write_row, write_row_with};

pub use crate::sites::Tag;
