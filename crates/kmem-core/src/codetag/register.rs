//! Static tags of objects that are loaded and unloaded.

use core::ops::Range;

use kmem_layout::site::site_kind;

use super::tag::Key;
use super::{Sites, StaticTag};
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::TagId;

impl Sites {
    /// Registers an object with static tags under its name: the addresses from `start` up to `stop`
    /// are its own. Does nothing if it is registered already. A tag of an object that is not
    /// registered works too, but has no module.
    pub fn register(&self, start: *const StaticTag, stop: *const StaticTag, module: &[u8]) {
        self.ranges.add(start, stop, module);
    }

    /// Gives numbers to the `tags` of the registered object that starts at `start`. Readers list
    /// them from then on, used or not (the kernel's `/proc/allocinfo` lists all tags). A tag
    /// without a file is none. At most half of all numbers are given here, so that some remain for
    /// later call sites. The other tags get theirs at their first use.
    ///
    /// # Safety
    /// The tags are loaded, and stay so until they are unregistered.
    pub unsafe fn list(
        &self,
        platform: &impl Platform,
        start: *const StaticTag,
        tags: Range<*const StaticTag>,
    ) {
        let len = (tags.end as usize).saturating_sub(tags.start as usize) / size_of::<StaticTag>();
        let Some(table) = self.table() else { return };
        // Every source file of an object calls this. One in C++ has a single tag, without a file.
        if len > 1 && !self.ranges.list(start, tags.start) {
            return;
        }
        for tag in (0..len).map(|i| tags.start.wrapping_add(i)) {
            if table.count() >= table.root.site_capacity / 2 {
                return;
            }
            // SAFETY: one of `len` tags that are loaded, by the contract.
            if !unsafe { (*tag).file.is_null() } {
                self.find_or_add(platform, &table, Key::tag(tag));
            }
        }
    }

    /// Takes a registration back. False: there is none from `start`.
    pub fn unregister(&self, start: *const StaticTag) -> bool {
        self.ranges.remove(start)
    }

    /// Forgets the addresses of an object's static tags, before the object is unloaded. Numbers and
    /// names stay. Calls `each` with the numbers.
    pub fn retire(
        &self,
        start: *const StaticTag,
        stop: *const StaticTag,
        mut each: impl FnMut(TagId),
    ) {
        let Some(table) = self.table() else { return };
        let count = table.count();
        for (number, site) in table.sites[..count as usize].iter().enumerate() {
            let addr = site.addr.load(Ordering::Relaxed);
            if site.kind.load(Ordering::Acquire) == site_kind::STATIC
                && (start as u64..stop as u64).contains(&addr)
            {
                self.gone.fetch_add(1, Ordering::Relaxed);
                each(TagId(number as u32));
                site.addr.store(0, Ordering::Release);
                table.unlink(number as u32, Key::tag(addr as *const StaticTag));
            }
        }
        self.forget();
    }
}
