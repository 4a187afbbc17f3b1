//! Groups of an instance without books: `mem_profiling:never,groups:always`.
#![cfg(all(target_os = "linux", not(miri)))]

mod instance;

use std::ffi::c_char;
use std::sync::atomic::AtomicPtr;

use instance::{cost, counted, forked, free, free_all, group};
use kmem_core::memcg::GroupId;
use kmem_core::units::{Gfp, Order, PAGE_SIZE};
use kmem_core::{Caller, Kmem};
use kmem_layout::group::Limit;
use kmem_layout::word::TAG_UNTAGGED;

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static kmem_conf: AtomicPtr<c_char> =
    AtomicPtr::new(c"mem_profiling:never,groups:always".as_ptr().cast_mut());

const SIZES: [usize; 9] = [0, 1, 64, 100, 1000, 5000, 32 << 10, 40 << 10, 3 << 20];

/// Allocates from `count` objects of each size.
fn some(kmem: &'static Kmem, count: usize) -> Vec<*mut u8> {
    let sizes = SIZES.into_iter().flat_map(|size| (0..count).map(move |_| size));
    sizes.map(|size| kmem.alloc(size, Caller::NOBODY.here())).collect()
}

/// Charge of live allocations.
fn costs(kmem: &'static Kmem, all: &[*mut u8]) -> u64 {
    all.iter().map(|&at| cost(counted(kmem, at))).sum()
}

fn assert_valid(kmem: &'static Kmem) {
    kmem.drain();
    assert_eq!(kmem.validate(), Ok(()));
    assert_eq!(kmem.validate_groups(), Ok(()));
}

#[test]
fn a_group_pays_for_its_objects_until_they_are_freed_and_the_root_for_none() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    for _ in 0..3 {
        let outside = some(&A, 100);
        let inside = {
            let _scope = tenant.enter();
            some(&A, 100)
        };
        let sum = costs(&A, &inside);
        assert_eq!((tenant.stat().current, tenant.stat().own), (sum, sum));
        // SAFETY: live allocations.
        unsafe {
            assert!(inside.iter().all(|&at| A.group_of_allocation(at) == tenant.id()));
            assert!(outside.iter().all(|&at| A.group_of_allocation(at) == GroupId::ROOT));
        }
        assert_valid(&A);
        // Each uses what the other one freed.
        free_all(&A, outside);
        assert_eq!(tenant.stat().current, sum);
        free_all(&A, inside);
        assert_eq!(tenant.stat().current, 0);
        assert_valid(&A);
    }
    A.drain();
    assert_eq!(A.stats().used, 0);
}

#[test]
fn a_root_object_writes_no_word_and_a_charged_one_has_no_tag() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let outside: Vec<_> = (0..5000).map(|_| A.alloc(100, Caller::NOBODY)).collect();
    let mut tags = Vec::new();
    A.census(|tag, _, calls| tags.push((tag.0, calls)));
    assert!(tags.iter().all(|&(_, calls)| calls == 0), "{tags:?}");
    let scope = tenant.enter();
    let inside: Vec<_> = (0..300).map(|_| A.alloc(100, Caller::NOBODY.here())).collect();
    drop(scope);
    tags.clear();
    A.census(|tag, _, calls| tags.push((tag.0, calls)));
    tags.retain(|&(_, calls)| calls > 0);
    assert!(tags.iter().all(|&(tag, _)| tag == TAG_UNTAGGED), "{tags:?}");
    assert_eq!(tags.iter().map(|&(_, calls)| calls).sum::<u64>(), 300);
    free_all(&A, inside);
    free_all(&A, outside);
    assert_eq!(tenant.stat().current, 0);
    assert_valid(&A);
}

#[test]
fn a_limit_refuses_objects_and_pages() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    const MOST: u64 = 1 << 20;
    tenant.set(Limit::Max, Some(MOST)).expect("a living group");
    let _scope = tenant.enter();
    for pages in [false, true] {
        let mut held = Vec::new();
        loop {
            let caller = Caller::NOBODY.here();
            let at = match pages {
                true => A.alloc_pages(Order(0), Gfp::KERNEL, caller),
                false => A.alloc(1000, caller),
            };
            if at.is_null() {
                break;
            }
            held.push(at);
            assert!(held.len() < 2000);
        }
        assert!(held.len() > 200, "{}", held.len());
        assert!(tenant.stat().current <= MOST);
        free_all(&A, held);
        assert_eq!(tenant.stat().current, 0);
        assert_valid(&A);
    }
}

#[test]
fn each_kind_of_memory_is_charged_and_refunded() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let scope = tenant.enter();
    let caller = Caller::NOBODY.here();
    let block = A.alloc_pages(Order(3), Gfp::KERNEL, caller);
    let zeroed = A.alloc_zeroed(500, caller);
    let aligned = A.alloc_aligned(700, 256, caller);
    let area = A.vmalloc(5 * PAGE_SIZE, Gfp::KERNEL, caller);
    let percpu = A.alloc_percpu(64, 8, Gfp::KERNEL, caller);
    let unpaid = A.alloc_percpu(64, 8, Gfp::KERNEL, Caller::NOBODY);
    let mut many = [core::ptr::null_mut(); 70];
    assert_eq!(A.alloc_pages_bulk(Gfp::KERNEL, &mut many, caller), many.len());
    assert!(![block, zeroed, aligned, area].contains(&core::ptr::null_mut()));
    drop(scope);
    let pages = (8 + 5 + 70) * PAGE_SIZE as u64;
    assert!(tenant.stat().current > pages && tenant.stat().current < pages + (64 << 10));
    assert_valid(&A);
    // SAFETY: live memory, which is used no longer.
    unsafe {
        A.free_pages(block, Order(3));
        A.vfree(area);
        A.free_percpu(percpu);
        A.free_percpu(unpaid);
    }
    [zeroed, aligned].into_iter().for_each(|at| free(&A, at));
    free_all(&A, many.to_vec());
    assert_eq!(tenant.stat().current, 0);
    assert_valid(&A);
}

#[test]
fn a_new_length_is_paid_for_by_the_group_of_the_object() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let mut inside = {
        let _scope = tenant.enter();
        A.alloc(10, Caller::NOBODY.here())
    };
    let mut outside = A.alloc(10, Caller::NOBODY);
    for size in [12, 300, 290, 70_000, 3 << 20, 1 << 20, 100] {
        let _scope = tenant.enter();
        // SAFETY: live allocations, of which only the new addresses are used from here on.
        unsafe {
            inside = A.realloc(inside, size, Caller::NOBODY);
            outside = A.realloc(outside, size, Caller::NOBODY);
        }
        assert_eq!(tenant.stat().current, costs(&A, &[inside]), "{size}");
    }
    // SAFETY: live allocations.
    unsafe { A.rebill(outside, Caller::NOBODY.charged_to(tenant.id().objcg())) };
    assert_eq!(tenant.stat().current, costs(&A, &[inside, outside]));
    // SAFETY: live allocations.
    unsafe { A.rebill(inside, Caller::NOBODY) };
    assert_eq!(tenant.stat().current, costs(&A, &[outside]));
    assert_valid(&A);
    free_all(&A, vec![inside, outside]);
    assert_eq!(tenant.stat().current, 0);
    assert_valid(&A);
}

#[test]
fn objects_of_deleted_groups_go_to_the_parent_and_ids_are_used_again() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let mut held = Vec::new();
    // More groups than there are ids, each of which leaves an object.
    for i in 0..20_000 {
        let child = parent.create(&format!("{i}")).expect("an id");
        let _scope = child.enter();
        held.push(A.alloc(48, Caller::NOBODY.here()));
        child.delete().expect("no children");
    }
    assert_eq!(parent.stat().current, costs(&A, &held));
    assert_valid(&A);
    free_all(&A, held);
    assert_eq!(parent.stat().current, 0);
    assert_valid(&A);
}

#[test]
fn a_forked_child_charges_what_it_inherits() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let outside = some(&A, 10);
    let inside = {
        let _scope = tenant.enter();
        some(&A, 10)
    };
    let sum = costs(&A, &inside);
    let work = || {
        let inherited = tenant.stat().current == sum;
        inside.iter().chain(&outside).for_each(|&at| free(&A, at));
        inherited && tenant.stat().current == 0 && A.validate_groups() == Ok(())
    };
    // SAFETY: no other thread of this process uses the instance; nothing panics.
    assert!(unsafe { forked(work) });
    assert_eq!(tenant.stat().current, sum);
    free_all(&A, inside);
    free_all(&A, outside);
    assert_eq!(tenant.stat().current, 0);
    assert_valid(&A);
}

#[test]
fn threads_free_what_other_groups_allocated() {
    static A: Kmem = Kmem::new();
    let (left, right) = (group(&A, "left"), group(&A, "right"));
    std::thread::scope(|scope| {
        for (i, tenant) in [&left, &right, &left].into_iter().enumerate() {
            scope.spawn(move || {
                let mut all = Vec::new();
                for round in 0..20_000 {
                    let entered = (round % 3 != i).then(|| tenant.enter());
                    all.push(A.alloc(16 + round % 500, Caller::NOBODY.here()));
                    drop(entered);
                    if round % 100 == 99 {
                        all.drain(..).for_each(|at| free(&A, at));
                    }
                }
                free_all(&A, all);
            });
        }
    });
    assert_eq!((left.stat().current, right.stat().current), (0, 0));
    assert_valid(&A);
    A.drain();
    assert_eq!(A.stats().used, 0);
}
