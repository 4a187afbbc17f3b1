//! An instance under random use of its groups, and a plain model of its charges. The two are
//! compared while all threads pause.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kmem_core::memcg::{GroupError, GroupId, Shrinker};
use kmem_core::os::Platform;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, GroupStat, Instance};
use kmem_layout::group::Limit;

use crate::instance::{cost, counted, random};

/// Groups at a time, beside those that stay.
const TENANTS: usize = 12;
/// Groups that stay.
const TOPS: usize = 3;
/// The site of everything that the storm allocates.
const SITE: usize = 0x4000;
/// A count above this one is below zero, or wrong otherwise.
const ABSURD: u64 = 1 << 40;

/// A sequence of random numbers (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        random(&mut self.0) as usize % bound
    }
}

/// A group as the model knows it, by index: deleted ones stay.
struct Node {
    id: GroupId,
    above: Option<usize>,
    deleted: bool,
}

/// Something that is charged: memory, or a reservation where `at` is 0.
struct Charge {
    at: usize,
    bytes: u64,
    node: Option<usize>,
}

impl Charge {
    fn cost(&self) -> u64 {
        match self.bytes {
            bytes if self.at == 0 => bytes,
            bytes => cost(bytes),
        }
    }
}

/// A place for a group that comes and goes.
#[derive(Default)]
struct Tenant {
    node: Option<usize>,
    shrinker: Option<&'static Shrinker>,
}

pub(crate) struct Storm<P: Platform + 'static> {
    pub(crate) kmem: &'static Instance<P>,
    nodes: Mutex<Vec<Node>>,
    tenants: [Mutex<Tenant>; TENANTS],
    pool: Mutex<Vec<Charge>>,
    names: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) shrunk: AtomicUsize,
    pub(crate) deleted: AtomicUsize,
}

impl<P: Platform + 'static> Storm<P> {
    /// `None`: the instance did not start.
    pub(crate) fn new(kmem: &'static Instance<P>) -> Option<&'static Self> {
        let mut nodes = Vec::new();
        for top in 0..TOPS {
            let id = kmem.group_create(GroupId::ROOT, format!("top{top}").as_bytes()).ok()?;
            nodes.push(Node { id, above: None, deleted: false });
        }
        Some(Box::leak(Box::new(Self {
            kmem,
            nodes: Mutex::new(nodes),
            tenants: Default::default(),
            pool: Mutex::default(),
            names: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            shrunk: AtomicUsize::new(0),
            deleted: AtomicUsize::new(0),
        })))
    }

    fn id(&self, node: usize) -> GroupId {
        self.nodes.lock().expect("no panic")[node].id
    }

    /// A group that lives, or that another thread deletes concurrently.
    fn any(&self, random: &mut Random) -> usize {
        let tenant = random.below(TENANTS + TOPS);
        let Some(place) = tenant.checked_sub(TOPS) else { return tenant };
        self.tenants[place].lock().expect("no panic").node.unwrap_or(place % TOPS)
    }

    /// Takes one random step.
    pub(crate) fn step(&'static self, random: &mut Random) {
        match random.below(32) {
            0..14 => self.allocate(random),
            14..22 => self.free(random),
            22..25 => self.resize(random),
            25 => self.create(random),
            26 => self.delete(random),
            27 => self.limit(random),
            28 => self.reserve(random),
            29 => self.shrinkers(random),
            30 => self.wander(random),
            _ => self.look(random),
        }
    }

    fn allocate(&self, random: &mut Random) {
        let node = self.any(random);
        let kmem = self.kmem;
        let Ok(before) = kmem.group_enter(self.id(node)) else { return };
        let size = match random.below(20) {
            0 => random.below(400_000),
            1..4 => random.below(40_000),
            _ => random.below(600),
        };
        let caller = Caller::at(SITE).here().quietly();
        let caller = if random.below(50) == 0 { caller.nofail() } else { caller };
        let (at, split) = match random.below(12) {
            0 => (kmem.alloc_zeroed(size, caller), None),
            1 => (kmem.alloc_aligned(size, 64 << random.below(8), caller), None),
            2 => {
                let order = [Order(0), Order(2)][random.below(2)];
                (kmem.alloc_pages(order, Gfp::KERNEL, caller), Some(order))
            }
            3 => (kmem.kmalloc(size, Gfp::UNACCOUNTED, caller), None),
            _ => (kmem.alloc(size, caller), None),
        };
        let node = if kmem_is_free_of_charge(at, kmem) { None } else { Some(node) };
        kmem.group_leave(before);
        if at.is_null() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut pieces = vec![at as usize];
        if let Some(order) = split {
            // SAFETY: a block of that order.
            unsafe { kmem.split_page(at, order) };
            pieces = (0..order.pages().0 as usize).map(|n| at as usize + n * 4096).collect();
        }
        let charge = |at| Charge { at, bytes: counted(kmem, at as *mut u8), node };
        let charges: Vec<Charge> = pieces.into_iter().map(charge).collect();
        self.pool.lock().expect("no panic").extend(charges);
    }

    /// Takes a charge of any thread out of the pool.
    fn take(&self, random: &mut Random) -> Option<Charge> {
        let mut pool = self.pool.lock().expect("no panic");
        let count = pool.len();
        (count > 0).then(|| pool.swap_remove(random.below(count)))
    }

    fn give_back(&self, charge: &Charge) {
        if charge.at == 0 {
            let id = self.id(charge.node.expect("reservations are a group's"));
            self.kmem.group_uncharge(id, charge.bytes).expect("it is reserved");
        } else {
            let at = charge.at as *mut u8;
            let pages = self.kmem.page_words(at).map(|(_, len)| len.load(Ordering::Relaxed));
            // SAFETY: live, and given up.
            unsafe {
                if pages == Some(1) {
                    self.kmem.free_pages(at, Order(0))
                } else {
                    self.kmem.free(at)
                }
            }
        }
    }

    fn free(&self, random: &mut Random) {
        // The group that the thread is in does not change which group is credited.
        let before = self.kmem.group_enter(self.id(self.any(random)));
        for _ in 0..random.below(4) {
            if let Some(charge) = self.take(random) {
                self.give_back(&charge);
            }
        }
        if let Ok(before) = before {
            self.kmem.group_leave(before);
        }
    }

    fn resize(&self, random: &mut Random) {
        let Some(mut charge) = self.take(random) else { return };
        if charge.at != 0 {
            let most = if random.below(4) == 0 { 300_000 } else { 3000 };
            let size = 1 + random.below(most);
            let caller = Caller::at(SITE).quietly();
            // SAFETY: live and ours; if it moves, the old address is not used any more.
            let at = unsafe { self.kmem.realloc(charge.at as *mut u8, size, caller) };
            if !at.is_null() {
                charge.at = at as usize;
            }
            charge.bytes = counted(self.kmem, charge.at as *mut u8);
        }
        self.pool.lock().expect("no panic").push(charge);
    }

    fn create(&'static self, random: &mut Random) {
        let place = random.below(TENANTS);
        let above = self.any(random);
        let mut tenant = self.tenants[place].lock().expect("no panic");
        if tenant.node.is_some() {
            return;
        }
        let name = format!("{}", self.names.fetch_add(1, Ordering::Relaxed));
        match self.kmem.group_create(self.id(above), name.as_bytes()) {
            Ok(id) => {
                let mut nodes = self.nodes.lock().expect("no panic");
                tenant.node = Some(nodes.len());
                nodes.push(Node { id, above: Some(above), deleted: false });
            }
            // Its parent was deleted, or many dying ones keep their numbers.
            Err(error) => assert!(
                matches!(error, GroupError::NotFound | GroupError::Full | GroupError::TooDeep),
                "{error}"
            ),
        }
    }

    fn delete(&self, random: &mut Random) {
        self.delete_at(random.below(TENANTS), random.below(2) == 0);
    }

    fn delete_at(&self, place: usize, shrinker_first: bool) {
        let mut tenant = self.tenants[place].lock().expect("no panic");
        let Some(node) = tenant.node else { return };
        let mut remove = || {
            if let Some(shrinker) = tenant.shrinker.take() {
                self.kmem.shrinker_remove(shrinker).expect("not within one");
            }
        };
        if shrinker_first {
            remove();
        }
        match self.kmem.group_delete(self.id(node)) {
            Ok(()) => {
                remove();
                tenant.node = None;
                self.nodes.lock().expect("no panic")[node].deleted = true;
                self.deleted.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => assert_eq!(error, GroupError::HasChildren),
        }
    }

    fn limit(&self, random: &mut Random) {
        let id = self.id(self.any(random));
        let limit = [Limit::Max, Limit::High, Limit::Low][random.below(3)];
        let none = if limit == Limit::Low { 0 } else { u64::MAX };
        let bytes = if random.below(2) == 0 { none } else { random.below(4 << 20) as u64 };
        let set = self.kmem.group_set(id, limit, bytes);
        assert!(matches!(set, Ok(()) | Err(GroupError::NotFound)), "{set:?}");
        if random.below(4) == 0 {
            let _ = self.kmem.group_reset_peak(id);
        }
    }

    fn reserve(&self, random: &mut Random) {
        let node = self.any(random);
        let bytes = 1 + random.below(100_000) as u64;
        if self.kmem.group_try_charge(self.id(node), bytes).is_ok() {
            let charge = Charge { at: 0, bytes, node: Some(node) };
            self.pool.lock().expect("no panic").push(charge);
        }
    }

    fn shrinkers(&'static self, random: &mut Random) {
        let mut tenant = self.tenants[random.below(TENANTS)].lock().expect("no panic");
        let Some(node) = tenant.node else { return };
        if let Some(shrinker) = tenant.shrinker.take() {
            self.kmem.shrinker_remove(shrinker).expect("not within one");
        } else {
            let data = core::ptr::from_ref(self).cast_mut().cast();
            // SAFETY: the storm is never freed.
            tenant.shrinker =
                unsafe { self.kmem.shrinker_add(self.id(node), Self::shrink, data) }.ok();
        }
    }

    /// Frees charges of any thread.
    ///
    /// # Safety
    /// `data` is a storm.
    unsafe extern "C" fn shrink(data: *mut c_void, _: GroupId, bytes: usize) -> usize {
        // SAFETY: a storm, by the contract.
        let storm = unsafe { &*data.cast::<Self>() };
        storm.shrunk.fetch_add(1, Ordering::Relaxed);
        let mut freed = 0;
        while freed < bytes {
            // The thread that allocates may hold the lock.
            let Some(charge) = storm.pool.try_lock().ok().and_then(|mut pool| pool.pop()) else {
                break;
            };
            freed += charge.cost() as usize;
            storm.give_back(&charge);
        }
        freed
    }

    /// Enters one group after the other, and allocates in each.
    fn wander(&self, random: &mut Random) {
        for _ in 0..random.below(50) {
            let node = self.any(random);
            if let Ok(before) = self.kmem.group_enter(self.id(node)) {
                let at = self.kmem.alloc(32, Caller::at(SITE).here().quietly());
                self.kmem.group_leave(before);
                // SAFETY: null, or live and given up.
                unsafe { self.kmem.free(at) };
            }
        }
    }

    /// Checks that counts are not below zero while other threads work.
    fn look(&self, random: &mut Random) {
        let id = self.id(self.any(random));
        if let Ok(stat) = self.kmem.group_stat(id) {
            is_sound(&stat);
        }
        let _ = self.kmem.group_parent(id);
        let mut room = [0; kmem_layout::group::MAX_GROUP_NAME];
        if let Ok(name) = self.kmem.group_name(id, &mut room) {
            assert!(!name.is_empty() && core::str::from_utf8(name).is_ok());
        }
        if let Some(id) =
            self.kmem.group_all().nth(random.below(20)).filter(|&id| id != GroupId::ROOT)
            && let Ok(stat) = self.kmem.group_stat(id)
        {
            is_sound(&stat);
        }
    }

    /// Compares the instance with the model. All other threads pause.
    pub(crate) fn check(&self) {
        assert_eq!(self.kmem.validate_groups(), Ok(()));
        let (nodes, pool) =
            (self.nodes.lock().expect("no panic"), self.pool.lock().expect("no panic"));
        let mut sums = vec![0; nodes.len()];
        for charge in pool.iter() {
            let mut at = charge.node;
            while let Some(node) = at {
                sums[node] += charge.cost();
                at = nodes[node].above;
            }
        }
        for (node, sum) in nodes.iter().zip(&sums).filter(|(node, _)| !node.deleted) {
            let stat = self.kmem.group_stat(node.id).expect("a living group");
            assert_eq!(stat.current, *sum, "{:?}: {stat:?}", node.id);
            assert!(stat.peak >= stat.current);
            is_sound(&stat);
        }
        let mut tracked = 0;
        self.kmem.census(|tag, bytes, _| {
            if self.kmem.site_address(tag) == SITE {
                tracked += bytes;
            }
        });
        let held: u64 =
            pool.iter().filter(|charge| charge.at != 0).map(|charge| charge.bytes).sum();
        assert_eq!(tracked, held);
        assert!(self.kmem.group_dying() <= nodes.iter().filter(|node| node.deleted).count());
    }

    /// Frees everything, and checks that no charge and no group is left.
    pub(crate) fn end(&self) {
        for charge in self.pool.lock().expect("no panic").drain(..) {
            self.give_back(&charge);
        }
        self.check();
        // A group can be deleted after all groups below it.
        for _ in 0..TENANTS {
            (0..TENANTS).for_each(|place| self.delete_at(place, true));
        }
        for node in 0..TOPS {
            self.kmem.group_delete(self.id(node)).expect("none below it");
        }
        assert_eq!(self.kmem.group_dying(), 0);
        assert_eq!(self.kmem.group_all().count(), 1);
        assert_eq!(self.kmem.validate_groups(), Ok(()));
        self.kmem.trim();
        assert_eq!(self.kmem.validate(), Ok(()));
    }
}

fn kmem_is_free_of_charge<P: Platform>(at: *mut u8, kmem: &'static Instance<P>) -> bool {
    // SAFETY: a live allocation, unless it is null.
    !at.is_null() && unsafe { kmem.group_of_allocation(at) } == GroupId::ROOT
}

fn is_sound(stat: &GroupStat) {
    for count in [stat.current, stat.own, stat.reserved, stat.cached, stat.peak] {
        assert!(count < ABSURD, "{stat:?}");
    }
}
