//! Every call of the platform fails once, first to last. No memory is lost, the process survives,
//! and after the fault every request is served.

use crate::instance::{Simulated, after_faults, assert_empty, budget, free_all, simulated};
use kmem_core::request::Caller;

const REQUESTS: usize = 200;

/// Makes requests of all kinds. Returns the number of served ones.
fn work(a: &'static Simulated) -> usize {
    let mut held = Vec::new();
    let mut served = 0;
    for i in 0..REQUESTS {
        a.platform().run_on(i as u32 / 25);
        a.platform().advance_ms(10);
        let size = [24, 100, 1000, 9000, 40_000, 300_000, 2_500_000][i % 7];
        let at = match i % 3 {
            0 => a.alloc(size, Caller::at(0x1000)),
            1 => a.alloc_zeroed(size, Caller::at(0x2000)),
            _ => a.alloc_aligned(size, 64 << (i % 8), Caller::at(0x3000)),
        };
        if at.is_null() {
            continue;
        }
        served += 1;
        if i % 3 == 1 {
            // SAFETY: live and that long.
            assert!(unsafe { std::slice::from_raw_parts(at, size) }.iter().all(|&b| b == 0));
        }
        // SAFETY: live and that long.
        unsafe { at.write_bytes(0x5A, size) };
        held.push((at, size));
        if held.len() > 20 {
            let (at, size) = held.swap_remove(i * 7 % held.len());
            // SAFETY: live; if it cannot grow it stays as it is.
            let moved = unsafe { a.realloc(at, size * 2, Caller::at(0x4000)) };
            let at = if moved.is_null() { at } else { moved };
            // SAFETY: live and that long, then given up.
            unsafe {
                assert!(std::slice::from_raw_parts(at, size).iter().all(|&b| b == 0x5A));
                a.free(at);
            }
        }
    }
    free_all(a, held.into_iter().map(|(at, _)| at));
    served
}

#[test]
fn any_one_call_may_fail() {
    let calls = {
        let a = simulated(budget(16 << 20, 2));
        a.platform().fail(u64::MAX, u64::MAX);
        assert_eq!(work(a), REQUESTS);
        a.trim();
        assert_empty(a);
        a.platform().calls()
    };
    assert!(calls > 20, "{calls} calls");
    // All calls of the start, then a part of the many that are alike.
    for fault in (1..=calls).filter(|fault| *fault <= 60 || fault.is_multiple_of(23)) {
        let a = after_faults(simulated(budget(16 << 20, 2)), fault..fault + 1, work);
        // A start that failed is final; all other faults pass.
        if !a.alloc(1, Caller::at(0x5000)).is_null() {
            assert!(work(a) >= REQUESTS - 1, "the fault at call {fault} did not pass");
            let left = a.stats().objects;
            assert_eq!(left, 1, "after a fault at call {fault}");
        }
    }
}

#[test]
fn all_calls_may_fail_for_a_while() {
    let a = simulated(budget(16 << 20, 2));
    a.platform().fail(u64::MAX, u64::MAX);
    work(a);
    after_faults(a, 1..u64::MAX, work);
    assert_eq!(work(a), REQUESTS);
    a.trim();
    assert_empty(a);
}
