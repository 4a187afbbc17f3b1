//! The tag of a call: by its address alone, or by its callers.

use core::cell::Cell;

use super::chain::{Depth, Found};
use super::probes::State;
use super::tag::Key;
use super::wrappers::Wrapper;
use super::{CallSite, Sites, Table};
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::TagId;
use kmem_layout::site::MAX_DEPTH;
use kmem_layout::word::{TAG_FIRST_SITE, TAG_NONE, TAG_OTHER, TAG_UNTAGGED};

/// Depth of the chain of a call in the allocator itself. A chain of depth 1 has no callers on other
/// stacks than the thread's own.
const CALLERS_OF_OWN: u32 = 2;

impl Sites {
    /// The tag of a call site; a new one if it has none. The tag enters the cache if `keep` is
    /// true. The tag of a chain of callers never enters it: that tag holds for this call only.
    #[cold]
    #[inline(never)]
    pub fn lookup(&self, platform: &impl Platform, caller: CallSite, keep: bool) -> TagId {
        if caller.address <= CallSite::NOBODY.address {
            return TagId(TAG_NONE);
        }
        let Some(table) = self.table() else {
            return TagId(TAG_UNTAGGED);
        };
        if let Some(tag) = caller.static_tag() {
            let found = self.find_or_add(platform, &table, Key::tag(tag));
            if keep {
                self.remember(caller.address, found);
            }
            return found;
        }
        if let Some(tag) = self.lookup_line(platform, &table, caller, keep) {
            return tag;
        }
        if caller.is_in_frame() {
            let caller = self.without_frame(platform, caller);
            return self.lookup_code(platform, &table, caller, false);
        }
        // A call of the interpreter's own asks each time whether the thread holds it.
        let keep = keep
            && !(self.interpreter().are_known() && self.interpreter().has_code(caller.address));
        self.lookup_code(platform, &table, caller, keep)
    }

    /// [`Self::lookup`] of a call by its return address, without regard to an interpreter.
    #[inline(always)]
    pub(super) fn lookup_code(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        caller: CallSite,
        keep: bool,
    ) -> TagId {
        if caller.address <= CallSite::NOBODY.address {
            return TagId(TAG_NONE);
        }
        let depth = table.root.depth.load(Ordering::Relaxed);
        let deep_tag = table.root.deep_tag.load(Ordering::Relaxed);
        let mut found = TagId(TAG_NONE);
        let mut has_callers = depth >= 2;
        if !has_callers {
            found = self.find_or_add(platform, table, Key::caller(caller.address));
            if found.0 != deep_tag {
                let wrapper = self.is_wrapper(platform, table, found, caller.address);
                has_callers = wrapper == Some(true);
                if keep && wrapper == Some(false) && self.probes.state(found) == State::Over {
                    self.remember(caller.address, found);
                }
            }
        }
        if has_callers {
            found = self.lookup_callers(platform, table, caller, depth);
        }
        if found.0 == deep_tag {
            let deep_depth = table.root.deep_depth.load(Ordering::Relaxed);
            found = self.lookup_callers(platform, table, caller, depth.max(deep_depth));
        } else if self.probes.may_have(caller.address) {
            found = self.lookup_probed(platform, table, caller, found);
        }
        found
    }

    /// The tag of a call of a site, by one caller more if the site is told apart or probed.
    #[inline(never)]
    fn lookup_probed(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        caller: CallSite,
        site: TagId,
    ) -> TagId {
        let state = self.probes.state(site);
        if state == State::Over {
            return site;
        }
        if platform.stack(caller.frame).is_none() {
            // To walk on another stack takes too long for a site with many calls.
            self.probes.end(site, caller.address);
            return site;
        }
        let (depth, longer) = depths(table);
        let (asked, known) = if state == State::Apart {
            // From here on, the longer chain is found in the place of the site's.
            self.unwinder.forget_chain(platform, caller, depth, site);
            (depth, None)
        } else {
            let frames = |tag| table.frames(tag);
            (longer, self.unwinder.find_chain(platform, caller, longer, frames))
        };
        let reach = Depth { calls: longer, asked, through: true };
        let chain = known.unwrap_or_else(|| self.walk_callers(platform, table, caller, reach));
        if chain.0 == TAG_OTHER {
            return site;
        }
        self.probes.note(site, caller.address, chain);
        chain
    }

    /// Looks at the callers of a site that holds a large part of the memory. If there are several,
    /// it is told apart by them from then on. One thread at a time may do so.
    pub fn probe(&self, tag: TagId) {
        let Some(table) = self.table() else { return };
        let Some(site) = table.sites.get(tag.0 as usize) else { return };
        let (frames, wrappers) = (table.frames(tag), site.wrappers.load(Ordering::Relaxed));
        let is_alone = frames.len() == 1;
        let is_through = frames.len() > 1 && frames.len() == wrappers as usize + 1;
        if table.root.depth.load(Ordering::Relaxed) < 2 && (is_alone || is_through) {
            self.probes.begin(tag, frames[0], is_alone);
            self.forget_key(frames[0] as usize);
        }
    }

    /// The tag of a call and its callers. Not inlined: callers of `malloc` may have little stack.
    #[inline(never)]
    fn lookup_callers(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        caller: CallSite,
        depth: u32,
    ) -> TagId {
        let known = self.unwinder.find_chain(platform, caller, depth, |tag| table.frames(tag));
        known.unwrap_or_else(|| self.walk_callers(platform, table, caller, Depth::of(depth)))
    }

    /// [`Self::lookup_callers`] for a chain that is not known.
    #[inline(always)]
    fn walk_callers(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        caller: CallSite,
        depth: Depth,
    ) -> TagId {
        self.unwinder.tag_of_chain(platform, caller, depth, |chain| {
            let before = table.count();
            let tag = self.find_or_add(platform, table, chain.key());
            if tag.0 < before { Found::Again(tag) } else { Found::New(tag) }
        })
    }

    /// Returns whether a call site is in an allocation wrapper. `None`: not known now. The site
    /// keeps the answer until an object is unloaded.
    fn is_wrapper(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        tag: TagId,
        ret: usize,
    ) -> Option<bool> {
        let site = table.sites.get(tag.0 as usize);
        let Some(site) = site.filter(|_| tag.0 >= TAG_FIRST_SITE) else { return Some(false) };
        let generation = self.unwinder.generation();
        // Acquire pairs with the release below: the answer is that of the generation.
        if generation.is_some_and(|now| site.skip.load(Ordering::Acquire) == now) {
            return Some(site.wrappers.load(Ordering::Relaxed) != 0);
        }
        let is_wrapper = self.unwinder.wrapper(platform, ret)? != Wrapper::No;
        if let Some(generation) = generation {
            site.wrappers.store(is_wrapper.into(), Ordering::Relaxed);
            site.skip.store(generation, Ordering::Release);
        }
        Some(is_wrapper)
    }

    /// The tag of a call whose callers were told apart before. `None`: they were not, or the call
    /// site is no return address. `keep`: see [`Self::lookup`].
    #[inline]
    pub fn lookup_chain(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        keep: bool,
    ) -> Option<TagId> {
        if caller.address <= CallSite::NOBODY.address || caller.static_tag().is_some() {
            return None;
        }
        if let Some(tag) = self.find_line(platform, caller, keep) {
            return Some(tag);
        }
        if self.interpreter().are_known()
            && (caller.is_in_frame() || self.interpreter().has_code(caller.address))
        {
            return None;
        }
        self.lookup_chain_of_code(platform, caller)
    }

    /// [`Self::lookup_chain`] of a call by its return address, without regard to an interpreter.
    #[inline]
    pub(super) fn lookup_chain_of_code(
        &self,
        platform: &impl Platform,
        caller: CallSite,
    ) -> Option<TagId> {
        let table = self.table()?;
        if table.root.deep_tag.load(Ordering::Relaxed) != 0 {
            // The call may be that of the site, whose depth is another one.
            return None;
        }
        let depth = table.root.depth.load(Ordering::Relaxed);
        let frames = |tag| table.frames(tag);
        let found = self.unwinder.find_chain(platform, caller, depth, frames);
        if self.probes.may_have(caller.address) && found.is_none_or(|tag| self.probes.may_be(tag)) {
            return self.find_probed(platform, &table, caller, found);
        }
        found
    }

    /// The tag of a call in the allocator itself, with the two innermost calls of the program.
    /// Works on any stack.
    #[cold]
    #[inline(never)]
    pub fn tag_of_callers(&self, platform: &impl Platform, caller: CallSite) -> TagId {
        match self.table() {
            Some(table) => self.lookup_callers(platform, &table, caller, CALLERS_OF_OWN),
            None => TagId(TAG_UNTAGGED),
        }
    }

    /// Calls `work` with the return addresses of a call, innermost first. There are none for a call
    /// site that is no return address. No call site is made. Works on any stack.
    #[cold]
    #[inline(never)]
    pub fn with_calls(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        work: impl FnOnce(&[usize]),
    ) {
        let caller = match caller.static_tag() {
            None => self.without_frame(platform, caller),
            Some(_) => CallSite::NOBODY,
        };
        // It is called where the chain is: callers of `malloc` may have little stack.
        let work = Cell::new(Some(work));
        let once = |calls: &[usize]| {
            if let Some(work) = work.take() {
                work(calls);
            }
        };
        if caller.address > CallSite::NOBODY.address {
            self.unwinder.tag_of_chain(platform, caller, Depth::of(MAX_DEPTH), |chain| {
                once(chain.calls());
                Found::New(TagId(TAG_NONE))
            });
        }
        once(&[]);
    }

    /// The return address of the innermost call of the program that led to a call in the allocator
    /// itself. `None`: it is not known. No call site is made. Works on any stack.
    #[cold]
    #[inline(never)]
    pub fn call_behind(&self, platform: &impl Platform, caller: CallSite) -> Option<usize> {
        self.table()?;
        let behind = Cell::new(None);
        let depth = Depth::of(CALLERS_OF_OWN);
        self.unwinder.tag_of_chain(platform, caller, depth, |chain| {
            behind.set(chain.behind_wrappers());
            Found::New(TagId(TAG_NONE))
        });
        behind.get()
    }

    /// The tag of a call by one caller more, if its site is probed; else `found`. Not inlined: most
    /// sites are not.
    #[inline(never)]
    fn find_probed(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        caller: CallSite,
        found: Option<TagId>,
    ) -> Option<TagId> {
        let Some(site) = found.or_else(|| self.probes.site_of(caller.address)) else {
            return found;
        };
        match self.probes.state(site) {
            State::Over => found,
            State::Apart => {
                let frames = |tag| table.frames(tag);
                self.unwinder.find_longer(platform, caller, depths(table).0, frames)
            }
            State::Active => {
                let (_, longer) = depths(table);
                let frames = |tag| table.frames(tag);
                let chain = self.unwinder.find_chain(platform, caller, longer, frames)?;
                self.probes.note(site, caller.address, chain);
                Some(chain)
            }
        }
    }
}

/// The depth of chains, and that of a site which is told apart by one caller more.
fn depths(table: &Table<'_>) -> (u32, u32) {
    let depth = table.root.depth.load(Ordering::Relaxed).max(1);
    (depth, depth.saturating_add(1))
}
