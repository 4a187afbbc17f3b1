//! Call sites named by a program's own tags (`kmem.h`, `kmem/hooks.h`), as `kmem dump` shows them.
//!
//! Real programs print the memory that they hold, and the tests compare it with the books.

mod cplusplus;
mod harness;
mod hooks;
mod kernel;
mod objects;
