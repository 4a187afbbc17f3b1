//! The configurations of the kernel's table, and the kernel's own figures.

use super::kernel_test::KMALLOC;
use crate::kernel::Kernel;
use crate::rivals::compiled_in::kmem::{never, never_groups, off, on, switched};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Kmem};
use kmem_layout::root::profiling;
use kmem_layout::word::{TAG_FIRST_SITE, TAG_UNTAGGED};
use kmem_snapshot::Process;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Config {
    /// No extension words, the reference of the other rows.
    Never,
    /// Built in, switched off.
    Off,
    /// On from the start.
    On,
    /// Started off, and switched on from outside.
    OnAtRunTime,
    /// Charged to a group (the kernel's `__GFP_ACCOUNT`), without books.
    Accounted,
    /// Charged to a group, with the switch off.
    AccountedOff,
    /// Charged to a group, with the switch on.
    AccountedOn,
}

impl Config {
    /// Every row, in the order of the table.
    pub(super) const ALL: [Self; 7] = [
        Self::Never,
        Self::Off,
        Self::On,
        Self::OnAtRunTime,
        Self::Accounted,
        Self::AccountedOff,
        Self::AccountedOn,
    ];

    /// The name in the rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Off => "off",
            Self::On => "on",
            Self::OnAtRunTime => "on-at-run-time",
            Self::Accounted => "accounted",
            Self::AccountedOff => "accounted+off",
            Self::AccountedOn => "accounted+on",
        }
    }

    /// The overhead in the kernel's own table, in percent: of kmalloc and of pages.
    pub(super) fn kernel_percent(self) -> (f64, f64) {
        match self {
            Self::Never => (0.0, 0.0),
            Self::Off => (0.43, 0.62),
            Self::On => (6.40, 40.02),
            Self::OnAtRunTime => (9.48, 41.41),
            Self::Accounted => (97.94, 186.71),
            Self::AccountedOff => (97.10, 184.61),
            Self::AccountedOn => (98.78, 225.18),
        }
    }

    /// The instance whose groups pay in this row.
    fn charged_in(self) -> Option<&'static Kmem> {
        match self {
            Self::Accounted => Some(never_groups::instance()),
            Self::AccountedOff => Some(off::instance()),
            Self::AccountedOn => Some(on::instance()),
            _ => None,
        }
    }
}

/// A started configuration.
pub(super) struct Measured {
    pub(super) config: Config,
    pub(super) kernel: Kernel,
    /// The group that pays.
    pub(super) group: Option<Group<Linux>>,
}

impl Measured {
    /// Adds a group if it is a row of group accounting.
    fn new(config: Config, kernel: Kernel) -> Result<Self, String> {
        let group = config.charged_in().map(|kmem| {
            let id = kmem.group_create(GroupId::ROOT, config.name().as_bytes());
            id.and_then(|id| kmem.group(id)).map_err(|error| format!("{}: {error}", config.name()))
        });
        Ok(Self { config, kernel, group: group.transpose()? })
    }
}

/// Starts an instance for each configuration, and checks that each is in effect.
pub(super) fn start() -> Result<Vec<Measured>, String> {
    // First, while it is the only instance: the switch holds for all instances of the process.
    let switched = switched::kernel();
    prove(&switched, Config::Off)?;
    Process::open(std::process::id())
        .and_then(|own| own.control()?.set_profiling(profiling::ON))
        .map_err(|error| format!("on-at-run-time could not be switched on: {error}"))?;
    let (off, on) = (off::kernel(), on::kernel());
    let rows = [
        (Config::Never, never::kernel()),
        (Config::Off, off),
        (Config::On, on),
        (Config::OnAtRunTime, switched),
        (Config::Accounted, never_groups::kernel()),
        (Config::AccountedOff, off),
        (Config::AccountedOn, on),
    ];
    let rows = rows.map(|(config, kernel)| {
        let row = Measured::new(config, kernel)?;
        let scope = row.group.as_ref().map(Group::enter);
        prove(&kernel, config)?;
        drop(scope);
        Ok(row)
    });
    rows.into_iter().collect()
}

/// Checks that the only live object of an instance has the tag and group of `config`.
///
/// # Errors
/// The instance tags or charges otherwise.
fn prove(kernel: &Kernel, config: Config) -> Result<(), String> {
    let object = kernel.kmalloc(64, &KMALLOC);
    if let Some(kmem) = config.charged_in() {
        // SAFETY: allocated on the line above.
        let payer = unsafe { kmem.group_of_allocation(object.as_ptr()) };
        if payer == GroupId::ROOT {
            return Err(format!("{}: no group pays for an object", config.name()));
        }
    }
    let mut tags = Vec::new();
    (kernel.census)(&mut |tag, calls| {
        if calls > 0 {
            tags.push(tag);
        }
    });
    // SAFETY: allocated above, not used again.
    unsafe { kernel.kfree(object) };
    let as_it_should = match (config, &tags[..]) {
        (Config::Never, tags) => tags.iter().all(|&tag| tag < TAG_UNTAGGED),
        (Config::Off | Config::Accounted | Config::AccountedOff, &[tag]) => tag == TAG_UNTAGGED,
        (_, &[tag]) => tag >= TAG_FIRST_SITE,
        _ => false,
    };
    if as_it_should {
        return Ok(());
    }
    Err(format!("{}: one object is live, and the census finds the tags {tags:?}", config.name()))
}

#[cfg(test)]
mod tests {
    use super::{Config, prove};
    use crate::kernel::Kernel;
    use crate::rivals::compiled_in::kmem::{never, never_groups, off, on};

    #[test]
    fn an_instance_of_another_configuration_is_refused() {
        let kernels: [(Kernel, Config); 3] = [
            (never::kernel(), Config::Never),
            (off::kernel(), Config::Off),
            (on::kernel(), Config::On),
        ];
        for (kernel, config) in &kernels {
            for (_, other) in &kernels {
                assert_eq!(prove(kernel, *other).is_ok(), config == other, "{config:?} {other:?}");
            }
        }
        // No thread is in a group, so no group pays.
        let refused = prove(&never_groups::kernel(), Config::Accounted);
        assert!(refused.is_err_and(|error| error.contains("no group pays")));
    }
}
