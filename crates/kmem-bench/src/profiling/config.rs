//! The configurations of the kernel's table, and the kernel's own figures.

use super::kernel_test::KMALLOC;
use crate::kernel::Kernel;
use crate::rivals::compiled_in::kmem::{never, off, on, switched};
use kmem_core::root::{TAG_FIRST_SITE, TAG_UNTAGGED, profiling};
use kmem_snapshot::Process;

/// Why the rows of group accounting have no figures.
const NO_GROUPS: &str = "not measured: there is no group accounting yet";

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Config {
    /// No extension word exists: what the others are compared with.
    Never,
    /// Built in, switched off.
    Off,
    /// On from the start.
    On,
    /// Started off, and switched on from outside.
    OnAtRunTime,
    /// Billed to a group as well (the kernel's `__GFP_ACCOUNT`).
    Accounted,
    /// The same, with the switch off.
    AccountedOff,
    /// The same, with the switch on.
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

    /// The overhead that the kernel's own table gives, in percent: of kmalloc and of pages.
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

    /// Why it has no figures.
    pub(super) fn note(self) -> Option<&'static str> {
        matches!(self, Self::Accounted | Self::AccountedOff | Self::AccountedOn)
            .then_some(NO_GROUPS)
    }
}

/// Starts an instance for each configuration that can be measured, and proves that each does
/// with an object what its name says.
pub(super) fn start() -> Result<Vec<(Config, Kernel)>, String> {
    // First, while it is the only instance: the switch is thrown for all in the process.
    let switched = switched::kernel();
    prove(&switched, Config::Off)?;
    Process::open(std::process::id())
        .and_then(|own| own.control()?.set_profiling(profiling::ON))
        .map_err(|error| format!("on-at-run-time could not be switched on: {error}"))?;
    let kernels = vec![
        (Config::Never, never::kernel()),
        (Config::Off, off::kernel()),
        (Config::On, on::kernel()),
        (Config::OnAtRunTime, switched),
    ];
    for (config, kernel) in &kernels {
        prove(kernel, *config)?;
    }
    Ok(kernels)
}

/// The only live object of an instance has the tag that `config` says.
fn prove(kernel: &Kernel, config: Config) -> Result<(), String> {
    let object = kernel.kmalloc(64, &KMALLOC);
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
        (Config::Off, &[tag]) => tag == TAG_UNTAGGED,
        (_, &[tag]) => tag >= TAG_FIRST_SITE,
        _ => false,
    };
    if as_it_should {
        return Ok(());
    }
    Err(format!("{}: one object is live, and the census finds the tags {tags:?}", config.name()))
}
