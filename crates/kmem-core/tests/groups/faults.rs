//! Charges of requests that fail in the middle: object, tag and charge exist together, or none of
//! them does. Each call of the platform fails once, and each limit is tried.

use crate::instance::{Simulated, agrees, assert_empty, budget, free_all, simulated, until_null};
use kmem_core::Group;
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};
use kmem_layout::group::Limit;
use kmem_layout::word::{CHARGED_METADATA, TAG_OTHER};
use std::collections::BTreeSet;

fn tenant(a: &'static Simulated) -> Option<Group<Sim<Linux>>> {
    let id = a
        .group_create(GroupId::ROOT, b"tenant")
        .or_else(|_| a.group_find(GroupId::ROOT, b"tenant"));
    a.group(id.ok()?).ok()
}

/// Makes one request of each kind, and grows and shrinks the results. Returns the granted ones.
fn some_of_everything(a: &'static Simulated, tenant: &Group<Sim<Linux>>) -> Vec<*mut u8> {
    let caller = |site: usize| Caller::at(site).charged_to(tenant.id().objcg()).quietly();
    let mut held = vec![
        a.alloc(24, caller(0x1000)),
        a.alloc(30_000, caller(0x1010)),
        a.alloc(100_000, caller(0x1020)),
        a.alloc(3_000_000, caller(0x1030)),
        a.alloc_zeroed(700_000, caller(0x1040)),
        a.alloc_aligned(5000, 4096, caller(0x1050)),
        a.alloc_aligned(200_000, 1 << 16, caller(0x1060)),
        a.kmalloc(200, Gfp::ZERO, caller(0x1070)),
        a.alloc_pages_exact(50_000, Gfp::KERNEL, caller(0x1080)),
    ];
    for (size, at) in
        [500, 5000, 400_000, 20_000, 1_000_000, 64, 6_000_000].into_iter().zip(&mut held)
    {
        if !at.is_null() {
            // SAFETY: live; if it cannot be had, the old one stays.
            let moved = unsafe { a.realloc(*at, size, caller(0x1090)) };
            *at = if moved.is_null() { *at } else { moved };
        }
    }
    let mut pages = [core::ptr::null_mut(); 20];
    let got = a.alloc_pages_bulk(Gfp::KERNEL, &mut pages, caller(0x10A0));
    assert!(pages[got..].iter().all(|page| page.is_null()));
    held.extend(&pages[..got]);
    let mut objects = [core::ptr::null_mut(); 20];
    // SAFETY: what was taken is given back.
    let back = |at: *mut u8| unsafe { a.free(at) };
    let got = a.all_or_none(&mut objects, || a.alloc(700, caller(0x10B0)), back);
    assert!(got == 20 || objects.iter().all(|at| at.is_null()));
    held.extend(objects);
    let block = a.alloc_pages(Order(2), Gfp::KERNEL, caller(0x10C0));
    if !block.is_null() {
        // SAFETY: a block of that order.
        unsafe { a.split_page(block, Order(2)) };
        held.extend((0..4).map(|page| block.wrapping_add(page * 4096)));
    }
    held.retain(|at| !at.is_null());
    held
}

#[test]
fn a_fault_at_any_call_leaves_no_charge_without_its_object() {
    let round = |fault: u64, faults: u64| {
        let a = simulated(budget(16 << 20, 2));
        a.platform().fail(fault, fault.saturating_add(faults));
        let Some(tenant) = tenant(a) else { return (0, a.platform().calls()) };
        let held = some_of_everything(a, &tenant);
        let (calls, granted) = (a.platform().calls(), held.len());
        agrees(a, &tenant, granted, "after the fault");
        a.platform().fail(u64::MAX, u64::MAX);
        free_all(a, held);
        agrees(a, &tenant, 0, "after all was freed");
        let again = some_of_everything(a, &tenant);
        assert!(again.len() >= granted, "the fault at call {fault} did not pass");
        free_all(a, again);
        agrees(a, &tenant, 0, "at the end");
        (granted, calls)
    };
    let (all, calls) = round(u64::MAX, 1);
    assert!(all > 50 && calls > 10, "{all} granted, {calls} calls");
    (1..=calls).for_each(|fault| _ = round(fault, 1));
    // All calls fail from one on, so some of the requests are refused.
    let counts: BTreeSet<_> = (1..=calls).map(|fault| round(fault, u64::MAX).0).collect();
    assert!(counts.len() > 2, "{counts:?}");
}

#[test]
fn memory_that_runs_out_leaves_no_charge_without_its_object() {
    let a = simulated(budget(16 << 20, 2));
    let tenant = tenant(a).expect("a fresh instance");
    let caller = Caller::at(0x1000).charged_to(tenant.id().objcg()).quietly();
    for size in [24, 1000, 30_000, 100_000, 3 << 20] {
        free_all(a, vec![a.alloc(1 << 20, caller)]);
        a.platform().fail(1, u64::MAX);
        let held = until_null(|| a.alloc(size, caller));
        agrees(a, &tenant, held.len(), "when there was no more");
        for _ in 0..100 {
            assert!(a.alloc(size, caller).is_null());
            assert!(a.alloc_pages(Order(9), Gfp::NOWARN, caller).is_null());
        }
        agrees(a, &tenant, held.len(), "after many refusals");
        a.platform().fail(u64::MAX, u64::MAX);
        free_all(a, held);
        agrees(a, &tenant, 0, "after all was freed");
    }
}

#[test]
fn a_limit_at_any_byte_leaves_no_charge_without_its_object() {
    let a = simulated(budget(16 << 20, 2));
    let tenant = tenant(a).expect("a fresh instance");
    let most = {
        let held = some_of_everything(a, &tenant);
        let most = tenant.stat().peak;
        free_all(a, held);
        most
    };
    let mut counts = BTreeSet::new();
    // Limits are closer together where small requests are refused.
    let limits = (0..60).map(|n| n * 700).chain((0..=60).map(|n| most * n / 60));
    for max in limits {
        tenant.set(Limit::Max, Some(max)).expect("a living group");
        a.group_reset_peak(tenant.id()).expect("a living group");
        let held = some_of_everything(a, &tenant);
        assert!(tenant.stat().current <= max && tenant.stat().peak <= max);
        counts.insert(held.len());
        agrees(a, &tenant, held.len(), "at its limit");
        free_all(a, held);
        agrees(a, &tenant, 0, "after all was freed");
    }
    assert!(counts.len() > 10, "{counts:?}");
}

/// A bulk request charges exactly what it returns, for each number that fits.
#[test]
fn bulk_requests_charge_what_they_return() {
    let a = simulated(budget(16 << 20, 2));
    let tenant = tenant(a).expect("a fresh instance");
    let caller = Caller::at(0x1000).charged_to(tenant.id().objcg()).quietly();
    let page = 4096 + CHARGED_METADATA;
    for fits in 0..=32u64 {
        tenant.set(Limit::Max, Some(fits * page + page / 2)).expect("a living group");
        let mut out = [core::ptr::null_mut(); 32];
        let got = a.alloc_pages_bulk(Gfp::NOWARN, &mut out, caller);
        assert_eq!(got as u64, fits);
        assert_eq!(tenant.stat().current, fits * page);
        agrees(a, &tenant, got, "pages");
        free_all(a, out[..got].to_vec());
        // All or none: when one is refused, the others are given back.
        let mut objects = [core::ptr::null_mut(); 32];
        let one = || a.alloc(2048, caller);
        // SAFETY: what was taken is given back.
        let got = a.all_or_none(&mut objects, one, |at| unsafe { a.free(at) });
        let cost = 2048 + CHARGED_METADATA;
        let all = 32 * cost <= fits * page + page / 2;
        assert_eq!(got, if all { 32 } else { 0 });
        agrees(a, &tenant, got, "objects");
        free_all(a, objects[..got].to_vec());
    }
    agrees(a, &tenant, 0, "at the end");
}

/// When all tags are in use, further sites share one. Their charges stay exact.
#[test]
fn a_charge_is_exact_when_the_table_of_sites_is_full() {
    let a = simulated(budget(16 << 20, 2));
    let tenant = tenant(a).expect("a fresh instance");
    let mut held = Vec::new();
    for site in 0..5000 {
        let caller = Caller::at(0x10_0000 + site * 16).charged_to(tenant.id().objcg());
        held.push(a.alloc(100, caller));
        held.push(a.alloc(50_000, caller));
        if site >= 50 {
            let large = held.pop().expect("two");
            free_all(a, vec![large]);
        }
    }
    let mut others = 0;
    a.census(|tag, _, calls| others += if tag.0 == TAG_OTHER { calls } else { 0 });
    assert!(others > 0, "the table was not full");
    assert!(held.iter().all(|at| !at.is_null()));
    agrees(a, &tenant, held.len(), "with a full table");
    free_all(a, held);
    agrees(a, &tenant, 0, "at the end");
}

#[test]
fn faults_and_limits_together_leave_nothing() {
    let a = simulated(budget(16 << 20, 2));
    let tenant = tenant(a).expect("a fresh instance");
    for round in 0..300u64 {
        a.platform().run_on(round as u32);
        a.platform().advance_ms(5);
        let max = if round % 3 == 0 { u64::MAX } else { round * 40_961 % (8 << 20) };
        tenant.set(Limit::Max, Some(max)).expect("a living group");
        a.platform().fail(1 + round % 7, 1 + round % 7 + round % 11);
        let held = some_of_everything(a, &tenant);
        agrees(a, &tenant, held.len(), "with faults");
        free_all(a, held);
        a.trim();
    }
    a.platform().fail(u64::MAX, u64::MAX);
    agrees(a, &tenant, 0, "at the end");
    tenant.delete().expect("no groups below");
    drop(tenant);
    assert_eq!(a.group_dying(), 0);
    a.trim();
    assert_empty(a);
}
