//! The board of a loader of modules, in the memory of a live process: this one.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::OnceLock;

use kmem_layout::board::MAPPING_NAME;
use kmem_snapshot::Process;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::Answer;

/// Bytes of the board.
const LEN: usize = 64 << 10;

/// Puts the bytes where a board is, and reads it through the kernel.
pub(crate) fn read(bytes: &[u8], answer: &mut Answer) {
    let bytes = &bytes[..bytes.len().min(LEN)];
    let board = board();
    board.write_all_at(&[0; LEN], 0).expect("a written board");
    board.write_all_at(bytes, 0).expect("a written board");
    let boards = Process::open(std::process::id()).and_then(|process| process.module_boards());
    match boards {
        Ok(boards) => boards.iter().for_each(|board| answer.say(format!("{board:?}"))),
        Err(error) => answer.fail(error),
    }
}

/// The file of the board, which is mapped until the program ends.
fn board() -> &'static File {
    static BOARD: OnceLock<File> = OnceLock::new();
    BOARD.get_or_init(|| {
        let board = memfd_create(MAPPING_NAME, MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&board, LEN as u64).expect("a file of this length");
        // SAFETY: the kernel chooses the address, so the mapping replaces no other one. No
        // reference to it is ever made: it is read and written through the kernel.
        let mapped =
            unsafe { mmap(ptr::null_mut(), LEN, ProtFlags::READ, MapFlags::SHARED, &board, 0) };
        mapped.expect("a mapping");
        File::from(board)
    })
}
