//! Call sites that a program's own tags name (`kmem.h`, `kmem/hooks.h`), as `kmem dump` shows them: real programs,
//! which say what they hold, against the books.

mod cplusplus;
mod harness;
mod hooks;
mod kernel;
mod objects;
