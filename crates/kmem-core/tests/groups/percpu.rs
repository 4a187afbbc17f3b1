//! Groups that pay for per-CPU objects, from stocks on CPUs: exact charges, limits, deletion, and
//! forked children.

use crate::instance::{agrees, cost, fixed, forked, free_all, group, pin, until_null};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::units::Gfp;
use kmem_core::{Caller, Group, Kmem};
use kmem_layout::group::Limit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Bytes of each object, those of a size class.
const SIZE: usize = 48;
/// Charge of an object.
const COST: u64 = cost(SIZE as u64);

/// Allocates an object that a group pays for.
fn alloc(kmem: &'static Kmem, payer: &Group<Linux>) -> *mut u8 {
    let caller = Caller::at(0x1000).charged_to(payer.id().objcg());
    kmem.alloc_percpu(SIZE, 8, Gfp::NOWARN, caller)
}

fn free(kmem: &'static Kmem, handle: *mut u8) {
    // SAFETY: live, and given up.
    unsafe { kmem.free_percpu(handle) };
}

/// Moves the calling thread to a CPU.
fn move_to(cpu: usize) {
    // SAFETY: takes nothing.
    pin(unsafe { libc::gettid() }, cpu);
}

#[test]
fn a_stock_pays_in_an_instance_without_objects_of_the_heap() {
    static A: Kmem = Kmem::new();
    move_to(0);
    let tenant = group(&A, "tenant");
    let first = alloc(&A, &tenant);
    let charged = tenant.stat();
    assert!(charged.cached > 100 * COST, "{charged:?}");
    let held: Vec<_> = (1..=50).map(|_| alloc(&A, &tenant)).collect();
    let now = tenant.stat();
    assert_eq!((now.current, now.cached), (51 * COST, charged.cached - 50 * COST));
    agrees(&A, &tenant, 51, "while they live");
    held.into_iter().for_each(|at| free(&A, at));
    assert_eq!(tenant.stat(), charged);
    free(&A, first);
    agrees(&A, &tenant, 0, "after the frees");
    assert_eq!(tenant.stat().cached, charged.cached + COST);
}

#[test]
fn groups_that_alternate_each_pay_for_their_own_objects() {
    static A: Kmem = Kmem::new();
    let tenants = ["a", "b", "c"].map(|name| group(&A, name));
    let mut held: Vec<Vec<*mut u8>> = vec![Vec::new(); 3];
    for i in 0..20_000usize {
        let which = (i / 3 + i * i / 7) % 3;
        held[which].push(alloc(&A, &tenants[which]));
        if i % 5 == 4 {
            let other = &mut held[(which + i / 5) % 3];
            let count = other.len();
            if count > 0 {
                free(&A, other.swap_remove(i * 31 % count));
            }
        }
        if i % 1000 == 0 {
            for (tenant, held) in tenants.iter().zip(&held) {
                agrees(&A, tenant, held.len(), "on the way");
            }
        }
    }
    for (tenant, held) in tenants.iter().zip(&mut held) {
        agrees(&A, tenant, held.len(), "before the frees");
        held.drain(..).for_each(|at| free(&A, at));
        agrees(&A, tenant, 0, "after the frees");
    }
    assert_eq!((A.validate(), A.percpu_stats().objects), (Ok(()), 0));
}

#[test]
fn heap_objects_and_per_cpu_objects_of_a_class_are_paid_for_from_one_stock() {
    static A: Kmem = Kmem::new();
    move_to(0);
    let tenant = group(&A, "tenant");
    let who = Caller::at(0x1000).charged_to(tenant.id().objcg());
    let object = A.alloc(SIZE, who);
    let before = tenant.stat().cached;
    let handle = alloc(&A, &tenant);
    let now = tenant.stat();
    assert_eq!((now.cached, now.current), (before - COST, 2 * COST));
    free_all(&A, [object]);
    free(&A, handle);
    agrees(&A, &tenant, 0, "after the frees");
    assert_eq!(tenant.stat().cached, before + COST);
}

#[test]
fn a_limit_takes_back_stocks_of_other_cpus_before_it_refuses() {
    static A: Kmem = Kmem::new();
    const ROOM: usize = 1000;
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(ROOM as u64 * COST)).expect("a living group");
    // The stock of the other CPU has the charge of these.
    move_to(1);
    let held: Vec<_> = (0..100).map(|_| alloc(&A, &tenant)).collect();
    held.into_iter().for_each(|at| free(&A, at));
    assert!(tenant.stat().cached >= 100 * COST);
    move_to(0);
    let held = until_null(|| alloc(&A, &tenant));
    assert_eq!(held.len(), ROOM);
    assert_eq!(tenant.stat().cached, 0);
    agrees(&A, &tenant, ROOM, "at the limit");
    held.into_iter().for_each(|at| free(&A, at));
    agrees(&A, &tenant, 0, "after the frees");
}

#[test]
fn live_objects_of_a_deleted_group_are_its_parents_and_no_stock_of_it_is_left() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let child = parent.create("child").expect("a group");
    let held: Vec<_> = (0..500).map(|_| alloc(&A, &child)).collect();
    assert!(child.stat().cached > 0);
    child.delete().expect("no groups below");
    assert_eq!((parent.stat().current, parent.stat().cached), (500 * COST, 0));
    // The parent pays for new objects in the name of the deleted group.
    let more = alloc(&A, &child);
    assert_eq!((parent.stat().current, parent.stat().own), (501 * COST, COST));
    assert_eq!((A.group_dying(), A.validate_groups()), (1, Ok(())));
    drop(child);
    held.into_iter().for_each(|at| free(&A, at));
    assert_eq!((A.group_dying(), parent.stat().current), (0, COST));
    free(&A, more);
    agrees(&A, &parent, 0, "after the frees");
}

#[test]
fn a_forked_child_has_exact_charges_of_per_cpu_objects() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let held: Vec<_> = (0..300).map(|_| alloc(&A, &tenant)).collect();
    let stat = tenant.stat();
    let work = || {
        let more = alloc(&A, &tenant);
        let mut right = tenant.stat().current == 301 * COST && A.validate_groups().is_ok();
        held.iter().for_each(|&at| free(&A, at));
        free(&A, more);
        right &= tenant.stat().current == 0 && A.validate_groups().is_ok();
        right
    };
    // SAFETY: the child uses this instance only.
    assert!(unsafe { forked(work) }, "what the child found");
    assert_eq!(tenant.stat(), stat);
    held.into_iter().for_each(|at| free(&A, at));
    agrees(&A, &tenant, 0, "after the frees");
}

/// Threads pass objects on to each other, while their groups are deleted and the objects become
/// those of the parent.
#[test]
fn books_are_exact_after_threads_free_each_others_objects_of_groups_that_come_and_go() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let current = Mutex::new(parent.create("0").expect("a group"));
    let (passed, done) = (Mutex::new(Vec::<usize>::new()), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for i in 0..60_000usize {
                        if i % 50 == 0 {
                            thread::yield_now();
                        }
                        let tenant = current.lock().expect("no panic").clone();
                        let at = alloc(&A, &tenant);
                        assert!(!at.is_null());
                        let mut passed = passed.lock().expect("no panic");
                        passed.push(at as usize);
                        if passed.len() > 200 {
                            let other = passed.swap_remove(i * 31 % 200);
                            drop(passed);
                            free(&A, other as *mut u8);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            for name in 1.. {
                let next = parent.create(&name.to_string()).expect("a free id");
                let old = std::mem::replace(&mut *current.lock().expect("no panic"), next);
                old.delete().expect("no groups below");
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
    });
    let held = passed.into_inner().expect("no panic");
    assert_eq!(parent.stat().current, held.len() as u64 * COST);
    assert_eq!(A.validate_groups(), Ok(()));
    held.into_iter().for_each(|at| free(&A, at as *mut u8));
    drop(current);
    assert_eq!((parent.stat().current, A.group_dying()), (0, 0));
    assert_eq!((A.validate_groups(), A.validate()), (Ok(()), Ok(())));
}

#[test]
#[should_panic(expected = "gave up")]
fn a_handle_that_a_group_pays_for_is_freed_once() {
    let a = fixed(256 << 20);
    let id = a.group_create(GroupId::ROOT, b"tenant").expect("a group");
    let caller = Caller::at(7).charged_to(id.objcg());
    let handle = a.alloc_percpu(8, 8, Gfp::KERNEL, caller);
    assert!(!handle.is_null());
    // SAFETY: none for the second; the allocator must detect it.
    unsafe {
        a.free_percpu(handle);
        a.free_percpu(handle);
    }
}
