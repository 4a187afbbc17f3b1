//! Areas and stacks as a program uses them.

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use corosensei::{Coroutine, CoroutineResult};
use kmem_areas::{Area, Stack, Stacks};
use kmem_core::memcg::GroupId;
use kmem_core::{Kmem, Limit};

const PAGE: usize = 4096;

/// Runs a test of this file in a process of its own. Returns the signal that ended it.
fn signal_of(test: &str) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--ignored"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("this program starts").signal()
}

#[test]
fn an_area_is_zeroed_and_all_of_it_can_be_written() {
    for bytes in [0, 1, PAGE, PAGE + 1, 10 * PAGE, 3 << 20] {
        // The second may be the first one again, with old contents.
        for _ in 0..2 {
            let mut area = Area::new(bytes).expect("memory");
            assert_eq!(area.len(), bytes.max(1).next_multiple_of(PAGE));
            assert!(area.iter().all(|&byte| byte == 0));
            area.fill(7);
        }
    }
}

#[test]
fn more_than_there_can_be_is_refused() {
    assert!(Area::new(usize::MAX).is_none());
    assert!(Stack::new(usize::MAX).is_none());
    assert!(Stack::new(usize::MAX - PAGE).is_none());
}

#[test]
#[ignore = "ends the process; another test runs it"]
fn writes_behind_an_area() {
    let mut area = Area::new(3 * PAGE).expect("memory");
    // SAFETY: none. The write is to end this process.
    unsafe { area.as_mut_ptr().add(3 * PAGE).write_volatile(1) };
}

#[test]
#[ignore = "ends the process; another test runs it"]
fn writes_below_a_stack() {
    let stack = Stack::new(3 * PAGE).expect("memory");
    // SAFETY: none. The write is to end this process.
    unsafe { (stack.lowest() as *mut u8).sub(1).write_volatile(1) };
}

#[test]
#[ignore = "ends the process; another test runs it"]
fn recurses_without_end_in_a_coroutine() {
    #[expect(unconditional_recursion, reason = "the stack is to overflow")]
    fn deeper(frame: &[u8; 100]) -> u8 {
        let mine = black_box([frame[0]; 100]);
        deeper(&mine) + black_box(mine[1])
    }
    let stack = Stack::new(16 * PAGE).expect("memory");
    let mut coroutine = Coroutine::<(), (), u8, _>::with_stack(stack, |_, ()| deeper(&[0; 100]));
    coroutine.resume(());
}

#[test]
fn one_byte_too_far_ends_the_program() {
    assert_eq!(signal_of("writes_behind_an_area"), Some(libc::SIGSEGV));
    assert_eq!(signal_of("writes_below_a_stack"), Some(libc::SIGSEGV));
    assert_eq!(signal_of("recurses_without_end_in_a_coroutine"), Some(libc::SIGSEGV));
}

#[test]
fn an_area_can_be_used_where_a_stack_was() {
    let stack = Stack::new(4 * PAGE).expect("memory");
    let was = stack.lowest() - PAGE;
    drop(stack);
    // The pages of the stack and the one below it.
    let areas: Vec<_> = (0..100).map(|_| Area::new(5 * PAGE).expect("memory")).collect();
    assert!(areas.iter().any(|area| area.as_ptr() as usize == was));
    for mut area in areas {
        area.fill(1);
    }
}

#[test]
fn a_coroutine_runs_on_a_stack_that_is_kept_for_the_next() {
    static STACKS: Stacks = Stacks::new(64 << 10, 1);
    let mut used = Vec::new();
    for _ in 0..3 {
        let stack = STACKS.take().expect("memory");
        used.push(stack.base());
        let mut sums = Coroutine::with_stack(stack, |yielder, first: u64| {
            let mut sum = first;
            loop {
                sum += yielder.suspend(sum);
                if sum > 10 {
                    return sum;
                }
            }
        });
        assert_eq!(sums.resume(1).as_yield(), Some(1));
        assert_eq!(sums.resume(4).as_yield(), Some(5));
        assert!(matches!(sums.resume(6), CoroutineResult::Return(11)));
    }
    assert!(used.iter().all(|&base| base == used[0]));
    let both = [STACKS.take(), STACKS.take()];
    assert!(both.iter().all(Option::is_some));
    drop(both);
    assert_eq!(STACKS.kept(), 1);
}

#[test]
fn a_group_pays_for_areas_of_its_instance() {
    static MINE: Kmem = Kmem::new();
    let group = MINE.group(GroupId::ROOT).expect("the root").create("areas").expect("a group");
    group.set(Limit::Max, Some(20 * PAGE as u64)).expect("a living group");
    let scope = group.enter();
    let area = Area::of(&MINE, 15 * PAGE).expect("below the limit");
    assert!(group.stat().current >= 15 * PAGE as u64);
    assert!(Stack::of(&MINE, 15 * PAGE).is_none());
    drop(area);
    let stack = Stack::of(&MINE, 15 * PAGE).expect("below the limit again");
    drop((scope, stack));
    assert_eq!(group.stat().current, 0);
}
