//! The table of groups of the fake process, sound or damaged.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use kmem_layout::group::{GroupBlock, NO_LIMIT, group_state};
use kmem_layout::root::RootBlock;

use super::{Random, put};

/// Entries that the table has room for.
pub(crate) const CAPACITY: u32 = 1 << 14;
/// Bytes of the table.
pub(super) const ROOM: usize = CAPACITY as usize * size_of::<GroupBlock>();
/// Groups in a sound table.
pub(crate) const COUNT: u32 = 48;

/// Writes an entry.
fn entry(table: usize, objcg: u32, state: u32, parent: u32, name: &[u8]) {
    let at = table + objcg as usize * size_of::<GroupBlock>();
    put(at + offset_of!(GroupBlock, state), 1 << group_state::BITS | state);
    put(at + offset_of!(GroupBlock, parent), parent);
    put(at + offset_of!(GroupBlock, max), NO_LIMIT);
    put(at + offset_of!(GroupBlock, high), NO_LIMIT);
    put(at + offset_of!(GroupBlock, charged), u64::from(objcg) << 30);
    put(at + offset_of!(GroupBlock, name_len), name.len() as u8);
    for (i, &byte) in name.iter().enumerate() {
        put(at + offset_of!(GroupBlock, name) + i, byte);
    }
}

/// Writes a table with a fault: groups in tens, `/g0/g1/..`, the second of each ten deleted.
pub(super) fn write(root: &mut RootBlock, table: usize, fault: &str) {
    let (live, dying) = (group_state::LIVE, group_state::DYING);
    entry(table, 0, live, 0, b"");
    for objcg in 1..COUNT {
        let parent = if objcg % 10 == 1 { 0 } else { objcg - 1 };
        let state = if objcg % 10 == 2 { dying } else { live };
        entry(table, objcg, state, parent, format!("g{objcg}").as_bytes());
    }
    root.group_capacity = CAPACITY;
    root.groups = table as u64;
    root.group_size = size_of::<GroupBlock>() as u32;
    root.group_count.store(COUNT, Relaxed);
    match fault {
        "group-cycle" => {
            entry(table, 4, live, 5, b"g4");
            entry(table, 7, live, 7, b"g7");
            entry(table, 12, dying, 12, b"g12");
        }
        "group-parents" => {
            entry(table, 4, live, u32::MAX, b"g4");
            entry(table, 5, live, COUNT, b"g5");
            entry(table, 12, dying, CAPACITY + 1, b"g12");
        }
        "group-deep" => (1..COUNT).for_each(|id| entry(table, id, live, id - 1, b"down")),
        "group-names" => {
            entry(table, 4, live, 0, &[0xff; 255]);
            entry(table, 5, live, 0, b"");
            entry(table, 6, live, 0, b"g1/g3");
            entry(table, 7, live, 0, "\x1b]0;x\x07\u{202e}\n".as_bytes());
            entry(table, 8, live, 0, b"g1");
            entry(table, 9, 3, 0, b"no state");
        }
        "group_count" => root.group_count.store(u32::MAX, Relaxed),
        "group_capacity" => root.group_capacity = u32::MAX,
        "group_size" => root.group_size = 8,
        "group_size-odd" => root.group_size = 385,
        "groups-outside" => root.groups = 1 << 60,
        "groups-wrap" => root.groups = u64::MAX - 100,
        "groups-read-only" => {
            // SAFETY: the table consists of whole pages, which no Rust value uses.
            let result =
                unsafe { libc::mprotect(table as *mut libc::c_void, ROOM, libc::PROT_READ) };
            assert_eq!(result, 0);
        }
        _ => {}
    }
}

/// Creates and deletes groups without end, as fast as possible.
pub(super) fn churn(table: usize) {
    std::thread::spawn(move || {
        let mut random = Random(11);
        loop {
            let objcg = 1 + random.below(u64::from(COUNT) - 1) as u32;
            let (parent, state) = (random.below(64) as u32, random.below(4) as u32);
            let name = vec![b'a' + random.below(26) as u8; random.below(256) as usize];
            entry(table, objcg, state, parent, &name);
        }
    });
}
