//! `kmem-bench utilization`: the part of slab memory that is objects of groups. It compares caches
//! of each group, as in the kernel before 5.9, with shared slabs.
//!
//! The load is equal for both designs. Half of the groups are active and hold many objects; the
//! other half are idle and hold 20. Sizes are those of a service's slabs ([`MIX`]). The load of an
//! active group goes up and down twice, between a quarter and seven quarters of its mean. The
//! phases differ between groups, as between services on one machine. In each of 64 steps each group
//! frees a random twentieth of its objects, and allocates others. All random numbers have one seed.
//!
//! | design             | slabs                                                               |
//! |--------------------|---------------------------------------------------------------------|
//! | `per_group_caches` | each group has a cache per size, as SLUB makes them                 |
//! | `shared`           | those of the instance; each object is charged to its group          |
//!
//! Caches of groups have slabs of pages from `alloc_pages`, of SLUB's order. As in SLUB, partial
//! slabs are filled first, and a few empty slabs are kept. Slab memory of the shared design
//! includes the objects that CPUs keep, vectors of extension words, and rows.
//!
//! Utilization is the number of objects in use, times the size of the design's object, divided by
//! slab memory, as in slabinfo.

mod private_cache;

use crate::machine::Machine;
use crate::prng::Prng;
use crate::rivals::compiled_in::kmem::on;
use crate::statistics::rounded;
use crate::table::{Document, Grid};
use crate::{Failure, table};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Caller, Group, Kmem, StaticTag};
use private_cache::PrivateCache;
use serde::Serialize;
use std::ptr::NonNull;

/// Options of `kmem-bench utilization`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
}

const GROUPS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Number of objects of an active group, unless [`MOST`] limits it.
const ACTIVE: usize = 4_000;
const IDLE: usize = 20;
/// Most objects of all groups.
const MOST: usize = 500_000;
const SEED: u64 = 0x6B6D_656D;
const STEPS: usize = 64;
/// Number of times that the load goes up and down.
const PERIODS: f64 = 2.0;
/// One of this number of objects is exchanged in a step.
const EXCHANGED: usize = 20;

/// Bytes and weights of a service's objects in slabs: general sizes, and the kernel's dentries,
/// inodes, files, areas, sockets and buffers.
const MIX: [(usize, u32); 16] = [
    (16, 6),
    (32, 12),
    (64, 16),
    (96, 6),
    (128, 8),
    (152, 8),
    (192, 16),
    (232, 4),
    (256, 6),
    (512, 5),
    (576, 3),
    (608, 4),
    (1024, 3),
    (1080, 1),
    (2048, 1),
    (4096, 1),
];

static TAG: StaticTag = StaticTag::new(c"utilization.rs", c"object", 1);

/// One design with a number of groups.
#[derive(Debug, Clone, Serialize)]
struct Row {
    groups: usize,
    design: &'static str,
    slab_bytes: u64,
    utilization: f64,
}

/// Bytes in use.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    slab_bytes: u64,
    object_bytes: u64,
}

/// A design: an allocator of objects for groups.
trait Design {
    fn alloc(&mut self, group: usize, kind: usize) -> Result<NonNull<u8>, Failure>;
    /// Frees an object of `alloc` for that group and kind.
    fn free(&mut self, group: usize, kind: usize, at: NonNull<u8>);
    fn in_use(&self, live: &[Vec<Object>]) -> Use;
}

/// An object of a group.
#[derive(Debug, Clone, Copy)]
struct Object {
    kind: usize,
    at: NonNull<u8>,
}

fn kmem() -> &'static Kmem {
    on::instance()
}

/// All groups share slabs.
struct Shared {
    groups: Vec<Group<Linux>>,
    /// Slab memory in use before the load, in bytes.
    before: u64,
}

fn slab_memory() -> u64 {
    let stats = kmem().stats();
    stats.used - stats.large
}

impl Shared {
    fn new(count: usize) -> Result<Self, Failure> {
        kmem().trim();
        let groups = (0..count).map(|number| {
            let id = kmem().group_create(GroupId::ROOT, format!("{count}-{number}").as_bytes());
            id.and_then(|id| kmem().group(id)).map_err(|error| Failure::Failed(error.to_string()))
        });
        Ok(Self { groups: groups.collect::<Result<_, _>>()?, before: slab_memory() })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for group in &self.groups {
            let _ = group.delete();
        }
    }
}

impl Design for Shared {
    fn alloc(&mut self, group: usize, kind: usize) -> Result<NonNull<u8>, Failure> {
        let _scope = self.groups[group].enter();
        NonNull::new(kmem().alloc(MIX[kind].0, Caller::tagged(&TAG).here()))
            .ok_or_else(|| Failure::Failed("out of memory".into()))
    }

    fn free(&mut self, _: usize, _: usize, at: NonNull<u8>) {
        // SAFETY: allocated by `alloc`; no code uses it any more.
        unsafe { kmem().free(at.as_ptr()) }
    }

    fn in_use(&self, live: &[Vec<Object>]) -> Use {
        // SAFETY: all objects are live.
        let size = |object: &Object| unsafe { kmem().usable_size(object.at.as_ptr()) } as u64;
        let object_bytes = live.iter().flatten().map(size).sum();
        // The groups' charges equal their objects to the byte.
        let charged: u64 = self.groups.iter().map(|group| group.stat().current).sum();
        let objects = live.iter().map(Vec::len).sum::<usize>() as u64;
        assert_eq!(charged, object_bytes + 4 * objects);
        Use { slab_bytes: slab_memory() - self.before, object_bytes }
    }
}

/// Every group has caches of its own.
struct PerGroup {
    caches: Vec<[PrivateCache; MIX.len()]>,
}

impl PerGroup {
    fn new(count: usize) -> Self {
        let caches = || MIX.map(|(size, _)| PrivateCache::new(kmem(), size));
        Self { caches: (0..count).map(|_| caches()).collect() }
    }
}

impl Design for PerGroup {
    fn alloc(&mut self, group: usize, kind: usize) -> Result<NonNull<u8>, Failure> {
        self.caches[group][kind].alloc().ok_or_else(|| Failure::Failed("out of memory".into()))
    }

    fn free(&mut self, group: usize, kind: usize, at: NonNull<u8>) {
        self.caches[group][kind].free(at);
    }

    fn in_use(&self, live: &[Vec<Object>]) -> Use {
        let slab_bytes = self.caches.iter().flatten().map(PrivateCache::slab_bytes).sum();
        let object = |object: &Object| self.caches[0][object.kind].object_size() as u64;
        Use { slab_bytes, object_bytes: live.iter().flatten().map(object).sum() }
    }
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), "compiled in, books open".to_owned());
    on::kernel();
    let mut rows = Vec::new();
    for groups in GROUPS {
        rows.push(row(groups, "per_group_caches", &mut PerGroup::new(groups))?);
        rows.push(row(groups, "shared", &mut Shared::new(groups)?)?);
    }
    let document = Document { table: "utilization", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))
}

fn row(groups: usize, name: &'static str, design: &mut impl Design) -> Result<Row, Failure> {
    let mut live = vec![Vec::new(); groups];
    let outcome = churn(groups, design, &mut live);
    let used = design.in_use(&live);
    for (group, objects) in live.iter().enumerate() {
        for object in objects {
            design.free(group, object.kind, object.at);
        }
    }
    outcome?;
    let utilization = rounded(used.object_bytes as f64 / used.slab_bytes as f64, 4);
    Ok(Row { groups, design: name, slab_bytes: used.slab_bytes, utilization })
}

/// Runs the load.
fn churn(groups: usize, design: &mut impl Design, live: &mut [Vec<Object>]) -> Result<(), Failure> {
    let mut random = Prng::new(SEED);
    let mean = ACTIVE.min(MOST / groups.div_ceil(2));
    for step in 0..STEPS {
        for (group, objects) in live.iter_mut().enumerate() {
            let holds = if group.is_multiple_of(2) { load(mean, group, step) } else { IDLE };
            let gone = objects.len() / EXCHANGED + objects.len().saturating_sub(holds);
            for _ in 0..gone.min(objects.len()) {
                let object = objects.swap_remove(random.between(0, objects.len() - 1));
                design.free(group, object.kind, object.at);
            }
            while objects.len() < holds {
                let kind = kind(&mut random);
                objects.push(Object { kind, at: design.alloc(group, kind)? });
            }
        }
    }
    Ok(())
}

/// Number of objects of an active group in a step: a wave, whose phases are spread evenly over
/// groups.
fn load(mean: usize, group: usize, step: usize) -> usize {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let time = step as f64 / STEPS as f64 * PERIODS + (group / 2) as f64 * GOLDEN;
    let wave = (2.0 * time.fract() - 1.0).abs();
    (mean as f64 * (0.25 + 1.5 * wave)) as usize
}

/// Draws a size of the mix by weight.
fn kind(random: &mut Prng) -> usize {
    let sum: u32 = MIX.iter().map(|kind| kind.1).sum();
    let mut drawn = random.between(0, sum as usize - 1) as u32;
    MIX.iter()
        .position(|&(_, weight)| drawn.checked_sub(weight).map(|rest| drawn = rest).is_none())
        .unwrap_or(0)
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["groups", "own caches, MiB", "in use", "shared, MiB", "in use", "saved"]);
    for pair in rows.chunks_exact(2) {
        let mib = |row: &Row| format!("{:.1}", row.slab_bytes as f64 / f64::from(1 << 20));
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        grid.push([
            pair[0].groups.to_string(),
            mib(&pair[0]),
            percent(pair[0].utilization),
            mib(&pair[1]),
            percent(pair[1].utilization),
            percent(1.0 - pair[1].slab_bytes as f64 / pair[0].slab_bytes as f64),
        ]);
    }
    format!(
        "{machine}\n\n{}\n\
         the kernel saw 45 to 65 % in use before, the high nineties after, and 35 to 50 % of slab \
         memory saved\n",
        grid.render()
    )
}
