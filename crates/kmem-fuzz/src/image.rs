//! Files of a real process, with changed bytes: its core file and its black box.
//!
//! A black box has 16 MiB, most of them holes, and so has a core file. So an input is a list of
//! changes to a file that `scripts/fuzz-seeds.py` has taken:
//!
//! ```text
//! cut: u32 | place: u32, length: u8 from 0 to 8, that many bytes | place ..    little-endian
//! ```
//!
//! The file ends at `cut`, or has its whole length with a 0. A place counts the bytes of the pages
//! that are no holes, modulo their number.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::thread::LocalKey;

use crate::Answer;
use crate::files::{dead, in_memory, path_of, recorded};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Most changes that count, so that an input says with few bytes what it changes.
const MOST: usize = 64;

/// A file that is changed and restored.
type Slot = RefCell<Option<Image>>;

/// A sparse file.
struct Image {
    file: File,
    len: u64,
    /// Offset of each page in the file, and its bytes.
    pages: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// Expands an image: `length: u64 | count: u64 | offset: u64 [count] | page [count]`.
    fn open(packed: &[u8]) -> Self {
        let bytes = zstd::decode_all(packed).expect("the image is whole");
        let word = |at: usize| u64::from_le_bytes(*bytes[at * 8..].first_chunk().expect("a word"));
        let (len, count) = (word(0), word(1) as usize);
        let contents = bytes[16 + count * 8..].chunks_exact(PAGE).map(<[u8]>::to_vec);
        let pages = (0..count).map(|number| word(2 + number)).zip(contents).collect();
        let this = Self { file: in_memory(), len, pages };
        this.restore(0..count);
        this
    }

    /// Changes bytes of the file, up to the end of their page. Returns the number of the page.
    fn change(&self, place: usize, bytes: &[u8]) -> usize {
        let place = place % (self.pages.len() * PAGE);
        let (number, at) = (place / PAGE, place % PAGE);
        let len = bytes.len().min(PAGE - at);
        let offset = self.pages[number].0 + at as u64;
        self.file.write_all_at(&bytes[..len], offset).expect("a written file");
        number
    }

    /// Puts the length and these pages back.
    fn restore(&self, pages: impl IntoIterator<Item = usize>) {
        for number in pages {
            let (offset, page) = &self.pages[number];
            self.file.write_all_at(page, *offset).expect("a written file");
        }
        self.file.set_len(self.len).expect("a sparse file");
    }

    /// Changes the file, calls `read`, and restores the file.
    fn with(&self, changes: &[u8], read: impl FnOnce(&File)) {
        let (cut, mut rest) = changes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let mut changed = Vec::new();
        while let Some((&[a, b, c, d, len], tail)) = rest.split_first_chunk::<5>() {
            let place = u32::from_le_bytes([a, b, c, d]) as usize;
            let (new, tail) = tail.split_at(tail.len().min(usize::from(len % 9)));
            changed.push(self.change(place, new));
            rest = tail;
            if changed.len() == MOST {
                break;
            }
        }
        match u64::from(u32::from_le_bytes(*cut)) % self.len {
            0 => {}
            cut => {
                self.file.set_len(cut).expect("a shorter file");
                changed = (0..self.pages.len()).collect();
            }
        }
        read(&self.file);
        self.restore(changed);
    }
}

fn with(slot: &'static LocalKey<Slot>, packed: &[u8], changes: &[u8], read: impl FnOnce(&File)) {
    slot.with_borrow_mut(|image| {
        image.get_or_insert_with(|| Image::open(packed)).with(changes, read);
    });
}

/// Reads the books in a changed core file.
pub(crate) fn books(changes: &[u8], answer: &mut Answer) {
    thread_local!(static CORE: Slot = const { RefCell::new(None) });
    let packed = include_bytes!("books.image.zst");
    with(&CORE, packed, changes, |file| dead(&path_of(file), answer));
}

/// Reads a changed black box.
pub(crate) fn blackbox(changes: &[u8], answer: &mut Answer) {
    thread_local!(static BOX: Slot = const { RefCell::new(None) });
    let packed = include_bytes!("blackbox.image.zst");
    with(&BOX, packed, changes, |file| recorded(&path_of(file), answer));
}
