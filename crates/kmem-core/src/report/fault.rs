//! Reports of misuse: one line that describes the address; then the program ends.

use core::fmt;

use super::name::HolderName;
use super::{Reporter, print};
use kmem_layout::word::TAG_MASK;

use crate::class::SizeClass;
use crate::codetag::Sites;
use crate::os::Platform;
use crate::units::TagId;

/// Reason why an address is not that of a live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not an address of this allocator.
    Foreign,
    /// The handle of a per-CPU object, or an address in one.
    PerCpu,
    /// In a part of the heap that no allocation ever had.
    NeverAllocated,
    /// A slab object that no allocation ever had.
    NeverAllocatedObject {
        /// Its size class, in bytes.
        size: u32,
    },
    /// A slab object that is free.
    FreeObject {
        /// Its size class, in bytes.
        size: u32,
        /// Tag of its last allocation.
        last: TagId,
    },
    /// Inside a slab object.
    InsideObject {
        /// Address of the object.
        object: usize,
        /// Bytes from its start.
        offset: u32,
        /// Its size class, in bytes.
        size: u32,
    },
    /// In the metadata of a slab.
    Metadata,
    /// A page allocation that is free.
    FreePages {
        /// Tag of its last allocation.
        last: TagId,
    },
    /// A live slab object, where pages are freed.
    Object {
        /// Its size class, in bytes.
        size: u32,
    },
    /// A live page allocation of another length than the one that is freed.
    OtherLength {
        /// Its length in pages.
        pages: u32,
        /// Length that the call frees, in pages.
        freed: u32,
        /// Tag of the allocation.
        last: TagId,
    },
    /// A live allocation of another size than the one that is freed.
    OtherSize {
        /// Bytes that may be used.
        bytes: usize,
        /// Bytes that the call tells.
        told: usize,
        /// Tag of the allocation.
        last: TagId,
    },
    /// Beside a block with a fence, or inside of one that is free.
    Beside {
        /// Address of the block.
        object: usize,
        /// Its size, in bytes.
        size: usize,
        /// Tag of its last allocation.
        last: TagId,
        /// Tag of the call that freed it; `None` if it lives.
        freed: Option<TagId>,
    },
    /// Inside a page allocation.
    InsidePages {
        /// Address of the allocation.
        block: usize,
        /// Bytes from its start.
        offset: usize,
        /// Its length in pages.
        pages: u32,
    },
}

impl Fault {
    /// The call site that has the address, or last had it.
    pub fn last(self) -> Option<TagId> {
        match self {
            Self::FreeObject { last, .. }
            | Self::FreePages { last }
            | Self::OtherLength { last, .. }
            | Self::OtherSize { last, .. }
            | Self::Beside { last, .. } => Some(last),
            _ => None,
        }
    }

    /// Returns whether the address was freed before.
    pub fn is_double(self) -> bool {
        matches!(
            self,
            Self::FreeObject { .. } | Self::FreePages { .. } | Self::Beside { freed: Some(_), .. }
        )
    }
}

/// Displays a fault.
struct Described<'a> {
    at: usize,
    fault: Fault,
    sites: &'a Sites,
    /// Text of the mappings; may be empty.
    maps: &'a [u8],
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = match self.fault {
            Fault::Foreign => return f.write_str("is not memory of this allocator"),
            Fault::PerCpu => return f.write_str("is per-CPU memory"),
            Fault::NeverAllocated => return f.write_str("was never allocated"),
            Fault::NeverAllocatedObject { size } => {
                return write!(f, "was never allocated (a free {size}-byte object)");
            }
            Fault::InsideObject { object, offset, size } => {
                return write!(f, "is {offset} bytes inside the {size}-byte object at {object:#x}");
            }
            Fault::Metadata => {
                return f.write_str("was never allocated (it is the allocator's own data)");
            }
            Fault::Object { size } => return write!(f, "is a {size}-byte object, not pages"),
            Fault::InsidePages { block, offset, pages } => {
                return write!(
                    f,
                    "is {offset} bytes inside the allocation of {pages} pages at {block:#x}"
                );
            }
            Fault::Beside { object, size, last, freed } => {
                let (at, end) = (self.at, object + size);
                let (bytes, place) = match at {
                    _ if at < object => (object - at, "in front of"),
                    _ if at < end => (at - object, "inside"),
                    _ => (at - end, "behind"),
                };
                match freed {
                    Some(_) if at == object => write!(f, "is a free {size}-byte block")?,
                    _ => {
                        write!(f, "is {bytes} bytes {place} the {size}-byte block at {object:#x}")?
                    }
                }
                if let Some(freed) = freed.filter(|&tag| self.is_known(tag)) {
                    write!(f, ", freed by {}", self.name(freed))?;
                } else if freed.is_some() && at != object {
                    f.write_str(", which is free")?;
                }
                last
            }
            Fault::FreeObject { size, last } => {
                write!(f, "is a free {size}-byte object")?;
                last
            }
            Fault::FreePages { last } => {
                f.write_str("is a free page allocation")?;
                last
            }
            Fault::OtherLength { pages, freed, last } => {
                let plural = if pages == 1 { "" } else { "s" };
                write!(f, "is an allocation of {pages} page{plural}, not of {freed}")?;
                last
            }
            Fault::OtherSize { bytes, told, last } => {
                write!(f, "is an allocation of {bytes} bytes, not of {told}")?;
                last
            }
        };
        if !self.is_known(last) {
            return Ok(());
        }
        write!(f, ", last allocated by {}", self.name(last))
    }
}

impl Described<'_> {
    fn is_known(&self, tag: TagId) -> bool {
        self.sites.names(tag).is_some() || self.sites.address(tag) != 0
    }

    fn name(&self, tag: TagId) -> HolderName<'_> {
        HolderName { sites: self.sites, word: tag.0, maps: self.maps }
    }
}

impl<P: Platform> Reporter<'_, P> {
    /// Calls `work` with the name of the holder in an extension word.
    pub fn with_holder(&self, word: u32, work: impl Fn(HolderName<'_>)) {
        let sites = &self.books.sites;
        let is_call = sites.address(TagId(word & TAG_MASK)) != 0;
        self.with_mappings(is_call, |maps| work(HolderName { sites, word, maps }));
    }

    /// Reports a misuse of `call`.
    #[cold]
    pub fn print_fault(&self, call: &str, at: usize, fault: Fault) {
        let sites = &self.books.sites;
        let freed = if let Fault::Beside { freed, .. } = fault { freed } else { None };
        let mut named = fault.last().into_iter().chain(freed);
        let names_call = named.any(|tag| sites.address(tag) != 0);
        self.with_mappings(names_call, |maps| {
            let what = Described { at, fault, sites, maps };
            if fault.is_double() && call == "free" {
                print!(self.platform, "kmem: double free: {at:#x} {what}\n");
            } else {
                print!(self.platform, "kmem: invalid {call}: {at:#x} {what}\n");
            }
        });
    }
}

/// Reports an object that came back to its slab although it is free there.
pub fn print_freed_twice(platform: &impl Platform, object: usize, class: SizeClass) {
    let size = class.size();
    print!(platform, "kmem: double free: the {size}-byte object at {object:#x} was freed twice\n");
}

/// Reports a page that came back to its zone although it is free there.
pub fn print_page_freed_twice(platform: &impl Platform, page: usize) {
    print!(platform, "kmem: double free: the page at {page:#x} is free already\n");
}
