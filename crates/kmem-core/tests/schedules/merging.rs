//! Models of groups that are deleted while their objects live. One thread creates groups, and so
//! gives these objects to the parent. Others free, resize, split and recharge them meanwhile.

use std::sync::Arc;

use kmem_core::memcg::GroupId;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Instance};
use shuttle::thread;

use crate::explore::explore;
use crate::instance::Model;
use crate::machine::{Machine, random};

const USER: Caller = Caller::at(0x1000);
/// Half of the groups that there can be beside two. So the next one that is created takes a walk.
const DELETED: usize = 127;

/// About the number of points before a walk changes a word.
const BEGIN: u32 = 6000;

fn create(a: &'static Instance<Machine>, parent: GroupId, name: usize) -> GroupId {
    a.group_create(parent, name.to_string().as_bytes()).expect("a free id")
}

/// Takes a random step with an allocation. Returns its address, or `None` if it freed it.
fn step(a: &'static Instance<Machine>, at: usize, size: usize, to: GroupId) -> Option<usize> {
    let pointer = at as *mut u8;
    // SAFETY: a live allocation that this thread alone uses.
    unsafe {
        match random(0..4) {
            0 => {
                let caller = USER.charged_to(to.objcg()).recharging();
                Some(a.realloc(pointer, size, caller) as usize)
            }
            1 => Some(a.realloc(pointer, size + size / 4, USER) as usize),
            _ => {
                a.free(pointer);
                None
            }
        }
    }
}

#[test]
fn objects_are_uncharged_exactly_while_their_groups_are_merged() {
    const CASES: &[&str] = &["merged"];
    explore(1000, CASES, |outcomes| {
        let model = Arc::new(Model::new(outcomes, 1));
        let a = model.a;
        let [parent, other] = [b"parent", b"other."]
            .map(|name| a.group_create(GroupId::ROOT, name).expect("a free id"));
        let mut all = Vec::new();
        for name in 0..DELETED {
            let id = create(a, parent, name);
            let size = if name % 8 == 7 { 40_000 } else { 100 };
            let at = a.alloc(size, USER.charged_to(id.objcg())) as usize;
            assert_ne!(at, 0);
            a.group_delete(id).expect("it lives");
            all.push((at, size));
        }
        let pages = a.alloc_pages(Order(1), Gfp::KERNEL, USER.charged_to(parent.objcg())) as usize;
        let dying = a.group_dying();
        assert_eq!(dying, DELETED);

        let race = || {
            let walker = thread::spawn(move || {
                let ids =
                    [(); 3].map(|()| create(a, parent, DELETED + random(0..1 << 30) as usize));
                ids.into_iter().for_each(|id| a.group_delete(id).expect("it lives"));
            });
            let work = |mine: Vec<(usize, usize)>| {
                thread::spawn(move || {
                    // A walk begins with a look at all groups and stocks.
                    (0..random(0..BEGIN)).for_each(|_| thread::yield_now());
                    let step = |(at, size)| Some((step(a, at, size, other)?, size));
                    mine.into_iter().filter_map(step).collect::<Vec<_>>()
                })
            };
            let users = [all.split_off(DELETED / 2), all].map(work);
            walker.join().expect("it ends");
            users.into_iter().flat_map(|user| user.join().expect("it ends")).collect()
        };
        let mut left: Vec<_> = kmem_core::sync::race(|| (), race);
        assert_eq!(a.validate_groups(), Ok(()));
        if a.group_dying() < dying / 2 {
            outcomes.note("merged");
        }
        left.push((pages, 8192));
        for (at, _) in left {
            assert_ne!(at, 0);
            // SAFETY: a live allocation that no thread uses.
            unsafe { a.free(at as *mut u8) };
        }
        assert_eq!(a.group_dying(), 0);
        for id in [parent, other] {
            let stat = a.group_stat(id).expect("it lives");
            assert_eq!((stat.current, stat.own), (0, 0));
        }
        assert_eq!(a.validate_groups(), Ok(()));
    });
}
