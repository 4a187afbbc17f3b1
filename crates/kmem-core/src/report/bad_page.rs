//! The report on a bad page.

use kmem_layout::word::TAG_MASK;

use super::Reporter;
use super::line::Line;
use crate::os::Platform;
use crate::page::{Bad, BadPage, Zone};
use crate::units::TagId;

impl<P: Platform> Reporter<'_, P> {
    /// Reports the fault of a page of a run that was claimed and stays claimed.
    #[cold]
    pub fn bad_page(&self, zone: &Zone, found: BadPage) {
        let BadPage { page, bad, run } = found;
        let word = |pfn| zone.words(pfn).map_or(0, |words| words.word());
        let (pages, order) = (run.pages.0, run.pages.0.next_power_of_two().ilog2());
        // A page inside a run may have no word: then the run's word names the last holder.
        let tags = [word(page) & TAG_MASK, word(run.start) & TAG_MASK];
        let last = tags.into_iter().find(|&tag| tag != 0).unwrap_or(0);
        let sites = &self.books.sites;
        let is_known = sites.names(TagId(last)).is_some() || sites.address(TagId(last)) != 0;
        self.with_holder(last, |holder| {
            let mut line = Line::new();
            line.add(format_args!(
                "kmem: bad page: frame {} at {:#x}, in a block of {pages} pages (order {order}), ",
                page.0,
                zone.address(page)
            ));
            match bad {
                Bad::Allocated => line.add(format_args!("is free but marked as allocated")),
                Bad::Free => line.add(format_args!("is in use but marked as free")),
                Bad::Written(offset) => {
                    line.add(format_args!("was written to while it was free, at offset {offset}"));
                }
            }
            if is_known {
                line.add(format_args!("; last allocated by {holder}"));
            }
            line.add(format_args!("; taken out of use\n"));
            self.platform.print(line.text());
        });
    }
}
