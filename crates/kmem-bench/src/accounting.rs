//! `kmem-bench accounting`: the cost of charging objects to groups. The kernel's test is repeated:
//! a million allocations of 64 bytes by `kmalloc`, then their frees.
//!
//! | scope                  | an allocation                                                    |
//! |------------------------|------------------------------------------------------------------|
//! | `none`                 | is charged to no group (`Gfp::UNACCOUNTED`)                      |
//! | `root`                 | is made by a thread that is in no group                          |
//! | `group`                | is charged to the thread's group                                 |
//! | `group-refcounted`     | is charged, and holds a reference to the group until it is freed |
//! | `8-groups-alternating` | is charged to the next of eight groups, which the thread enters  |
//!
//! In the kernel, objects held such references before v6.7.
//!
//! In a round each scope makes all its allocations, then all its frees. A figure is the minimum of
//! all rounds. One thread runs on the second CPU, with one instance.

use crate::affinity::{Places, allowed, pin};
use crate::machine::Machine;
use crate::rivals::compiled_in::kmem::on;
use crate::statistics::{minimum, rounded};
use crate::table::{Document, Grid};
use crate::{Failure, table};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::units::Gfp;
use kmem_core::{Caller, Group, Kmem, StaticTag};
use serde::Serialize;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Options of `kmem-bench accounting`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Rounds.
    #[arg(long, default_value_t = 100)]
    rounds: u32,
}

const OBJECTS: usize = 1_000_000;
const SIZE: usize = 64;
const ALTERNATING: usize = 8;

static TAG: StaticTag = StaticTag::new(c"accounting.rs", c"kmalloc", 1);
/// References of the group, for `group-refcounted`.
static REFERENCES: AtomicU64 = AtomicU64::new(0);

/// The group that is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    None,
    Root,
    Group,
    Refcounted,
    Alternating,
}

impl Scope {
    const ALL: [Self; 5] =
        [Self::None, Self::Root, Self::Group, Self::Refcounted, Self::Alternating];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Root => "root",
            Self::Group => "group",
            Self::Refcounted => "group-refcounted",
            Self::Alternating => "8-groups-alternating",
        }
    }

    /// The kernel's own figures for a million allocations and frees, in microseconds. The first was
    /// measured before the kernel removed the references, the second after (v6.7, "mm: improve
    /// performance of accounted kernel memory allocations").
    fn kernel_us(self) -> Option<[u32; 2]> {
        match self {
            Self::None => Some([29_764, 29_764]),
            Self::Root => Some([48_342, 31_501]),
            Self::Group => Some([84_548, 59_078]),
            Self::Refcounted | Self::Alternating => None,
        }
    }
}

/// One scope.
#[derive(Debug, Clone, Serialize)]
struct Row {
    scope: &'static str,
    alloc_ns: f64,
    free_ns: f64,
    /// Cost of an allocation and a free together, against `none`.
    percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_us: Option<[u32; 2]>,
}

fn kmem() -> &'static Kmem {
    on::instance()
}

extern "C" fn unaccounted() -> *mut u8 {
    kmem().kmalloc_here(SIZE, Gfp::UNACCOUNTED, Caller::tagged(&TAG))
}

extern "C" fn accounted() -> *mut u8 {
    kmem().kmalloc_here(SIZE, Gfp::KERNEL, Caller::tagged(&TAG))
}

extern "C" fn refcounted() -> *mut u8 {
    REFERENCES.fetch_add(1, Ordering::Relaxed);
    accounted()
}

extern "C" fn free(at: *mut u8) {
    // SAFETY: allocated by one of the functions above; no code uses it any more.
    unsafe { kmem().free(at) }
}

extern "C" fn free_refcounted(at: *mut u8) {
    free(at);
    REFERENCES.fetch_sub(1, Ordering::Release);
}

/// The groups of the measurement.
struct Groups {
    one: Group<Linux>,
    eight: [Group<Linux>; ALTERNATING],
}

impl Groups {
    fn make() -> Result<Self, Failure> {
        on::kernel();
        let make = |name: String| {
            let id = kmem().group_create(GroupId::ROOT, name.as_bytes());
            id.and_then(|id| kmem().group(id))
                .map_err(|error| Failure::Failed(format!("the group {name}: {error}")))
        };
        let mut eight = Vec::new();
        for number in 0..ALTERNATING {
            eight.push(make(format!("alternating-{number}"))?);
        }
        let eight = eight.try_into().map_err(|_| Failure::Failed("eight groups".into()))?;
        Ok(Self { one: make("one".into())?, eight })
    }

    /// One round of a scope: nanoseconds per allocation, and per free.
    fn round(&self, scope: Scope, objects: &mut Vec<*mut u8>) -> Result<(f64, f64), Failure> {
        let alloc: extern "C" fn() -> *mut u8 = match scope {
            Scope::None => unaccounted,
            Scope::Refcounted => refcounted,
            Scope::Root | Scope::Group | Scope::Alternating => accounted,
        };
        let free: extern "C" fn(*mut u8) =
            if scope == Scope::Refcounted { free_refcounted } else { free };
        let (alloc, free) = black_box((alloc, free));
        objects.clear();
        let start = Instant::now();
        match scope {
            Scope::None | Scope::Root => objects.extend((0..OBJECTS).map(|_| write(alloc()))),
            Scope::Group | Scope::Refcounted => {
                let _scope = self.one.enter();
                objects.extend((0..OBJECTS).map(|_| write(alloc())));
            }
            Scope::Alternating => objects.extend((0..OBJECTS).map(|i| {
                let _scope = self.eight[i % ALTERNATING].enter();
                write(alloc())
            })),
        }
        let alloc_ns = start.elapsed().as_secs_f64() * 1e9 / OBJECTS as f64;
        self.prove(scope)?;
        let start = Instant::now();
        for &object in &*objects {
            free(object);
        }
        let free_ns = start.elapsed().as_secs_f64() * 1e9 / OBJECTS as f64;
        Ok((alloc_ns, free_ns))
    }

    /// Checks that all objects are charged to the group of the scope.
    fn prove(&self, scope: Scope) -> Result<(), Failure> {
        let all = OBJECTS as u64 * (SIZE as u64 + 4);
        let one = self.one.stat().current;
        let eight = self.eight.each_ref().map(|group| group.stat().current);
        let right = match scope {
            Scope::None | Scope::Root => one == 0 && eight == [0; ALTERNATING],
            Scope::Group | Scope::Refcounted => one == all && eight == [0; ALTERNATING],
            Scope::Alternating => one == 0 && eight == [all / ALTERNATING as u64; ALTERNATING],
        };
        if right {
            return Ok(());
        }
        Err(Failure::Failed(format!("{}: charged {one} and {eight:?}", scope.name())))
    }
}

/// Writes to an object, as the kernel's test does.
#[inline(always)]
fn write(object: *mut u8) -> *mut u8 {
    assert!(!object.is_null());
    // SAFETY: an object of 64 bytes, which no other code uses.
    unsafe { object.cast::<u64>().write_volatile(1) };
    object
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), "compiled in, books open".to_owned());
    let groups = Groups::make()?;
    let rows = measure(&groups, options.rounds.max(1) * options.common.times())?;
    let document = Document { table: "accounting", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))
}

fn measure(groups: &Groups, rounds: u32) -> Result<Vec<Row>, Failure> {
    let cpus = allowed();
    pin(&[Places::among(&cpus).single]);
    let mut objects = Vec::with_capacity(OBJECTS);
    let mut samples = Scope::ALL.map(|_| (Vec::new(), Vec::new()));
    for round in 0..rounds as usize {
        for turn in 0..Scope::ALL.len() {
            let number = (round + turn) % Scope::ALL.len();
            let (alloc, free) = groups.round(Scope::ALL[number], &mut objects)?;
            samples[number].0.push(alloc);
            samples[number].1.push(free);
        }
    }
    pin(&cpus);
    let least = samples.map(|(alloc, free)| {
        (minimum(&alloc).unwrap_or(f64::NAN), minimum(&free).unwrap_or(f64::NAN))
    });
    let none = least[0].0 + least[0].1;
    let rows = Scope::ALL.iter().zip(least).map(|(scope, (alloc, free))| Row {
        scope: scope.name(),
        alloc_ns: rounded(alloc, 3),
        free_ns: rounded(free, 3),
        percent: rounded(((alloc + free) / none - 1.0) * 100.0, 2),
        kernel_us: scope.kernel_us(),
    });
    Ok(rows.collect())
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["scope", "alloc ns", "free ns", "overhead", "kernel us", "before its patch"]);
    for row in rows {
        let kernel = |which: usize| row.kernel_us.map_or("-".into(), |us| us[which].to_string());
        grid.push([
            row.scope.to_owned(),
            format!("{:.2}", row.alloc_ns),
            format!("{:.2}", row.free_ns),
            format!("{:+.2} %", row.percent),
            kernel(1),
            kernel(0),
        ]);
    }
    let goal = |name: &str, most: f64| {
        let met = rows.iter().any(|row| row.scope == name && row.percent <= most);
        format!("{name} at most {most:+} %: {}", if met { "met" } else { "not met" })
    };
    let goals = format!("goals, against none: {}; {}", goal("group", 25.0), goal("root", 2.0));
    format!("{machine}\n\n{}\n{goals}\n", grid.render())
}
