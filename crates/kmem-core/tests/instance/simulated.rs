//! Instances over the simulated platform.

use kmem_core::Instance;
use kmem_core::os::Budget;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;

use super::leaked::leaked;

pub(crate) type Simulated = Instance<Sim<Linux>>;

/// A budget of so many bytes in every respect.
pub(crate) const fn budget(bytes: usize, cpus: u32) -> Budget {
    Budget { first_zone: bytes, min_zone: bytes, memory: bytes, cpus }
}

/// An instance that the platform gives so much.
pub(crate) fn simulated(budget: Budget) -> &'static Simulated {
    leaked(Sim::new(Linux::new(), budget))
}
