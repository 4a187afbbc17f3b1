//! Instances over the simulated platform.

use std::ops::Range;

use kmem_core::os::Budget;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::{Caller, Instance};

use super::leaked::leaked;
use super::memory::free;

pub(crate) type Simulated = Instance<Sim<Linux>>;

/// A budget in which every limit is `bytes`.
pub(crate) const fn budget(bytes: usize, cpus: u32) -> Budget {
    Budget::of(bytes, cpus)
}

/// An instance over a platform with this budget.
pub(crate) fn simulated(budget: Budget) -> &'static Simulated {
    leaked(Sim::new(Linux::new(), budget))
}

/// An instance that has started: later faults do not keep it from that.
pub(crate) fn started(budget: Budget) -> &'static Simulated {
    let instance = simulated(budget);
    free(instance, instance.alloc(1, Caller::at(0x9000)));
    instance
}

/// Does `work` on an instance while the platform's calls with numbers in `faults` fail. All later
/// calls succeed. Returns the instance.
pub(crate) fn after_faults<T>(
    instance: &'static Simulated,
    faults: Range<u64>,
    work: impl FnOnce(&'static Simulated) -> T,
) -> &'static Simulated {
    instance.platform().fail(faults.start, faults.end);
    work(instance);
    instance.platform().fail(u64::MAX, u64::MAX);
    instance
}
