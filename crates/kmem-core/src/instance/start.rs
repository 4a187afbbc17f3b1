//! Starting an instance: configuration, tables, the first zone.
//!
//! | state    | meaning                                                                      |
//! |----------|------------------------------------------------------------------------------|
//! | NEW      | all zero; the fast paths fail over to the slow ones                          |
//! | STARTING | one thread starts the instance; others wait; the upper bits name its process |
//! | READY    | in use                                                                       |
//! | FAILED   | the platform has no memory; every request is refused                         |
//! | MENDING  | a forked child is being repaired                                             |
//!
//! A child may be forked while another thread of its parent starts the instance. It clears what
//! that thread built, and starts anew.

use core::mem::MaybeUninit;

use kmem_layout::geometry::{CHUNK_SHIFT, ClassGeometry};
use kmem_layout::group::GroupBlock;
use kmem_layout::root::{self, RootBlock, ZoneBlock, profiling};
use kmem_layout::site::Site;
use kmem_layout::word::TAG_BITS;

use super::Instance;
use super::configure::configure;
use super::tables::Tables;
use crate::alloc_tag::{self, BoxPlace, Mode, Watch};
use crate::class::{CLASS_COUNT, MAX_OBJECT};
use crate::conf::{Conf, Python};
use crate::cpu::Kind;
use crate::heap;
use crate::ledger::ObjectChecks;
use crate::os::{Cpus, MAX_NODES, Platform};
use crate::page::PageChecks;
use crate::report::{Printable, print};
use crate::slab::Format;
use crate::sync::{AtomicU32, Ordering, spin};
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

pub(super) const NEW: u32 = 0;
pub(super) const STARTING: u32 = 1;
pub(super) const READY: u32 = 2;
pub(super) const FAILED: u32 = 3;
pub(super) const MENDING: u32 = 4;

/// Mask of the state, without a process.
const STATE: u32 = 0xFF;

/// State while a process starts the instance. Linux has at most 2^22 processes.
const fn starting_in(process: u32) -> u32 {
    STARTING | process << 8
}

impl<P: Platform> Instance<P> {
    /// Returns whether requests can be served. Starts the instance if no thread did, and repairs it
    /// in a forked child.
    pub(super) fn ready(&'static self) -> bool {
        loop {
            let state = self.state.load(Ordering::Acquire);
            match state & STATE {
                READY if self.heap().slots.alive() => return true,
                READY => self.restart_in_child(),
                NEW => self.start(NEW),
                STARTING if state == starting_in(self.platform().process()) => spin(),
                STARTING => self.start(state),
                _ => return false,
            }
        }
    }

    /// Returns whether the instance was started. A forked child may have to be repaired.
    pub(super) fn is_started(&self) -> bool {
        self.state.load(Ordering::Acquire) & STATE == READY
    }

    /// Returns whether requests can be served without a start or a repair.
    pub(super) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) & STATE == READY && self.heap().slots.alive()
    }

    /// Starts the instance. `seen` is `NEW`, or the state in which another process was copied. Not
    /// inlined: the configuration takes much stack.
    #[cold]
    #[inline(never)]
    fn start(&'static self, seen: u32) {
        let starting = starting_in(self.platform().process());
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(seen, starting, done, failed).is_err() {
            return;
        }
        self.require_pages();
        let conf = configure(self.platform());
        if conf.sandbox {
            self.platform().start_in_sandbox();
        }
        // SAFETY: one thread of a process comes here, once. No other thread uses the instance
        // before its state is ready.
        let done = unsafe {
            if seen != NEW {
                self.clear();
            }
            // INVARIANT: written once, and the state is not ready yet.
            (*self.conf.get()).write(conf);
            self.build(&conf)
        }
        .is_some();
        if !done {
            self.platform().print(b"kmem: no memory to start with\n");
        }
        self.state.store(if done { READY } else { FAILED }, Ordering::Release);
    }

    /// Ends the program on a kernel whose pages are longer than those of this build. It would drop
    /// or protect more than it is asked to.
    fn require_pages(&self) {
        let (platform, page) = (self.platform(), self.platform().page_bytes());
        if !PAGE_SIZE.is_multiple_of(page) {
            let (long, own) = (page >> 10, PAGE_SIZE >> 10);
            print!(platform, "kmem: the kernel has pages of {long} KiB, kmem needs {own} KiB\n");
            platform.fatal();
        }
    }

    /// Clears what another process built, but for the platform.
    ///
    /// # Safety
    /// No other thread uses the instance.
    #[cold]
    unsafe fn clear(&'static self) {
        let parts = (&raw const *self).cast_mut().cast::<u8>();
        let platform = (&raw const *self.platform()).cast_mut();
        // SAFETY: all before the state is valid as zeroes but for the platform, which is put back.
        // No other thread uses any of it, by the contract.
        unsafe {
            let kept = platform.cast::<MaybeUninit<P>>().read();
            parts.write_bytes(0, core::mem::offset_of!(Self, state));
            platform.cast::<MaybeUninit<P>>().write(kept);
        }
    }

    /// Allocates the tables and starts all layers. `None`: the platform has no memory.
    ///
    /// # Safety
    /// No other thread uses the instance, whose parts are all zero but for the platform.
    unsafe fn build(&'static self, conf: &Conf) -> Option<()> {
        let (platform, ledger) = (self.platform(), &self.ledger);
        let keeps_books = conf.profiling != profiling::NEVER;
        let has_groups = keeps_books || conf.groups;
        let checks = ObjectChecks::of(conf, platform);
        let quarantine = u64::from(if checks.has_quarantine() { conf.quarantine_kb } else { 0 });
        let held_back = quarantine << 10;
        let budget = platform.budget();
        let nodes = if conf.numa { platform.nodes().clamp(1, MAX_NODES) } else { 1 };
        let tables =
            Tables::for_heap(platform, &budget, (nodes, held_back, keeps_books && conf.debug))?;
        // If the platform cannot name mappings, readers outside do not find this instance;
        // everything else works.
        let root =
            platform.map_root(PAGE_SIZE).or_else(|| platform.allocate(PAGE_SIZE, PAGE_SIZE))?;
        let root = root.cast::<RootBlock>().as_ptr();
        let page_checks = PageChecks::of(conf);
        let format = Format {
            extension: keeps_books,
            charges: has_groups && !keeps_books,
            guards: checks.has_red_zones(),
        };
        let ages = keeps_books && conf.age;
        let vectors = if keeps_books { checks.records() + u32::from(ages) } else { 0 };
        let start = heap::Start {
            root,
            barns: tables.barns,
            pools: tables.pools,
            sheaves: tables.sheaf_count,
            nodes,
            pcp: tables.pcp,
            cpus: budget.cpus,
            format,
            vectors: u32::from(has_groups) + vectors,
            times: ages,
            checks: page_checks,
            huge: conf.thp,
            decay_ms: conf.decay_ms,
            demand_ms: conf.demand_ms,
            limit: budget.limit,
            owner: self,
        };
        let book_tables = alloc_tag::Tables {
            sites: tables.sites,
            index: tables.index,
            peak: tables.peak,
            scratch: tables.scratch,
            live: tables.live,
        };
        // SAFETY: no other thread uses the instance. Each table is zeroed, has the size that its
        // user requires, has one user, and is never freed. So is the root block, whose magic is not
        // written yet. Parts are whole pages of one reservation, and so is what is committed.
        unsafe {
            if page_checks.zeroes_on_alloc() || checks.any() {
                ledger.books.sites.put_aside();
            }
            self.describe(&mut *root, &tables, conf);
            ledger.guards.describe(&mut *root, checks);
            // Behind the other vectors.
            (*root).time_vector = if ages { vectors } else { 0 };
            ledger.heap.start(&start);
            ledger.books.start(platform, root, &book_tables, conf.peak);
            // The configuration was written before, and never changes.
            if let Some(patterns) = (*self.conf.get()).assume_init_ref().skip.get() {
                ledger.books.sites.choose_wrappers(patterns);
            }
            // Elsewhere a page that was read once can be read always.
            let keeps_access = !conf.debug_pagealloc && !conf.guard;
            if conf.python == Python::Auto && keeps_books && keeps_access {
                ledger.books.sites.interpreter().want();
            }
            ledger.reports.start(tables.report, tables.report_bytes);
            ledger.guards.start(checks);
            let kind = kind(platform, conf);
            ledger.guards.held().start(platform, kind, tables.quarantine, held_back);
            let (groups, names) = (tables.groups, tables.names);
            if has_groups && !ledger.groups.start(platform, groups, names, tables.group_count) {
                return None;
            }
        }
        if checks.has_fences() || checks.guards_pages() {
            self.report_accesses();
        }
        ledger.heap.start_slots(kind(platform, conf));
        let mut watch = self.watch_for(conf, checks);
        if page_checks.zeroes_on_free() {
            watch = Watch(watch.0 | Watch::ZERO);
        }
        ledger.books.start_watch(watch);
        let mut mode = Mode::of(conf.profiling);
        if page_checks.zeroes_on_alloc() {
            mode = if mode == Mode::NEVER { Mode::NEVER_CLOSED } else { mode };
        } else if !checks.any() {
            ledger.heap.fast.open_requests(MAX_OBJECT + 1);
        }
        // From here on the fast paths may run.
        ledger.books.open(mode);
        let first = ledger.heap.zones.add_first(platform)?;
        // While calls are watched, no free takes the fast path.
        if !watch.any() {
            if !page_checks.is_slow() {
                ledger.heap.fast.open_blocks(&first);
            }
            let aside = page_checks.zeroes_on_free() || checks.any();
            let fast = if aside { &ledger.heap.fast_aside } else { &ledger.heap.fast };
            for fast in [&ledger.heap.fast, &ledger.heap.fast_aside] {
                fast.show_objects(&first);
            }
            fast.open_objects(&first, format);
        }
        // Release: a reader that sees the magic sees all fields.
        // SAFETY: the root block is mapped and never freed.
        unsafe { (*root).magic.store(root::MAGIC, Ordering::Release) };
        Some(())
    }

    /// Configured watch of calls. Makes the black box, if one is configured.
    fn watch_for(&'static self, conf: &Conf, checks: ObjectChecks) -> Watch {
        let platform = self.platform();
        if conf.profiling == profiling::NEVER {
            if conf.blackbox.get().is_some() || conf.cumulative || conf.debug || conf.age {
                let text =
                    b"kmem: configuration: blackbox, cumulative, debug and age need the books\n";
                platform.print(text);
            }
            return Watch(0);
        }
        let mut watch = if conf.debug { Watch::DEBUG } else { 0 };
        if conf.age {
            watch |= Watch::AGE;
        }
        if checks.any() {
            watch |= Watch::GUARD;
        }
        let black_box = &self.ledger.books.blackbox;
        if let Some(path) = conf.blackbox.get() {
            let cpus = if conf.cumulative { platform.budget().cpus } else { 0 };
            match black_box.start(platform, BoxPlace::Path(path), cpus) {
                Ok(()) if conf.cumulative => watch |= Watch::COUNT,
                Ok(()) => {}
                Err(why) => {
                    print!(platform, "kmem: no black box: {}: {why}\n", Printable(path));
                }
            }
            return Watch(watch);
        }
        if let Some(directory) = conf.boxes.get() {
            // The reader that made the directory tells its user if there is no box. A program that
            // outlives that reader, or has no rights there, runs without one.
            let _ = black_box.start(platform, BoxPlace::In(directory), 0);
        }
        if conf.cumulative {
            platform.print(b"kmem: configuration: cumulative needs blackbox:PATH to count in\n");
        }
        Watch(watch)
    }

    /// Fills in the root block for readers, but for its magic.
    fn describe(&self, root: &mut RootBlock, tables: &Tables, conf: &Conf) {
        root.version = root::VERSION;
        root.started_ms = self.platform().now_ms();
        root.size = size_of::<RootBlock>() as u32;
        root.page_shift = PAGE_SHIFT;
        root.chunk_shift = CHUNK_SHIFT;
        root.tag_bits = TAG_BITS;
        root.class_count = CLASS_COUNT as u32;
        root.class_size = size_of::<ClassGeometry>() as u32;
        root.zone_size = size_of::<ZoneBlock>() as u32;
        root.site_size = size_of::<Site>() as u32;
        root.site_capacity = tables.site_count;
        root.classes = self.heap().classes.all().as_ptr() as u64;
        root.zones = tables.zones as u64;
        root.sites = tables.sites.at as u64;
        root.peak = tables.peak.at as u64;
        root.groups = tables.groups.at as u64;
        root.group_capacity = tables.group_count;
        root.group_size = size_of::<GroupBlock>() as u32;
        (root.cache, root.cache_len) = self.ledger.books.sites.cache_part();
        (root.own, root.own_capacity) = self.platform().reservations();
        root.meta_base = tables.base as u64;
        root.meta_len = tables.bytes as u64;
        root.profiling = AtomicU32::new(conf.profiling);
        root.depth = AtomicU32::new(conf.depth);
    }
}

/// Kind of CPU slots: rseq if the platform has it and the configuration allows it.
fn kind(platform: &impl Cpus, conf: &Conf) -> Kind {
    match platform.rseq_offset() {
        Some(offset) if conf.rseq => Kind::Rseq(offset),
        _ => Kind::Locked,
    }
}

#[cfg(all(test, kmem_linux, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::class::SizeClass;
    use crate::os::linux::Linux;
    use crate::os::sim::Sim;
    use crate::os::{ADDRESS_BITS, Budget, Process};
    use crate::units::{Gfp, Order};
    use crate::{Caller, Instance, Kmem};

    const BYTES: usize = 64 << 20;
    const BUDGET: Budget = Budget::of(BYTES, 3);

    /// The state that a fork copies while another thread starts the instance.
    fn copied_while_starting(kmem: &'static Kmem) {
        let parent = kmem.platform().process() + 1;
        kmem.state.store(starting_in(parent), Ordering::Relaxed);
    }

    fn serves(kmem: &'static Kmem) -> bool {
        let at = kmem.alloc(100, Caller::NOBODY);
        // SAFETY: null, or a live allocation that is used no longer.
        unsafe { kmem.free(at) };
        kmem.drain();
        !at.is_null() && kmem.validate() == Ok(()) && kmem.stats().used == 0
    }

    #[test]
    fn a_child_that_is_forked_during_the_start_starts_by_itself() {
        static KMEM: Kmem = Kmem::new();
        copied_while_starting(&KMEM);
        assert!(serves(&KMEM));
        // As much of the start as there can be.
        copied_while_starting(&KMEM);
        assert!(serves(&KMEM));
    }

    #[test]
    fn a_tracer_sees_samples_of_what_it_watches_and_leaves_the_fast_paths_open() {
        const OBJECT: usize = 1000;
        const COUNT: usize = 12_000;
        static A: Instance<Sim<Linux>> = Instance::over(Sim::new(Linux::new(), BUDGET));
        let fast = &A.heap().fast;
        // Of each kind that has a fast path, so that none of them is seen to free.
        let allocate = || {
            let page = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::NOBODY);
            let objects: [_; COUNT] = core::array::from_fn(|_| A.alloc(OBJECT, Caller::NOBODY));
            (page, objects)
        };
        let is_open = |(page, objects): &(*mut u8, [*mut u8; COUNT])| {
            let [object, page] = [objects[0] as usize, *page as usize];
            (fast.class(object).is_ok(), fast.page(page).is_some())
        };
        let free = |(page, objects): (*mut u8, [*mut u8; COUNT])| {
            // SAFETY: live allocations that are used no longer.
            objects.into_iter().chain([page]).for_each(|at| unsafe { A.free(at) });
        };
        let before = allocate();
        assert_eq!(is_open(&before), (true, true));
        A.platform().trace(true);
        let seen = allocate();
        assert_eq!(is_open(&seen), (false, false));
        let (weight, frees) = A.platform().told_tracer();
        let bytes = (OBJECT * COUNT) as u64;
        // There are 23 samples on average.
        assert!((bytes / 2..bytes * 2).contains(&weight), "{weight} of {bytes}");
        assert_eq!(frees, 0);
        // The tracer did not see the first ones.
        free(before);
        assert_eq!(A.platform().told_tracer(), (weight, 0));
        free(seen);
        let (_, frees) = A.platform().told_tracer();
        assert!(frees > 0 && frees <= weight >> 19, "{frees} of {}", weight >> 19);
        A.platform().trace(false);
        let after = allocate();
        assert_eq!(is_open(&after), (true, true));
        free(after);
        assert_eq!(A.platform().told_tracer(), (weight, frees));
        A.drain();
        assert_eq!((A.validate(), A.stats().used), (Ok(()), 0));
    }

    #[test]
    fn a_program_that_takes_no_slow_path_notices_that_its_tracer_left() {
        static A: Instance<Sim<Linux>> = Instance::over(Sim::new(Linux::new(), BUDGET).with_rseq());
        let fast = &A.heap().fast;
        let pair = || {
            let object = A.alloc(100, Caller::at(0x4000));
            let is_open = fast.class(object as usize).is_ok();
            // SAFETY: live, and used no longer.
            unsafe { A.free(object) };
            is_open
        };
        pair();
        A.platform().trace(true);
        A.alloc_pages(Order(0), Gfp::KERNEL, Caller::NOBODY);
        assert!(!pair() && !pair());
        A.platform().trace(false);
        assert!(pair());
    }

    #[test]
    fn a_child_that_is_forked_while_a_tracer_comes_or_goes_has_open_fast_paths() {
        static A: Instance<Sim<Linux>> = Instance::over(Sim::new(Linux::new(), BUDGET));
        let (fast, aside) = (&A.heap().fast, &A.heap().fast_aside);
        let ledger = &A.ledger;
        let object = A.alloc(100, Caller::NOBODY) as usize;
        let page = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::NOBODY) as usize;
        let sites = &ledger.books.sites;
        let steps: [&dyn Fn(); 6] = [
            &|| fast.close(aside),
            &|| ledger.books.add_watch(Watch::SAMPLE),
            &|| sites.put_aside_while(true),
            &|| sites.put_aside_while(false),
            &|| ledger.books.end_watch(Watch::SAMPLE),
            &|| fast.reopen(aside),
        ];
        for cut in 0..=steps.len() {
            assert!(ledger.samples.lock());
            steps[..cut].iter().for_each(|step| step());
            A.restart_in_child();
            assert!(fast.class(object).is_ok() && fast.page(page).is_some(), "{cut} steps");
            assert!(aside.class(object).is_err(), "{cut} steps");
            assert!(!ledger.books.watch().any(), "{cut} steps");
            let known = A.alloc(100, Caller::at(0x4000 + cut));
            assert!(!known.is_null() && sites.cached(0x4000 + cut).is_some(), "{cut} steps");
        }
    }

    #[test]
    fn calls_at_all_addresses_of_a_program_are_found_by_fast_paths() {
        static A: Kmem = Kmem::new();
        for address in [0x40_0000, 0x2aaa_c0de_1238, (1 << ADDRESS_BITS) - 0x5558] {
            let caller = Caller::at(address);
            assert_eq!(A.sites().cached(caller.key()), None, "{address:#x}");
            assert!(!A.alloc(100, caller).is_null());
            assert!(A.sites().cached(caller.key()).is_some(), "{address:#x}");
        }
    }

    #[test]
    fn fast_paths_know_the_objects_and_the_pages_of_all_nodes() {
        static A: Instance<Sim<Linux>> =
            Instance::over(Sim::new(Linux::new(), BUDGET).with_nodes(3));
        let fast = &A.heap().fast;
        for cpu in [2, 0, 1] {
            A.platform().run_on(cpu);
            let object = A.alloc(100, Caller::NOBODY);
            assert_eq!(A.page_to_nid(object), Some(cpu));
            assert!(fast.class(object as usize).is_ok(), "node {cpu}");
            let page = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::NOBODY);
            assert_eq!(A.page_to_nid(page), Some(cpu));
            assert!(fast.page(page as usize).is_some(), "node {cpu}");
            if let Some(zone) = A.heap().zones.of_node(cpu).next() {
                // The words of a page that is not committed say that no allocation begins there.
                let last = zone.zone.base() + zone.zone.pages().bytes() - PAGE_SIZE;
                assert!(zone.zone.pfn(last).is_some_and(|last| zone.zone.words(last).is_none()));
                let (words, _) = fast.page(last).expect("its words");
                assert_eq!(words.len.load(crate::sync::Ordering::Relaxed), 0);
                // Nor has it a class.
                assert_eq!(fast.class(last), Ok(SizeClass(0)));
            }
        }
    }
}
