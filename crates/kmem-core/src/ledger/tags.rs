//! Static tags of objects (shared libraries, modules) that are loaded and unloaded.

use super::{Ledger, RECORD_WAIT_MS};
use crate::alloc_tag::LiveTag;
use crate::codetag::StaticTag;
use crate::os::Platform;
use crate::report::{Printable, print};

impl<P: Platform> Ledger<P> {
    /// Forgets the addresses of an object's static tags. Called before the object is unloaded. Its
    /// live allocations keep their tags, and a warning names their sites.
    pub fn unregister_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        module: &[u8],
    ) {
        let sites = &self.books.sites;
        // Every source file of the object calls this; the first call does the work.
        if !sites.unregister(start) {
            return;
        }
        // The names of the sites go with the object, so the warning cannot be made later.
        let told = self.books.with_tally_within(self.platform(), RECORD_WAIT_MS, |tally| {
            self.census().each(|held, _| tally.add(held.tag, held.bytes, held.calls));
            let mut warned = false;
            sites.retire(start, stop, |tag| {
                let (bytes, calls) = tally.get(tag);
                if calls == 0 {
                    return;
                }
                if !warned {
                    let name = Printable(if module.is_empty() { b"an object" } else { module });
                    print!(
                        self.platform(),
                        "kmem: {name} is unloaded, and memory it allocated is in use:\n"
                    );
                    warned = true;
                }
                self.reporter().print_row(tag, (bytes, calls), &[]);
            });
        });
        if !told {
            sites.retire(start, stop, |_| {});
        }
        self.reporter().make_due(&self.census());
    }

    /// Live bytes of the static tags in a range. Writes the tags that hold them into `out`, as far
    /// as there is room.
    pub fn live_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        out: &mut [LiveTag],
    ) -> u64 {
        out.fill(LiveTag::NONE);
        let mut sum = 0;
        self.census().each(|held, _| {
            let place = self.books.sites.place(held.tag);
            if held.calls == 0 || !(start..stop).contains(&place) {
                return;
            }
            sum += held.bytes;
            let is_free = |live: &&mut LiveTag| live.tag.is_null() || live.tag == place;
            if let Some(live) = out.iter_mut().find(is_free) {
                live.tag = place;
                live.bytes += held.bytes;
                live.calls += held.calls;
            }
        });
        sum
    }
}
