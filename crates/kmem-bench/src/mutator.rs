//! A child process under `libkmem.so` that holds many objects and counts them exactly.
//!
//! ```text
//! parent -> child            child -> parent
//! (start)                    Holding: live objects, by site
//! churn alone|read           (nothing: its thread replaces objects until)
//! rest                       Holding
//! latency alone|read         Latency of all churning under that name
//! ```
//!
//! Sites are static tags, numbered by line, so the parent can compare every row.

use crate::Failure;
use crate::affinity::{Places, allowed, pin};
use crate::conversation::{Conversation, answer};
use crate::dynamic::{Library, object_of, same_file};
use crate::preload::untuned;
use crate::prng::Prng;
use hdrhistogram::Histogram;
use kmem_core::StaticTag;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::io::stdin;
use std::mem::transmute;
use std::path::Path;
use std::process::Command;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Number of call sites.
pub(crate) const SITES: usize = 300;
/// `file` of every site.
pub(crate) const FILE: &str = "mutator";
/// Number of objects that are replaced; all others stay.
pub(crate) const CHURNED: usize = 4096;
/// Replacements that are timed together: reading the clock takes as long as several.
const BATCH: usize = 16;
/// Objects of one size in a row, as in `sizes8_240`.
const IN_A_ROW: usize = 100;
/// Longest time the histogram holds, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// The sites. Number `n` has line `n + 1`.
static TAGS: [StaticTag; SITES] = {
    let mut tags = [const { StaticTag::new(c"mutator", c"object", 0) }; SITES];
    let mut site = 0;
    while site < SITES {
        tags[site].line = site as u32 + 1;
        site += 1;
    }
    tags
};

/// Options of the hidden subcommand, and what a heap is made of.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Heap {
    /// Objects.
    #[arg(long)]
    pub(crate) objects: usize,
    /// The smallest size in bytes, eight or more.
    #[arg(long)]
    pub(crate) from: usize,
    /// The largest size.
    #[arg(long)]
    pub(crate) to: usize,
    /// From one size to the next.
    #[arg(long)]
    pub(crate) step: usize,
}

impl Heap {
    fn sizes(&self) -> usize {
        (self.to - self.from) / self.step + 1
    }

    /// Size of the object with this number.
    fn size(&self, number: usize) -> usize {
        self.from + number / IN_A_ROW % self.sizes() * self.step
    }

    /// The mean of the requested sizes.
    pub(crate) fn mean_size(&self) -> usize {
        (self.from + self.to) / 2
    }
}

/// The live objects of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// Requested bytes.
    pub(crate) requested: u64,
    /// Number of objects and their bytes by `ksize`, for each site.
    pub(crate) sites: Vec<(u64, u64)>,
}

impl Holding {
    /// Objects and bytes of all sites.
    pub(crate) fn total(&self) -> (u64, u64) {
        self.sites.iter().fold((0, 0), |sum, site| (sum.0 + site.0, sum.1 + site.1))
    }
}

/// Times of replacements, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Median of the batches, per replacement: a free and an allocation.
    pub(crate) p50_ns: f64,
    /// Most time of 99 % of the batches, per replacement.
    pub(crate) p99_ns: f64,
    /// Most time of 99.9 % of the batches, per replacement.
    pub(crate) p999_ns: f64,
    /// Time of the longest batch.
    pub(crate) max_ns: u64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let each = |quantile| {
            let batch = histogram.value_at_quantile(quantile) as f64;
            crate::statistics::rounded(batch / BATCH as f64, 2)
        };
        Self {
            p50_ns: each(0.5),
            p99_ns: each(0.99),
            p999_ns: each(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// Starts a child with this heap under `library`.
pub(crate) fn start(
    heap: &Heap,
    library: &Path,
    conf: &str,
) -> Result<(Conversation, Holding), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    untuned(&mut command).env("LD_PRELOAD", library).env("KMEM_CONF", conf).arg("mutator");
    let options = [
        ("--objects", heap.objects),
        ("--from", heap.from),
        ("--to", heap.to),
        ("--step", heap.step),
    ];
    for (name, value) in options {
        command.arg(name).arg(value.to_string());
    }
    let mut child = Conversation::start(&mut command)?;
    let holding = child.read()?;
    Ok((child, holding))
}

type Kmalloc = unsafe extern "C" fn(usize, u32, *const StaticTag) -> *mut c_void;
type Kfree = unsafe extern "C" fn(*mut c_void);
type Ksize = unsafe extern "C" fn(*mut c_void) -> usize;

/// The functions of the preloaded library.
#[derive(Debug, Clone, Copy)]
struct Functions {
    kmalloc: Kmalloc,
    kfree: Kfree,
    ksize: Ksize,
}

impl Functions {
    fn find() -> Result<Self, String> {
        let symbols = [c"kmem_kmalloc_tag", c"kmem_kfree", c"kmem_ksize"]
            .map(|name| Library::process().symbol(name));
        let [Ok(kmalloc), Ok(kfree), Ok(ksize)] = symbols else {
            return Err("libkmem.so is not preloaded".to_owned());
        };
        let expected = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let object = object_of(kmalloc).unwrap_or_default();
        if !same_file(&object, Path::new(&expected)) {
            return Err(format!("kmalloc_tag is that of {}", object.display()));
        }
        // SAFETY: `kmem.h` gives the three functions these types.
        unsafe {
            Ok(Self {
                kmalloc: transmute::<*mut c_void, Kmalloc>(kmalloc),
                kfree: transmute::<*mut c_void, Kfree>(kfree),
                ksize: transmute::<*mut c_void, Ksize>(ksize),
            })
        }
    }

    /// Allocates an object, and writes `word` to it.
    #[inline(always)]
    fn alloc(&self, size: usize, site: usize, word: *mut c_void) -> NonNull<c_void> {
        // SAFETY: `kmem.h` gives the function this type; the tag is static.
        let at = unsafe { (self.kmalloc)(size, 0, &TAGS[site]) };
        let Some(at) = NonNull::new(at) else { crate::heap::out_of_memory() };
        // SAFETY: eight bytes or more, aligned for a pointer.
        unsafe { at.cast::<*mut c_void>().write(word) };
        at
    }
}

/// An object that is replaced.
#[derive(Debug, Clone, Copy)]
struct Churned {
    at: NonNull<c_void>,
    size: usize,
    site: usize,
}

// SAFETY: one thread at a time has the address of an object, and may use it.
unsafe impl Send for Churned {}

/// The heap of the child.
#[derive(Debug)]
struct Mutator {
    heap: Heap,
    functions: Functions,
    holding: Holding,
    churned: Vec<Churned>,
    prng: Prng,
    /// Number of objects made so far.
    made: usize,
}

impl Mutator {
    /// Fills the heap.
    fn new(heap: &Heap, functions: Functions) -> Self {
        let holding = Holding { requested: 0, sites: vec![(0, 0); SITES] };
        let churned = Vec::with_capacity(CHURNED);
        let heap = heap.clone();
        let mut mutator = Self { heap, functions, holding, churned, prng: Prng::new(6), made: 0 };
        // Objects that stay form a list, so no table of them is needed.
        let mut list = null_mut();
        for number in 0..mutator.heap.objects {
            let (size, site) = mutator.next();
            let at = functions.alloc(size, site, list);
            mutator.account(at, size, site, 1);
            // The replaced objects are spread over the heap.
            if number.is_multiple_of((mutator.heap.objects / CHURNED).max(1))
                && mutator.churned.len() < CHURNED
            {
                mutator.churned.push(Churned { at, size, site });
            } else {
                list = at.as_ptr();
            }
        }
        mutator
    }

    /// Size and site of the next object.
    fn next(&mut self) -> (usize, usize) {
        self.made += 1;
        (self.heap.size(self.made), self.made % SITES)
    }

    /// Counts an object that was allocated (`1`) or is to be freed (`-1`).
    fn account(&mut self, at: NonNull<c_void>, size: usize, site: usize, by: i64) {
        // SAFETY: a live object.
        let bytes = unsafe { (self.functions.ksize)(at.as_ptr()) };
        let site = &mut self.holding.sites[site];
        site.0 = site.0.wrapping_add_signed(by);
        site.1 = site.1.wrapping_add_signed(by * bytes as i64);
        self.holding.requested = self.holding.requested.wrapping_add_signed(by * size as i64);
    }

    /// Replaces random objects among those of `churned`, until `stop` is set.
    fn churn(&mut self, stop: &AtomicBool, histogram: &mut Histogram<u64>) {
        pin(&[Places::among(&allowed()).single]);
        // No data is published with `stop`.
        while !stop.load(Ordering::Relaxed) {
            let mut places = [0; BATCH];
            let mut next = [(0, 0); BATCH];
            let first = self.prng.between(0, self.churned.len() - 1);
            for (turn, place) in places.iter_mut().enumerate() {
                // Places are far apart and distinct.
                *place = (first + turn * (self.churned.len() / BATCH)) % self.churned.len();
                next[turn] = self.next();
                let Churned { at, size, site } = self.churned[*place];
                self.account(at, size, site, -1);
            }
            let start = Instant::now();
            for (&place, &(size, site)) in places.iter().zip(&next) {
                let churned = &mut self.churned[place];
                // SAFETY: live, and replaced in the next line.
                unsafe { (self.functions.kfree)(churned.at.as_ptr()) };
                let at = self.functions.alloc(size, site, null_mut());
                *churned = Churned { at, size, site };
            }
            histogram.saturating_record(start.elapsed().as_nanos() as u64);
            for place in places {
                let Churned { at, size, site } = self.churned[place];
                self.account(at, size, site, 1);
            }
        }
    }
}

/// Serves a parent until the input ends.
pub(crate) fn serve(heap: &Heap) -> Result<(), Failure> {
    if heap.from < 8 || heap.to < heap.from || heap.step == 0 || heap.objects < BATCH {
        return Err(Failure::Absent(format!("no heap can be like {heap:?}")));
    }
    pin(&[Places::among(&allowed()).single]);
    let mut mutator = Mutator::new(heap, Functions::find().map_err(Failure::Failed)?);
    pin(&allowed());
    answer(&mutator.holding)?;
    let histogram = || Histogram::<u64>::new_with_bounds(1, LONGEST, 3);
    let failed = |error: &dyn std::error::Error| Failure::Failed(error.to_string());
    let mut alone = histogram().map_err(|error| failed(&error))?;
    let mut read = histogram().map_err(|error| failed(&error))?;
    let mut lines = stdin().lines();
    while let Some(line) = lines.next().transpose()? {
        let (command, name) = line.split_once(' ').unwrap_or((&line, ""));
        let histogram = match name {
            "alone" => &mut alone,
            "read" => &mut read,
            _ => return Err(Failure::Failed(format!("no command {line}"))),
        };
        match command {
            "churn" => {
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| mutator.churn(&stop, histogram));
                    // Stops at any line, or at the end of the input.
                    let next = lines.next();
                    stop.store(true, Ordering::Relaxed);
                    next.transpose()
                })?;
                answer(&mutator.holding)?;
            }
            "latency" => answer(&Latency::of(histogram))?,
            _ => return Err(Failure::Failed(format!("no command {line}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Heap, Holding, TAGS};

    #[test]
    fn every_site_has_its_own_line() {
        assert!(TAGS.iter().zip(1..).all(|(tag, line)| tag.line == line));
    }

    #[test]
    fn sizes_come_in_rows_and_begin_again() {
        let heap = Heap { objects: 1000, from: 8, to: 24, step: 8 };
        let sizes: Vec<_> = (0..4).map(|row| heap.size(100 * row)).collect();
        assert_eq!(sizes, [8, 16, 24, 8]);
        assert_eq!((heap.size(99), heap.mean_size()), (8, 16));
    }

    #[test]
    fn a_total_is_the_sum_of_the_sites() {
        let holding = Holding { requested: 9, sites: vec![(1, 16), (0, 0), (2, 64)] };
        assert_eq!(holding.total(), (3, 80));
    }
}
