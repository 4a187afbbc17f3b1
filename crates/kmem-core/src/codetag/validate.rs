//! Recounts of the call sites of an instance at rest.

use kmem_layout::site::{Site, site_kind};
use kmem_layout::word::TAG_FIRST_SITE;

use super::{Found, Key, Sites, StaticTag, Table, cache};
use crate::sync::Ordering;
use crate::units::TagId;

/// The first thing that [`Sites::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteFault {
    /// A search for what a tag stands for does not find the tag.
    Lost {
        /// The tag.
        tag: TagId,
        /// The tag that the search finds, if any.
        found: Option<TagId>,
    },
    /// A tag is of no kind that there is.
    Kind {
        /// The tag.
        tag: TagId,
    },
    /// The cache has a tag that was never given.
    Cache {
        /// Number of the cache's slot.
        slot: usize,
        /// The tag.
        tag: TagId,
    },
}

impl Sites {
    /// Looks every site up by what it stands for, and checks the tags in the cache. For an instance
    /// at rest.
    ///
    /// # Errors
    /// The first site that is not as it must be.
    pub fn validate(&self) -> Result<(), SiteFault> {
        let Some(table) = self.table() else { return Ok(()) };
        let count = table.count();
        for tag in TAG_FIRST_SITE..count {
            table.validate(tag)?;
        }
        for (slot, word) in self.cache.iter().enumerate() {
            match cache::tag(slot, word.load(Ordering::Relaxed)) {
                Some(tag) if tag.0 >= count => return Err(SiteFault::Cache { slot, tag }),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Table<'_> {
    fn validate(&self, tag: u32) -> Result<(), SiteFault> {
        let site = &self.sites[tag as usize];
        let address = site.addr.load(Ordering::Relaxed) as usize;
        let names = self.names(tag);
        let key = match site.kind.load(Ordering::Acquire) {
            // A number that was not needed, or a static tag whose object was unloaded.
            0 => return Ok(()),
            site_kind::STATIC if address == 0 => return Ok(()),
            site_kind::CALLER => Key::caller(address),
            site_kind::STATIC => Key::tag(address as *const StaticTag),
            site_kind::CHAIN => {
                Key::chain(frames(site), site.wrappers.load(Ordering::Relaxed) as usize, 0)
            }
            site_kind::LINE => match &names {
                Some(names) => Key::line(names),
                None => return Err(SiteFault::Kind { tag: TagId(tag) }),
            },
            _ => return Err(SiteFault::Kind { tag: TagId(tag) }),
        };
        match self.search(key) {
            Found::Tag(found) if found == tag => Ok(()),
            Found::Tag(found) => {
                Err(SiteFault::Lost { tag: TagId(tag), found: Some(TagId(found)) })
            }
            _ => Err(SiteFault::Lost { tag: TagId(tag), found: None }),
        }
    }
}

/// Return addresses of a chain.
fn frames(site: &Site) -> &[usize] {
    let at = site.data.load(Ordering::Relaxed) as *const usize;
    // SAFETY: a chain's addresses are written before its kind, and never change after that.
    unsafe { core::slice::from_raw_parts(at, site.count.load(Ordering::Relaxed) as usize) }
}
