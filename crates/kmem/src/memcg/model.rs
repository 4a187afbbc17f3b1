//! Models of charging and deleting.

use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::{AtMax, GroupId, Groups, Limit};
use crate::root::{GroupBlock, MAX_GROUP_NAME, group_state};
use crate::sync::model::check;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, atomics};
use crate::units::ObjcgId;

const ENTRIES: u32 = 4;

/// Of four entries: the root, a parent, a child.
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
        // SAFETY: entries and an index for the groups alone; `Drop` takes them back.
        unsafe { groups.start(Box::into_raw(blocks).cast(), Box::into_raw(index).cast(), ENTRIES) };
        let parent = groups.create(GroupId::ROOT, b"p", || {}).expect("room");
        let child = groups.create(parent, b"c", || {}).expect("room");
        Arc::new(Self { groups, parent, child })
    }

    fn charged(&self, id: GroupId) -> u64 {
        self.groups.block(id.objcg()).charged.load(Ordering::SeqCst)
    }

    fn delete(&self) {
        self.groups.delete(self.child, || {}).expect("it is there");
        self.groups.settle(self.child.objcg());
    }

    /// The child's entry was made free, once, and nothing is left of it.
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
        let blocks = self.groups.blocks.load(Ordering::Relaxed) as *mut GroupBlock;
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
        reserved_word: half(),
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
            other.groups.charge(objcg, 10, false).expect("no limit");
            assert_eq!(other.charged(other.parent), 10);
            other.groups.unpin(objcg);
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
fn whoever_is_last_lets_the_entry_go() {
    check(4, &["gone"], |outcomes| {
        let model = Model::new();
        let objcg = model.child.objcg();
        model.groups.pin(model.child).expect("it is there");
        model.groups.charge(objcg, 10, false).expect("no limit");
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
        let work = move |model: &Model| match model.groups.charge(objcg, 6, false) {
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
fn an_old_number_never_holds_the_next_group() {
    check(3, &["old", "none"], |outcomes| {
        let model = Model::new();
        let other = model.clone();
        let thread = thread::spawn(move || {
            other.delete();
            other
                .groups
                .create(other.parent, b"d", || {})
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
        let _ = model.groups.charge(model.parent.objcg(), 5, false);
        assert_eq!(model.groups.block(ObjcgId::ROOT).charged.load(Ordering::SeqCst), 0);
        outcomes.note("root");
    });
}
