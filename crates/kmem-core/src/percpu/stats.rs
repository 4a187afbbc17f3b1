//! Counts of per-CPU memory.

use super::objects::On;
use crate::os::Platform;
use crate::report::Line;
use crate::units::{CpuId, PAGE_SIZE};

/// Counts of an instance's per-CPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerCpuStats {
    /// Number of CPUs that have a unit.
    pub units: u32,
    /// Number of live objects.
    pub objects: u64,
    /// Bytes of the live objects, one copy of each.
    pub bytes: u64,
    /// Bytes of the handle space that lie in slabs.
    pub used: u64,
    /// Bytes of the handle space, and of each unit.
    pub space: u64,
}

impl<P: Platform> On<P> {
    /// Counts per-CPU memory. Takes time linear in the number of objects.
    pub fn stats(self) -> PerCpuStats {
        let Some(set) = self.zone() else { return PerCpuStats::default() };
        let units = &self.part.units;
        let there = |cpu: &u32| units.copy(set.zone.base(), CpuId(*cpu)).is_some();
        let mut stats = PerCpuStats {
            units: (0..units.count()).filter(there).count() as u32,
            space: set.zone.pages().bytes() as u64,
            used: set.zone.committed().bytes() as u64 - set.zone.free_pages() * PAGE_SIZE as u64,
            ..PerCpuStats::default()
        };
        self.ledger.census().of_zone(set, |held| {
            stats.bytes += held.bytes;
            stats.objects += held.calls;
        });
        stats
    }

    /// Writes the counts in the format of the kernel's `percpu_stats`, line by line.
    /// `populated_size` are bytes of each unit that lie in slabs, `cur_alloc_size` those of live
    /// objects, one copy of each.
    pub fn info(self, mut write: impl FnMut(&[u8])) {
        let PerCpuStats { units, objects, bytes, used, space } = self.stats();
        const RULE: &[u8] = b"----------------------------------------\n";
        let mut section = |head: &[u8], rows: &[(&str, u64)]| {
            write(head);
            write(RULE);
            for (name, value) in rows {
                let mut line = Line::new();
                line.add(format_args!("  {name:<20}: {value:>12}\n"));
                write(line.text());
            }
        };
        let layout = [("unit_size", space), ("nr_units", units.into()), ("populated_size", used)];
        section(b"Percpu Memory Statistics\nAllocation Info:\n", &layout);
        section(b"Global Stats:\n", &[("nr_cur_alloc", objects), ("cur_alloc_size", bytes)]);
    }
}
