//! Modules.
pub mod decompress;
pub mod elf;
pub mod error;
pub mod image;
pub mod layout;
pub mod modinfo;
pub mod os;
pub mod probe;
pub mod relocate;
pub mod signature;
pub mod source;
