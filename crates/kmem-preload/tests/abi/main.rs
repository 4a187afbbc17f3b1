//! `libkmem.so` as programs see it. Each behaviour and each kind of misuse has a small program in C
//! or C++. A test runs it with the library preloaded, and checks how it ends and what it prints.

mod background;
mod black_box;
mod catalogue;
mod conf_sources;
mod configuration;
mod cplusplus;
mod debugger;
mod documents;
mod fork;
mod frames;
mod groups;
mod hardening;
mod harness;
mod huge_pages;
mod loader;
mod memcheck;
mod misuse;
mod nodes;
mod resources;
mod rhashtable;
mod rules;
mod sandbox;
mod sanitizer;
mod signals;
mod stress;
mod symbols;
mod thread_groups;
mod threads;
mod zeroed;
