//! Groups, and the charge of objects.

use kmem_core::memcg::GroupId;
use kmem_core::os::Platform;
use kmem_core::{Group, Instance};

/// Bytes that are charged for the extension word of an object or page.
const METADATA: u64 = 4;

/// A new group below the root.
pub(crate) fn group<P: Platform>(instance: &'static Instance<P>, name: &str) -> Group<P> {
    let id = instance.group_create(GroupId::ROOT, name.as_bytes()).expect("a new group");
    instance.group(id).expect("it is there")
}

/// Charge of an allocation with this many usable bytes. Above 32 KiB each page is charged.
pub(crate) const fn cost(usable: u64) -> u64 {
    if usable > 32 << 10 { usable / 4096 * (4096 + METADATA) } else { usable + METADATA }
}
