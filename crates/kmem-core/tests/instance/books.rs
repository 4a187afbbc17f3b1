//! The books of an instance by call site.

use std::collections::BTreeMap;

use kmem_core::Instance;
use kmem_core::os::Platform;
use kmem_core::units::TagId;

/// Live bytes and allocations by call site.
pub(crate) fn books<P: Platform>(instance: &'static Instance<P>) -> BTreeMap<usize, (u64, u64)> {
    let mut sums = BTreeMap::new();
    instance.census(|tag: TagId, bytes, calls| {
        let sum = sums.entry(instance.site_address(tag)).or_insert((0, 0));
        sum.0 += bytes;
        sum.1 += calls;
    });
    sums
}

/// Live allocations by call site.
pub(crate) fn calls<P: Platform>(instance: &'static Instance<P>) -> BTreeMap<usize, u64> {
    books(instance).into_iter().map(|(site, (_, calls))| (site, calls)).collect()
}
