//! Models of charging and deleting.

use core::ffi::c_void;
use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::{AtMax, GroupId, Groups, Limits, Shrinker};
use crate::os::regions::Regions;
use crate::os::stepped::Part;
use crate::sync::model::{Owned, check};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, atomics, fence};
use crate::units::ObjcgId;
use kmem_layout::group::Limit;
use kmem_layout::group::{GroupBlock, MAX_GROUP_NAME, group_state};
use kmem_layout::word::{EXT_LIVE, OBJCG_SHIFT, TAG_MASK};

const ENTRIES: u32 = 4;

/// A table of four entries, with the root, a parent and a child.
struct Model {
    groups: Groups,
    parent: GroupId,
    child: GroupId,
}

impl Model {
    fn new() -> Arc<Self> {
        let blocks: Box<[GroupBlock]> = (0..ENTRIES).map(|_| empty()).collect();
        let index: Box<[AtomicU32]> = (0..2 * ENTRIES).map(|_| AtomicU32::new(0)).collect();
        let groups = Groups::new();
        let bytes = Groups::blocks_bytes(ENTRIES);
        let blocks = Part::whole(Box::into_raw(blocks).cast(), bytes);
        let platform = &Regions::empty();
        // SAFETY: entries and an index for these groups alone, which `Drop` frees last.
        unsafe { groups.start(platform, blocks, Box::into_raw(index).cast(), ENTRIES) };
        let parent = groups.create(platform, GroupId::ROOT, b"p", || {}).expect("room");
        let child = groups.create(platform, parent, b"c", || {}).expect("room");
        Arc::new(Self { groups, parent, child })
    }

    fn charged(&self, id: GroupId) -> u64 {
        self.groups.block(id.objcg()).charged.load(Ordering::SeqCst)
    }

    fn delete(&self) {
        self.groups.delete(self.child, || {}).expect("it is there");
        self.groups.settle(self.child.objcg());
    }

    /// Checks that the child's entry was made free, once, and that no charge is left.
    fn is_gone(&self) {
        let block = self.groups.block(self.child.objcg());
        let state = block.state.load(Ordering::SeqCst);
        assert_eq!(state, 2 << group_state::BITS | group_state::FREE);
        assert_eq!(block.own.load(Ordering::SeqCst), 0);
        let parent = self.groups.block(self.parent.objcg());
        assert_eq!(parent.children.load(Ordering::SeqCst), 0);
        assert_eq!(parent.living.load(Ordering::SeqCst), 0);
        assert_eq!(self.charged(self.parent), 0);
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let blocks = self.groups.blocks.base().cast::<GroupBlock>();
        let index = self.groups.index.load(Ordering::Relaxed) as *mut AtomicU32;
        // SAFETY: from `Box::into_raw` in `new`, of these lengths.
        unsafe {
            drop(Box::from_raw(core::ptr::slice_from_raw_parts_mut(blocks, ENTRIES as usize)));
            drop(Box::from_raw(core::ptr::slice_from_raw_parts_mut(index, 2 * ENTRIES as usize)));
        }
    }
}

fn empty() -> GroupBlock {
    let word = || AtomicU64::new(0);
    let half = || AtomicU32::new(0);
    GroupBlock {
        state: half(),
        parent: half(),
        charged: word(),
        own: word(),
        reserved: word(),
        peak: word(),
        max: word(),
        high: word(),
        low: word(),
        events: core::array::from_fn(|_| word()),
        pins: half(),
        children: half(),
        over: half(),
        eventfd: half(),
        living: half(),
        merging: half(),
        shrinkers: word(),
        name_len: AtomicU8::new(0),
        name: atomics!(AtomicU8::new(0); MAX_GROUP_NAME),
    }
}

#[test]
fn a_charge_lands_once_and_comes_back_while_its_group_is_deleted() {
    check(3, &["before", "after"], |outcomes| {
        let model = Model::new();
        let objcg = model.child.objcg();
        model.groups.pin(model.child).expect("it is there");
        let other = model.clone();
        let charger = thread::spawn(move || {
            let was_live = other.groups.is_live(objcg);
            other.groups.charge(objcg, 10, Limits::Obey).expect("no limit");
            assert_eq!(other.charged(other.parent), 10);
            other.groups.unpin(objcg);
            assert!(other.groups.get(other.child).is_ok(), "the charge keeps the entry");
            other.groups.uncharge(objcg, 10);
            was_live
        });
        model.delete();
        let was_live = charger.join().expect("no panic");
        model.is_gone();
        outcomes.note(if was_live { "before" } else { "after" });
    });
}

#[test]
fn the_thread_that_removes_the_last_reference_frees_the_entry() {
    check(4, &["gone"], |outcomes| {
        let model = Model::new();
        let objcg = model.child.objcg();
        model.groups.pin(model.child).expect("it is there");
        model.groups.charge(objcg, 10, Limits::Obey).expect("no limit");
        let (deleting, freeing) = (model.clone(), model.clone());
        let threads = [
            thread::spawn(move || deleting.delete()),
            thread::spawn(move || freeing.groups.uncharge(objcg, 10)),
        ];
        model.groups.unpin(objcg);
        for thread in threads {
            thread.join().expect("no panic");
        }
        model.is_gone();
        outcomes.note("gone");
    });
}

#[test]
fn no_more_is_charged_than_the_limit_and_a_refusal_leaves_nothing() {
    let expected = ["1 granted", "2 granted"];
    check(4, &expected, |outcomes| {
        let model = Model::new();
        let limit = model.groups.block(model.parent.objcg()).limit(Limit::Max);
        limit.store(10, Ordering::Relaxed);
        let (objcg, parent) = (model.child.objcg(), model.parent.objcg());
        let work = move |model: &Model| match model.groups.charge(objcg, 6, Limits::Obey) {
            Ok(_) => {
                assert!(model.charged(model.parent) <= 10);
                model.groups.uncharge(objcg, 6);
                true
            }
            Err(AtMax(at)) => {
                assert_eq!(at, parent);
                false
            }
        };
        let other = model.clone();
        let thread = thread::spawn(move || work(&other));
        let granted = [work(&model), thread.join().expect("no panic")];
        let granted: Vec<bool> = granted.into_iter().filter(|&granted| granted).collect();
        assert!(!granted.is_empty());
        assert_eq!((model.charged(model.parent), model.charged(model.child)), (0, 0));
        assert_eq!(model.groups.own(objcg), 0);
        outcomes.note(format!("{} granted", granted.len()));
    });
}

#[test]
fn an_old_number_never_pins_the_next_group() {
    check(3, &["old", "none"], |outcomes| {
        let model = Model::new();
        let other = model.clone();
        let thread = thread::spawn(move || {
            other.delete();
            other
                .groups
                .create(&Regions::empty(), other.parent, b"d", || {})
                .expect("an entry, the old one or another")
        });
        let pinned = model.groups.pin(model.child).is_ok();
        if pinned {
            assert!(model.groups.get(model.child).is_ok());
            model.groups.unpin(model.child.objcg());
        }
        let next = thread.join();
        outcomes.note(if pinned { "old" } else { "none" });
        if let Ok(next) = next {
            assert!(next != model.child);
            let block = model.groups.block(next.objcg());
            assert_eq!(block.pins.load(Ordering::SeqCst), 0);
            assert_eq!(model.groups.id(next.objcg()), Some(next));
        }
    });
}

#[test]
fn the_root_is_never_charged() {
    check(1, &["root"], |outcomes| {
        let model = Model::new();
        let _ = model.groups.charge(model.parent.objcg(), 5, Limits::Obey);
        assert_eq!(model.groups.block(ObjcgId::ROOT).charged.load(Ordering::SeqCst), 0);
        outcomes.note("root");
    });
}

/// The protocol of `put_stock` and `group_delete`, with one CPU's stock of one group.
#[test]
fn a_stock_put_in_place_while_its_group_is_deleted_is_recalled() {
    check(3, &["by who deleted it", "by who put it there"], |outcomes| {
        let model = Model::new();
        let stock = Arc::new(AtomicU64::new(0));
        let objcg = model.child.objcg();
        let recall = move |model: &Model, stock: &AtomicU64| {
            // The CPU is stopped only if it has such a stock.
            if stock.load(Ordering::SeqCst) == 0 {
                return false;
            }
            let amount = stock.swap(0, Ordering::AcqRel);
            model.groups.uncharge(objcg, amount);
            amount > 0
        };
        model.groups.pin(model.child).expect("it is there");
        let (other, place) = (model.clone(), stock.clone());
        let charger = thread::spawn(move || {
            other.groups.charge(objcg, 10, Limits::Obey).expect("no limit");
            place.store(10, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let recalled = !other.groups.is_live(objcg) && recall(&other, &place);
            other.groups.unpin(objcg);
            recalled
        });
        model.groups.delete(model.child, || {}).expect("it is there");
        fence(Ordering::SeqCst);
        let mine = recall(&model, &stock);
        model.groups.settle(objcg);
        let its = charger.join().expect("no panic");
        assert!(mine != its, "a stock of a deleted group is left");
        model.is_gone();
        outcomes.note(if mine { "by who deleted it" } else { "by who put it there" });
    });
}

/// A live object of the child, charged with 10 bytes. The child is deleted.
fn with_object() -> (Arc<Model>, Arc<AtomicU32>) {
    let model = Model::new();
    let objcg = model.child.objcg();
    model.groups.charge(objcg, 10, Limits::Obey).expect("no limit");
    model.delete();
    let word = Arc::new(AtomicU32::new(objcg.0 << OBJCG_SHIFT | EXT_LIVE | 7));
    (model, word)
}

/// Begins a walk, visits the word, and ends the walk.
fn walk(model: &Model, word: &AtomicU32) -> bool {
    let step = model.groups.try_step().expect("no other thread walks");
    let found = step.begin() > 0;
    if found {
        step.merge(word, 10);
        assert!(model.groups.get(model.child).is_ok(), "the walk keeps the entry");
        step.end();
    }
    found
}

#[test]
fn an_object_that_is_freed_while_it_is_merged_is_uncharged_once() {
    check(4, &["child", "parent"], |outcomes| {
        let (model, word) = with_object();
        let (other, place) = (model.clone(), word.clone());
        let freeing = thread::spawn(move || {
            let seen = ObjcgId(place.fetch_and(TAG_MASK, Ordering::AcqRel) >> OBJCG_SHIFT);
            other.groups.uncharge(seen, 10);
            seen
        });
        walk(&model, &word);
        let seen = freeing.join().expect("no panic");
        assert_eq!(word.load(Ordering::SeqCst), 7);
        assert_eq!(model.groups.own(model.parent.objcg()), 0);
        model.is_gone();
        outcomes.note(if seen == model.child.objcg() { "child" } else { "parent" });
    });
}

#[test]
fn a_marked_group_keeps_its_entry_although_its_last_object_is_freed() {
    check(4, &["marked", "none"], |outcomes| {
        let model = Model::new();
        let objcg = model.child.objcg();
        model.groups.charge(objcg, 10, Limits::Obey).expect("no limit");
        model.groups.delete(model.child, || {}).expect("it is there");
        let word = Arc::new(AtomicU32::new(objcg.0 << OBJCG_SHIFT | EXT_LIVE | 7));
        let (settling, freeing, place) = (model.clone(), model.clone(), word.clone());
        let threads = [
            thread::spawn(move || settling.groups.settle(objcg)),
            thread::spawn(move || {
                let seen = ObjcgId(place.fetch_and(TAG_MASK, Ordering::AcqRel) >> OBJCG_SHIFT);
                freeing.groups.uncharge(seen, 10);
            }),
        ];
        let found = walk(&model, &word);
        for thread in threads {
            thread.join().expect("no panic");
        }
        model.is_gone();
        outcomes.note(if found { "marked" } else { "none" });
    });
}

#[test]
fn a_thread_that_pins_the_payer_of_its_object_keeps_its_group() {
    check(4, &["another", "its entry"], |outcomes| {
        let (model, word) = with_object();
        let (other, place) = (model.clone(), word.clone());
        let growing = thread::spawn(move || {
            let payer = other.groups.pin_payer(&place, 10);
            assert_eq!(payer, other.parent.objcg());
            other.groups.charge(payer, 5, Limits::Obey).expect("no limit");
            assert_eq!(place.load(Ordering::SeqCst) >> OBJCG_SHIFT, payer.0);
            other.groups.unpin_payer(payer);
        });
        walk(&model, &word);
        // The child's entry, or another one while the child's is not free.
        let next = model.groups.create(&Regions::empty(), GroupId::ROOT, b"d", || {});
        growing.join().expect("no panic");
        let parent = model.parent.objcg();
        assert_eq!((model.groups.own(parent), model.charged(model.parent)), (15, 15));
        model.groups.uncharge(parent, 15);
        let next = next.expect("room");
        assert_eq!((model.groups.own(next.objcg()), model.charged(next)), (0, 0));
        assert!(model.groups.get(model.child).is_err());
        outcomes.note(if next.objcg() == model.child.objcg() { "its entry" } else { "another" });
    });
}

/// The protocol of `put_in` and `push_freed`, with one CPU's stock of one group. Beside a stock, a
/// fast path clears the word without an atomic operation.
#[test]
fn a_word_is_cleared_beside_a_stock_only_while_no_walk_changes_it() {
    check(3, &["beside a stock", "without"], |outcomes| {
        let model = Model::new();
        let objcg = model.child.objcg();
        model.groups.charge(objcg, 20, Limits::Obey).expect("no limit");
        let word = Arc::new(AtomicU32::new(objcg.0 << OBJCG_SHIFT | EXT_LIVE | 7));
        let (other, place) = (model.clone(), word.clone());
        let freeing = thread::spawn(move || {
            other.groups.pin_again(objcg);
            fence(Ordering::SeqCst);
            let lives = other.groups.is_live(objcg);
            if lives {
                // A stock is in place until the pin is removed.
                let seen = place.load(Ordering::Relaxed);
                assert_eq!(ObjcgId(seen >> OBJCG_SHIFT), objcg);
                place.store(seen & TAG_MASK, Ordering::Relaxed);
            }
            other.groups.uncharge(objcg, 10);
            other.groups.unpin(objcg);
            let seen = if lives {
                objcg
            } else {
                ObjcgId(place.fetch_and(TAG_MASK, Ordering::AcqRel) >> OBJCG_SHIFT)
            };
            other.groups.uncharge(seen, 10);
            lives
        });
        model.delete();
        walk(&model, &word);
        let lived = freeing.join().expect("no panic");
        assert_eq!(word.load(Ordering::SeqCst), 7);
        assert_eq!(model.groups.own(model.parent.objcg()), 0);
        model.is_gone();
        outcomes.note(if lived { "beside a stock" } else { "without" });
    });
}

/// Memory that a shrinker of the model writes to, and its calls.
#[derive(Default)]
struct Freed {
    cell: Owned,
    calls: AtomicU32,
}

/// # Safety
/// `data` is a [`Freed`].
unsafe extern "C" fn free_some(data: *mut c_void, _: GroupId, bytes: usize) -> usize {
    // SAFETY: a `Freed`, by the contract.
    let freed = unsafe { &*data.cast::<Freed>() };
    freed.cell.write();
    freed.calls.fetch_add(1, Ordering::Relaxed);
    bytes
}

#[test]
fn a_removed_shrinker_is_not_called_any_more_and_may_be_used_again() {
    check(3, &["none", "first", "second"], |outcomes| {
        let model = Model::new();
        let room: &'static Shrinker = Box::leak(Box::new(Shrinker::unused()));
        let both: Arc<[Freed; 2]> = Arc::default();
        let add = |model: &'static Groups, which: usize| {
            let data = (&raw const both[which]).cast_mut().cast();
            // SAFETY: `both` lives until the shrinkers are removed, and `room` is never freed. It
            // is in the list already when the second shrinker is added, so it is not asked for
            // again.
            unsafe {
                model.add_shrinker(GroupId::ROOT, free_some, data, || Some(room)).expect("room")
            }
        };
        // SAFETY: both threads are joined before the model is dropped.
        let groups: &'static Groups = unsafe { &*(&raw const model.groups) };
        let first = add(groups, 0);
        let caller = thread::spawn(move || groups.shrink(GroupId::ROOT, 1));
        first.remove(|| {});
        both[0].cell.write();
        let second = add(groups, 1);
        let freed = caller.join().expect("no panic");
        second.remove(|| {});
        both[1].cell.write();
        let calls = [0, 1].map(|which: usize| both[which].calls.load(Ordering::Relaxed));
        assert_eq!(calls[0] + calls[1], freed as u32);
        outcomes.note(match calls {
            [0, 0] => "none",
            [_, 0] => "first",
            _ => "second",
        });
    });
}
