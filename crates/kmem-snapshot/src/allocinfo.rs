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
//! between the function and that space; we write them only when asked, keep those we do not know,
//! and give back what was read byte for byte ([`Row::write`]).
//!
//! How a call site of a program becomes such
//! a line:
//!
//! | known of the site | file:line | module | func |
//! |---|---|---|---|
//! | source | `/src/a.c:12` | base name of a shared object; none for the main executable | `f` |
//! | symbol only | `libx.so+0x1234:0` | as above | `f` |
//! | nothing | `libx.so+0x1234:0` | as above | `libx.so+0x1234` |
//! | a static tag | its own | its own; none for the main program | its own |
//! | allocated with profiling off | `kmem:0` | none | `not_tagged` |
//! | the site table was full | `kmem:0` | none | `other_sites` |
//! | the allocator's own memory, on request | `kmem:0` | none | `zone_tables`, `slab_tables`, .. |
//!
//! A chain of callers is the call site that it resolves to. The offset is the address in the file, as `addr2line -e libx.so 0x1234` takes it, so call
//! sites of one function stay apart. Readers split at white space, so white space and control
//! characters in names are written as octal escapes (`\040`), as in `/proc/self/mounts`.

mod read;
mod write;

pub use read::{LineError, NodeRow, Reader, Row, merge};
pub use write::{Tag, Version, tag_of, tag_of_origin, write_header, write_row, write_row_with};
