//! `libkmem.so` as programs see it: small C and C++ programs, one per behaviour or kind of misuse,
//! run with the library preloaded and judged by how they end and what they print.

mod configuration;
mod cplusplus;
mod fork;
mod groups;
mod hardening;
mod harness;
mod loader;
mod misuse;
mod resources;
mod rhashtable;
mod rules;
mod signals;
mod stress;
mod symbols;
mod thread_groups;
mod threads;
