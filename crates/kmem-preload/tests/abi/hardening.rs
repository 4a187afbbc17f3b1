//! Options that check objects. Damage ends the program with one line that says what was found,
//! where, and which call allocated the object. No option disturbs a legitimate program: every
//! program of the other tests runs with all of them, too.

use std::path::PathBuf;

use crate::catalogue::program_of;
use crate::harness::{
    Environment, Outcome, Run, SIGABRT, SIGSEGV, is_not_kmem, library, must_work_in, no_cxx,
    program as ordinary, program_with_libraries,
};

/// Calls functions of kmem.h, so it is linked with the library.
const HARDENING: &str = "hardening.c";
/// Writes outside of blocks and to freed ones, in any program.
const WRITES: &str = "misuse/writes.c";
/// Frees memory of one interface by another.
const INTERFACES: &str = "misuse/interfaces.cc";

fn program(source: &str) -> PathBuf {
    if source == HARDENING {
        let library = library().expect("there is a library to test");
        program_with_libraries(HARDENING, "hardening", &[&library])
    } else {
        program_of(source)
    }
}

/// Runs a case, which is the program and its arguments.
fn run(conf: &str, (source, case): (&str, &str)) -> Outcome {
    let arguments: Vec<&str> = case.split_whitespace().collect();
    Run::new(program(source)).args(&arguments).env("KMEM_CONF", conf).run()
}

/// Asserts that the case ends with this line. In it `AT` stands for the announced address, and
/// `AT2` for any other. `CALL` is a place in the program by module and offset, `LINE` one by line.
#[track_caller]
fn found(conf: &str, case: (&str, &str), message: &str) {
    if is_not_kmem() {
        return;
    }
    let outcome = run(conf, case);
    outcome.assert_signal(SIGABRT);
    let at = outcome.stdout.lines().last().unwrap_or_default();
    let is_number = |word: &str, prefix: &str| {
        word.strip_prefix(prefix).is_some_and(|rest| {
            let rest = rest.trim_end_matches(';');
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    let fits = |found: &str, wanted: &str| match wanted {
        "AT" => found == at,
        "AT2" => is_number(found, "0x"),
        "CALL" => ["hardening+0x", "misuse-writes+0x", "misuse-interfaces+0x"]
            .iter()
            .any(|at| is_number(found, at)),
        "LINE" => found.rsplit_once("hardening.c:").is_some_and(|(_, line)| is_number(line, "")),
        _ => found == wanted,
    };
    let messages = outcome.messages();
    let right = messages.len() == 1 && {
        let (found, wanted) = (messages[0].split(' '), message.split(' '));
        found.clone().count() == wanted.clone().count()
            && found.zip(wanted).all(|(found, wanted)| fits(found, wanted))
    };
    assert!(right, "wanted: {message}\n{}", outcome.story());
}

/// The case goes unnoticed.
#[track_caller]
fn unnoticed(conf: &str, case: (&str, &str)) {
    if is_not_kmem() {
        return;
    }
    let outcome = run(conf, case);
    assert!(!outcome.ended_by(SIGABRT) && outcome.messages().is_empty(), "{}", outcome.story());
}

#[test]
fn red_zones_find_what_was_written_around_an_object() {
    found(
        "redzone:1",
        (WRITES, "behind 20 1"),
        "kmem: right redzone overwritten: AT is a 32-byte object of 20 bytes, allocated by the \
         call that returns to CALL at offset 20 found fd cc cc cc cc cc cc cc",
    );
    found(
        "redzone:1,rseq:off",
        (WRITES, "behind_calloc 100 4"),
        "kmem: right redzone overwritten: AT is a 112-byte object of 100 bytes, allocated by the \
         call that returns to CALL at offset 100 found fd fd fd fd cc cc cc cc",
    );
    found(
        "redzone:1",
        (WRITES, "behind_aligned 128 1"),
        "kmem: right redzone overwritten: AT is a 192-byte object of 128 bytes, allocated by the \
         call that returns to CALL at offset 128 found fd cc cc cc cc cc cc cc",
    );
    found(
        "redzone:1",
        (WRITES, "in_front 40 1"),
        "kmem: left redzone overwritten: AT is a 48-byte object of 40 bytes, allocated by the \
         call that returns to CALL at offset -1 found fd, which is also behind the object at AT2",
    );
    for case in ["behind 20 1", "behind_calloc 100 4", "behind_aligned 128 1", "in_front 40 1"] {
        unnoticed("", (WRITES, case));
    }
}

#[test]
fn quarantine_finds_what_was_written_after_a_free() {
    let written = "kmem: poison overwritten: AT is a free 48-byte object, last allocated by the \
                   call that returns to CALL at offset 4 found fd 6b 6b 6b 6b 6b 6b 6b";
    let after_free = (WRITES, "after_free 40 4");
    found("quarantine_kb:256", after_free, written);
    found("quarantine_kb:256,rseq:off,redzone:1", after_free, written);
    let in_child = "kmem: poison overwritten: AT is a free 48-byte object, last allocated by the \
                    call that returns to CALL at offset 4 found 78 6b 6b 6b 6b 6b 6b 6b";
    found("quarantine_kb:256", (HARDENING, "after_free_in_child"), in_child);
    unnoticed("", after_free);
}

#[test]
fn caches_find_what_is_not_theirs() {
    found(
        "check_caches:1",
        (HARDENING, "wrong_cache"),
        "kmem: invalid kmem_cache_free: AT is a 64-byte object of the cache dentry, not of the \
         cache inode; allocated by LINE func:main",
    );
    found(
        "check_caches:1",
        (HARDENING, "wrong_pool"),
        "kmem: invalid mempool_free: AT is a 64-byte object of the cache dentry, not of the \
         cache inode; allocated by LINE func:main",
    );
    unnoticed("", (HARDENING, "wrong_cache"));
}

#[test]
fn interfaces_find_what_is_not_theirs() {
    if no_cxx() {
        return;
    }
    for conf in ["check_interfaces:1", "check_interfaces:1,rseq:off", "hardened"] {
        found(
            conf,
            (INTERFACES, "new_array_delete"),
            "kmem: invalid delete: AT is a 112-byte object of new[], not of new; allocated by the \
             call that returns to CALL",
        );
    }
    unnoticed("", (INTERFACES, "new_array_delete"));
    unnoticed("hardened,check_interfaces:0", (INTERFACES, "new_array_delete"));
}

#[test]
fn guard_pages_end_a_use_behind_a_large_block() {
    if is_not_kmem() {
        return;
    }
    for (case, bytes) in [("behind", 1), ("behind", 4096), ("behind_aligned", 1)] {
        let case = format!("{case} 1048576 {bytes}");
        for conf in ["guard_pages:1", "hardened,guard_pages:1", "mem_profiling:never,guard_pages:1"]
        {
            run(conf, (WRITES, &case)).assert_signal(SIGSEGV);
        }
        unnoticed("", (WRITES, &case));
    }
}

#[test]
fn guard_names_the_block_that_an_access_was_meant_for() {
    if is_not_kmem() {
        return;
    }
    for (case, what) in [
        ("behind 64 1", "END is 0 bytes behind the 64-byte block at AT, last allocated by"),
        (
            "behind 100000 9000",
            "END is 0 bytes behind the 100000-byte block at AT, last allocated by",
        ),
        ("after_free 64 8", "PLACE is 8 bytes inside the 64-byte block at AT, freed by"),
    ] {
        let outcome = run("guard", (WRITES, case));
        outcome.assert_signal(SIGSEGV);
        let at = outcome.stdout.lines().last().unwrap_or_default();
        let start = usize::from_str_radix(at.trim_start_matches("0x"), 16).expect("an address");
        let size: usize = case.split(' ').nth(1).and_then(|size| size.parse().ok()).expect("size");
        let wanted = what
            .replace("AT", at)
            .replace("END", &format!("{:#x}", start + size))
            .replace("PLACE", &format!("{:#x}", start + 8));
        let message = format!("kmem: invalid write: {wanted} the call that returns to ");
        let messages = outcome.messages();
        let names = |line: &&str| line.starts_with(&message);
        assert_eq!(messages.iter().filter(|line| names(line)).count(), 1, "{}", outcome.story());
        assert_eq!(messages.len(), 1, "{}", outcome.story());
    }
}

#[test]
fn guard_pages_disturb_no_program() {
    let configurations: [(&str, Environment); 2] = [
        ("guard pages", &[("KMEM_CONF", "guard_pages:1")]),
        ("hardened, guard pages", &[("KMEM_CONF", "hardened,guard_pages:1")]),
    ];
    let stress = ordinary("stress.c");
    must_work_in(&configurations, || Run::new(&stress).args(&["4", "1.5", "1"]));
    if !no_cxx() {
        let containers = ordinary("containers.cc");
        must_work_in(&configurations, || Run::new(&containers));
    }
}

#[test]
fn what_still_lives_is_looked_at_when_the_only_thread_ends_the_program() {
    found(
        "redzone:1",
        (HARDENING, "behind_at_exit"),
        "kmem: right redzone overwritten: AT is a 32-byte object of 20 bytes, allocated by the \
         call that returns to CALL at offset 20 found 00 cc cc cc cc cc cc cc",
    );
    unnoticed("redzone:1", (HARDENING, "behind_at_exit_of_one_thread"));
    unnoticed("", (HARDENING, "behind_at_exit"));
}

#[test]
fn what_is_in_quarantine_is_looked_at_when_the_program_ends() {
    let written = "kmem: poison overwritten: AT is a free 48-byte object, last allocated by the \
                   call that returns to CALL at offset 4 found 78 6b 6b 6b 6b 6b 6b 6b";
    found("quarantine_kb:256", (HARDENING, "after_free_at_exit"), written);
    found("hardened", (HARDENING, "after_free_at_exit"), written);
    unnoticed("", (HARDENING, "after_free_at_exit"));
}

/// The kernel chooses 28 bits of the address of a mapping, or more. The heap begins at a multiple
/// of 4 MiB, so 10 of them are not random.
#[test]
fn base_of_the_heap_has_the_random_bits_of_the_kernel() {
    if is_not_kmem() {
        return;
    }
    // Root alone may read it. 18 is the least that a kernel can be set to, on AArch64.
    let bits = std::fs::read_to_string("/proc/sys/vm/mmap_rnd_bits").unwrap_or_default();
    let bits: u32 = bits.trim().parse().unwrap_or(18);
    let path = ordinary("base.c");
    let address = |_| {
        let outcome = Run::new(&path).run();
        usize::from_str_radix(outcome.stdout.trim(), 16).expect("an address")
    };
    let all: Vec<usize> = (0..64).map(address).collect();
    let varied = all.iter().fold(0, |varied, at| varied | (at ^ all[0]));
    // Of 64 numbers, two are equal in a bit with a chance of 2^-63.
    let random = (varied >> 22).count_ones();
    assert!(random + 10 >= bits, "{random} random bits: {varied:#x}");
}
