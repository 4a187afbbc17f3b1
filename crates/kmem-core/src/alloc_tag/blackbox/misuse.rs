//! A misuse of memory, in the header of the black box and in its last record.

use super::BlackBox;
use crate::codetag::Sites;
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::TagId;
use core::mem::offset_of;
use kmem_layout::blackbox::{BoxHeader, BoxMisuse};

impl BlackBox {
    /// Notes the return address of the call that allocated the memory that was misused.
    pub fn note_misused(&self, ret: usize) {
        self.misused.store(ret as u64, Ordering::Relaxed);
    }

    /// Notes the call that misused memory, or that found it if not `is_here`.
    #[cold]
    pub fn note_misuse(&self, platform: &impl Platform, sites: &Sites, tag: TagId, is_here: bool) {
        self.note_site(platform, sites, tag);
        let mut entry = [0; size_of::<BoxMisuse>()];
        let mut put = |at: usize, word: u32| entry[at..at + 4].copy_from_slice(&word.to_le_bytes());
        put(offset_of!(BoxMisuse, tag), tag.0);
        put(offset_of!(BoxMisuse, is_here), is_here.into());
        self.write(platform, offset_of!(BoxHeader, misuse), &entry);
    }
}
