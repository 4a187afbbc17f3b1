//! Boards of modules, of a real loader and damaged ones.

use std::fs::File;
use std::io::Write as _;
use std::mem::offset_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::Mutex;

use kmem_layout::board::{FailedEntry, HEADER, Header, ModuleEntry, SIZE};
use kmem_module::{Config, Loader};
use kmem_snapshot::modules::{Board, Stat};
use kmem_snapshot::{Process, ReadError};

/// Lock of all tests, which would see each other's boards.
static ONE: Mutex<()> = Mutex::new(());

fn boards() -> Result<Vec<Board>, ReadError> {
    Process::open(std::process::id()).unwrap().module_boards()
}

#[test]
fn loaders_are_read_from_outside_and_none_is_told() {
    let _one = ONE.lock();
    let error = boards().unwrap_err();
    assert!(error.is_absent() && error.to_string().contains("has no loader of modules"), "{error}");
    let (first, second) =
        (Loader::new(Config::default()).unwrap(), Loader::new(Config::default()).unwrap());
    assert!(first.init_module(b"no module", "").is_err());
    let found = boards().unwrap();
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|board| !board.torn && board.modules.is_empty()));
    let mut stats = [first.stats(), second.stats()];
    stats.sort_by_key(|stats| stats.get(Stat::FailedBecoming));
    let mut read: Vec<_> = found.into_iter().map(|board| board.stats).collect();
    read.sort_by_key(|stats| stats.get(Stat::FailedBecoming));
    assert_eq!(read, stats);
    assert_eq!(read[1].get(Stat::FailedBecoming), 1);
}

/// A mapping with the name of a board.
struct Fake {
    at: *mut libc::c_void,
    len: usize,
}

impl Fake {
    fn new(bytes: &[u8], len: usize) -> Self {
        // SAFETY: `memfd_create` reads a C string. The new descriptor has no other owner.
        let mut file =
            unsafe { File::from_raw_fd(libc::memfd_create(c"kmem-modules".as_ptr(), 0)) };
        file.set_len(len as u64).unwrap();
        file.write_all(bytes).unwrap();
        // SAFETY: without MAP_FIXED the kernel replaces no mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, len }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// A board with two modules and a duplicate.
fn good() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"kmemmods");
    for (at, value) in [
        (offset_of!(Header, version), 1),
        (offset_of!(Header, size), SIZE as u32),
        (offset_of!(Header, stat_count), 11),
        (offset_of!(Header, module_size), 256),
        (offset_of!(Header, module_capacity), 4096),
        (offset_of!(Header, failed_size), 72),
        (offset_of!(Header, failed_capacity), 4096),
        (offset_of!(Header, failed_count), 1),
        (offset_of!(Header, module_used), 3),
        (HEADER + offset_of!(ModuleEntry, state), 2),
        (HEADER + offset_of!(ModuleEntry, refs), 1 << 31 | 5),
        (HEADER + 512 + offset_of!(ModuleEntry, state), 3),
    ] {
        put(at, &value.to_le_bytes());
    }
    put(HEADER + offset_of!(ModuleEntry, name), b"zeta");
    put(HEADER + 512 + offset_of!(ModuleEntry, name), &[b'a'; 56]);
    let failed = HEADER + 4096 * 256;
    put(failed + offset_of!(FailedEntry, count), &7_u64.to_le_bytes());
    put(failed + offset_of!(FailedEntry, name), b"dup\xff\x1b");
    bytes
}

#[test]
fn what_is_on_a_board_is_shown_and_names_end_where_their_room_does() {
    let _one = ONE.lock();
    let _fake = Fake::new(&good(), SIZE);
    let [board] = &boards().unwrap()[..] else { panic!("one board") };
    let names: Vec<&str> = board.modules.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["a".repeat(56).as_str(), "zeta"]);
    assert_eq!((board.modules[1].refcount, board.modules[0].state), (5, "Unloading"));
    assert_eq!((board.stats.failed[0].1, board.stats.failed[0].2), (7, 0));
    assert!(board.stats.to_string().contains("unknown"));
}

#[test]
fn damaged_boards_are_refused_by_field_and_never_followed() {
    let _one = ONE.lock();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let word = |at: usize, value: u32| with(at, &value.to_le_bytes());
    for (bytes, what) in [
        (with(0, b"kmemroot"), "magic is"),
        (word(offset_of!(Header, version), 2), "layout version 2"),
        (word(offset_of!(Header, module_size), 8), "module_size is 8"),
        (word(offset_of!(Header, module_size), u32::MAX), "module_size is 4294967295"),
        (word(offset_of!(Header, failed_size), 76), "failed_size is 76"),
        (word(offset_of!(Header, module_capacity), u32::MAX), "module_capacity is"),
        (word(offset_of!(Header, module_used), 4097), "module_used is 4097, above 4096"),
        (word(offset_of!(Header, failed_count), u32::MAX), "failed_count is"),
        (word(offset_of!(Header, stat_count), 17), "stat_count is 17"),
        (word(offset_of!(Header, module_size), 4096), "its tables take"),
    ] {
        let _fake = Fake::new(&bytes, SIZE);
        let error = boards().unwrap_err().to_string();
        assert!(
            error.contains("board of modules at 0x") && error.contains(what),
            "{error}, and not {what}"
        );
    }
    let _fake = Fake::new(&good()[..4096], 4096);
    assert!(boards().unwrap_err().to_string().contains("its mapping has 4096"));
}

#[test]
fn a_board_left_half_changed_is_shown_and_said_to_be() {
    let _one = ONE.lock();
    let mut bytes = good();
    bytes[offset_of!(Header, seq)] = 1;
    let _fake = Fake::new(&bytes, SIZE);
    let [board] = &boards().unwrap()[..] else { panic!("one board") };
    assert!(board.torn && board.modules.len() == 2);
}
