//! Times of allocations (`age:1`), by which a reader tells how old the bytes of a call site are.
//!
//! Each object has a word behind the objects of its slab, and each run of pages one at its first
//! page. Areas and per-CPU objects have none.

use kmem_layout::time;

use super::Ledger;
use crate::heap::Live;
use crate::os::Platform;
use crate::sync::Ordering;

impl<P: Platform> Ledger<P> {
    /// Notes that the live allocation at `at` was made now.
    pub(super) fn note_time(&self, at: usize) {
        let Some(root) = self.books.root() else { return };
        let now = time::word(self.books.age_ms(self.platform()));
        // All CPUs read the line of this word.
        if root.newest_time.load(Ordering::Relaxed) < now {
            root.newest_time.store(now, Ordering::Relaxed);
        }
        match self.heap.find(at) {
            Ok(Live::Object { class, .. }) => {
                // SAFETY: a live object of that class, in an instance with times.
                let word = unsafe { self.word_beside(at, class, root.time_vector) };
                word.store(now, Ordering::Relaxed);
            }
            Ok(Live::Pages { words, .. }) => {
                if let Some(word) = words.time {
                    word.store(now, Ordering::Relaxed);
                }
            }
            Err(_) => {}
        }
    }
}
