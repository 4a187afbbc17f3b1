//! A program with groups: this test program, started again.
//!
//! ```text
//! /             memory of no other group
//! /tenants      max 64 MiB
//!   /a          1000 objects, and pages
//!   /b          500 objects; deleted by `d`
//!   /reserved   a megabyte charged, not allocated
//! /batch        no memory
//!   /<name>     a name with control characters
//! ```

use std::io::{Read as _, Write as _};

use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::units::Gfp;
use kmem_core::{Caller, Group, Kmem, alloc, static_tag};
use kmem_layout::blackbox::reason;
use kmem_layout::group::Limit;

use super::program::{Program, directory};

static KMEM: Kmem = Kmem::new();

/// A name that must not reach a terminal unescaped.
pub(crate) const HOSTILE: &str = "evil\x1b[2J\n x;y";
/// Bytes of `a`'s page allocation.
pub(crate) const PAGES: u64 = 3 << 20;

/// Starts the program, and waits until it is ready.
pub(crate) fn start() -> Program {
    start_with("")
}

/// Starts the program with a configuration, and waits until it is ready.
pub(crate) fn start_with(conf: &str) -> Program {
    let dir = directory();
    let mut command = std::process::Command::new("sh");
    // The limit on address space keeps cores small.
    let limits = "ulimit -v 1000000; ulimit -c 1000000; exec \"$0\" \"$@\"";
    command.arg("-c").arg(limits).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "tenants_target", "--ignored", "--nocapture"]);
    command.current_dir(dir.path()).env("KMEM_CONF", conf);
    Program::run(command, dir)
}

// The tag of a call has the module of the call.
mod rows {
    pub(super) fn call() {
        assert!(!super::alloc!(super::KMEM, 1000).is_null());
    }
}

mod index {
    pub(super) fn call() {
        assert!(!super::alloc!(super::KMEM, 100).is_null());
    }
}

mod buffer {
    pub(super) fn call() {
        assert!(!super::alloc!(super::KMEM, super::PAGES as usize).is_null());
    }
}

/// Allocates until the group's limit refuses it. Returns the count of allocations.
fn flood(tenant: &Group<Linux>) -> u64 {
    let _scope = tenant.enter();
    (0..100_000_u64).find(|_| alloc!(KMEM, 1000).is_null()).unwrap_or(100_000)
}

/// Makes caches of one size and one of large objects. Allocates objects of the first one for each
/// group; one more of each cache is the root's.
fn caches(counts: &[(&Group<Linux>, usize)]) {
    let caller = Caller::tagged(static_tag!());
    let make = |name: &[u8], size| KMEM.cache_create(name, size, 0, None, caller).unwrap();
    let made = [make(b"open sessions", 3000), make(b"users", 3000), make(b"frames", 300 << 10)];
    // SAFETY: no cache is destroyed.
    let made = made.map(|cache| unsafe { cache.as_ref() });
    let allocate = |cache| {
        assert!(!KMEM.cache_alloc(cache, Gfp::KERNEL, caller.here()).is_null());
    };
    for (group, count) in counts {
        let _scope = group.enter();
        (0..*count).for_each(|_| allocate(made[0]));
    }
    made.into_iter().for_each(allocate);
}

/// Prints the process's own numbers of a group and of all groups below it.
fn say(id: GroupId, path: &str) {
    let stat = KMEM.group_stat(id).unwrap();
    let [low, high, max, oom] = stat.events;
    println!(
        "{} {} {} {} {} {} {} {low} {high} {max} {oom} {path:?}",
        stat.current, stat.own, stat.reserved, stat.cached, stat.peak, stat.max, stat.high
    );
    let mut below: Vec<(String, GroupId)> = KMEM
        .group_all()
        .filter(|&other| KMEM.group_parent(other) == Ok(Some(id)))
        .map(|id| {
            let mut room = [0; 255];
            (String::from_utf8(KMEM.group_name(id, &mut room).unwrap().to_vec()).unwrap(), id)
        })
        .collect();
    below.sort();
    for (name, id) in below {
        say(id, &format!("{}/{name}", path.trim_end_matches('/')));
    }
}

/// The body of the program.
pub(crate) fn target() {
    // The test harness may have begun a line of its own.
    println!();
    assert!(!alloc!(KMEM, 64).is_null());
    let root = KMEM.group(GroupId::ROOT).unwrap();
    let tenants = root.create("tenants").unwrap();
    tenants.set(Limit::Max, Some(64 << 20)).unwrap();
    let [a, b, reserved] = ["a", "b", "reserved"].map(|name| tenants.create(name).unwrap());
    let batch = root.create("batch").unwrap();
    let _hostile = batch.create(HOSTILE).unwrap();
    {
        let _scope = a.enter();
        (0..1000).for_each(|_| rows::call());
        buffer::call();
    }
    {
        let _scope = b.enter();
        (0..300).for_each(|_| rows::call());
        (0..200).for_each(|_| index::call());
    }
    (0..10).for_each(|_| index::call());
    let _reservation = reserved.try_charge(1 << 20).unwrap();
    loop {
        println!("ready");
        std::io::stdout().flush().unwrap();
        let mut command = [0];
        if std::io::stdin().read(&mut command).unwrap() == 0 {
            return;
        }
        match command[0] {
            b's' => say(GroupId::ROOT, "/"),
            b'd' => b.delete().unwrap(),
            b'f' => println!("{}", flood(&a)),
            b'r' => KMEM.write_record(reason::EXIT),
            b'm' => assert!(!alloc!(KMEM, 64).is_null()),
            b'o' => {
                let made = KMEM.group(KMEM.group_at(b"tenants/made").unwrap()).unwrap();
                println!("{}", flood(&made));
            }
            b'c' => caches(&[(&a, 40), (&b, 10)]),
            b'a' => std::process::abort(),
            _ => {}
        }
    }
}
