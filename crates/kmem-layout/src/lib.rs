//! Memory layouts that kmem shares with readers outside the process.
//!
//! ```text
//! root       the root block, where a reader begins
//! geometry   slabs of a size class
//! word       the extension word of an object
//! length     the length word of a page allocation
//! time       when an allocation was made
//! site       the sites that tags stand for; the peak table
//! group      the table of groups
//! cache      caches of objects
//! blackbox   the file that outlives the process
//! mapping    mappings that the program made
//! board      modules of a loader, and its statistics
//! wrapper    names of functions whose callers matter
//! atomic     the atomics of all of these
//! ```
//!
//! The crate has types, constants and the arithmetic of offsets. It allocates nothing, calls
//! nothing, and reads no memory. A reader trusts nothing that it finds in these layouts; see
//! `kmem-snapshot`.
#![no_std]

pub mod atomic;
#[cfg(not(loom))]
pub mod blackbox;
#[cfg(not(loom))]
pub mod board;
pub mod cache;
pub mod geometry;
pub mod group;
pub mod length;
pub mod mapping;
pub mod root;
pub mod site;
pub mod time;
pub mod word;
pub mod wrapper;
