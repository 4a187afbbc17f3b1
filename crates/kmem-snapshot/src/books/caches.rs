//! The size classes as caches: what `/proc/slabinfo` tells of them.

use super::zone::{Class, PAGE};

/// One size class, and its slabs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cache {
    /// Bytes of an object.
    pub size: u32,
    /// Objects in a slab.
    pub objects_per_slab: u32,
    /// Pages of a slab.
    pub pages_per_slab: u32,
    /// Most objects that a CPU keeps.
    pub limit: u16,
    /// Objects that move between a CPU and the slabs at a time.
    pub batch: u16,
    /// Live objects.
    pub active: u64,
    /// Slabs.
    pub slabs: u64,
    /// Slabs with at least one live object.
    pub active_slabs: u64,
}

impl Cache {
    /// Its name, as the kernel has it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("kmalloc-{}", self.size)
    }

    /// Objects that its slabs have room for.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.slabs.saturating_mul(u64::from(self.objects_per_slab))
    }
}

/// Slabs of a class, as the census met them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slabs {
    pub(super) all: u64,
    pub(super) active: u64,
}

/// The caches of all classes; `active` is the live objects of each class.
pub(super) fn of_classes(
    classes: &[Option<Class>],
    slabs: &[Slabs],
    active: impl Fn(usize) -> u64,
) -> Vec<Cache> {
    let of = |(number, class): (usize, &Option<Class>)| {
        let class = class.as_ref()?;
        let slabs = slabs.get(number).copied().unwrap_or_default();
        Some(Cache {
            size: class.size,
            objects_per_slab: u32::try_from(class.limit / u64::from(class.size)).unwrap_or(0),
            pages_per_slab: u32::try_from(class.slab_size / PAGE).unwrap_or(0),
            limit: class.cap,
            batch: class.batch,
            active: active(number),
            slabs: slabs.all,
            active_slabs: slabs.active,
        })
    };
    classes.iter().enumerate().filter_map(of).collect()
}
