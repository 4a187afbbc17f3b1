//! Calls that are watched: counted since the start, checked for mistakes of accounting. Watching
//! takes the fast paths out of use: the cache of call sites stays empty, and no chunk is known
//! to `free`. What is done with objects themselves (see `object_debug`) needs the same.

use super::Instance;
use super::fault::Line;
use crate::alloc_tag::{LiveTag, Watch, count_live};
use crate::codetag::{Caller, StaticTag};
use crate::conf::Conf;
use crate::os::Platform;
use crate::root::{TAG_MASK, TAG_NONE, profiling};
use crate::sync::Ordering;
use crate::units::TagId;

/// Marks a place in the table of warnings as a tag or an address of an object, not a caller.
const OF_TAG: u64 = 1 << 62;
const OF_OBJECT: u64 = 2 << 62;

impl<P: Platform> Instance<P> {
    /// Makes the black box and starts to watch, as the configuration asks.
    pub(super) fn start_watch(&self, conf: &Conf) {
        if conf.profiling == profiling::NEVER {
            return;
        }
        let mut watch = if conf.debug { Watch::DEBUG } else { 0 };
        if self.object_debug().any() {
            watch |= Watch::GUARD;
        }
        if let Some(path) = conf.blackbox.get() {
            let cpus = if conf.cumulative { self.platform.budget().cpus } else { 0 };
            match self.blackbox.start(&self.platform, path, cpus) {
                Ok(()) if conf.cumulative => watch |= Watch::COUNT,
                Ok(()) => {}
                Err(why) => {
                    let mut line = Line::new();
                    line.bytes(b"kmem: no black box: ");
                    line.printable(path);
                    line.bytes(b": ");
                    line.bytes(why.as_bytes());
                    line.bytes(b"\n");
                    self.platform.print(line.text());
                }
            }
        } else if conf.cumulative {
            self.platform.print(b"kmem: KMEM_CONF: cumulative needs blackbox:PATH to count in\n");
        }
        self.watch.store(watch, Ordering::Relaxed);
    }

    /// Makes the static tags of an object known under its name, when it is loaded.
    pub fn register_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        module: &[u8],
    ) {
        self.ready();
        self.sites.register(start, stop, module);
    }

    /// Takes leave of the static tags of an object that is about to be unloaded. What is live of
    /// theirs keeps its tag, and a warning names the sites.
    pub fn unregister_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        module: &[u8],
    ) {
        // Every source file of the object says so; once is enough.
        if !self.sites.unregister(start) {
            return;
        }
        let Some(root) = self.root() else { return };
        let told = self.scratch.with(root, |tally| {
            self.census(|tag, bytes, calls| tally.add(tag, bytes, calls));
            let mut warned = false;
            self.sites.retire(start, stop, |tag| {
                let (bytes, calls) = tally.get(tag);
                if calls == 0 {
                    return;
                }
                if !warned {
                    let mut line = Line::new();
                    line.bytes(b"kmem: ");
                    line.printable(if module.is_empty() { b"an object" } else { module });
                    line.bytes(b" is unloaded, and memory it allocated is in use:\n");
                    self.platform.print(line.text());
                    warned = true;
                }
                self.print_row(tag, (bytes, calls), &[]);
            });
        });
        if !told {
            self.sites.retire(start, stop, |_| {});
        }
    }

    /// Bytes that are live of static tags in a range. `out` names the sites, as many as it has room for.
    pub fn live_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        out: &mut [LiveTag],
    ) -> u64 {
        out.fill(LiveTag::NONE);
        let mut sum = 0;
        self.census(|tag, bytes, calls| {
            let place = self.sites.place(tag);
            if calls == 0 || !(start..stop).contains(&place) {
                return;
            }
            sum += bytes;
            if let Some(live) = out.iter_mut().find(|live| live.tag.is_null() || live.tag == place)
            {
                live.tag = place;
                live.bytes += bytes;
                live.calls += calls;
            }
        });
        sum
    }

    /// An allocation of `bytes` was booked with this extension word.
    #[cold]
    #[inline(never)]
    pub(super) fn saw_alloc(&self, word: u32, bytes: u64, caller: Caller) {
        let tag = TagId(word & TAG_MASK);
        if self.watch().counts() {
            self.blackbox.count(self.slots.current(self.slot_hint()), tag, bytes, false);
        }
        if !self.watch().checks() {
            return;
        }
        if tag.0 == TAG_NONE {
            let place = caller.place();
            if self.warned.is_new(place as u64 | 1) {
                let mut line = Line::new();
                line.bytes(b"kmem: debug: an allocation of ");
                line.decimal(bytes as usize);
                line.bytes(b" bytes that nobody accounted");
                if place != 0 {
                    line.bytes(b", by the call that returns to ");
                    line.hex(place);
                }
                line.bytes(b"\n");
                self.platform.print(line.text());
            }
            return;
        }
        self.count_live(tag, 1);
    }

    /// An allocation of `bytes` at `at` with this extension word was freed.
    #[cold]
    #[inline(never)]
    pub(super) fn saw_free(&self, word: u32, bytes: u64, at: usize) {
        let tag = TagId(word & TAG_MASK);
        if self.watch().counts() {
            self.blackbox.count(self.slots.current(self.slot_hint()), tag, bytes, true);
        }
        if !self.watch().checks() {
            return;
        }
        if tag.0 == TAG_NONE {
            if self.warned.is_new(OF_OBJECT | bytes) {
                let mut line = Line::new();
                line.bytes(b"kmem: debug: a free without a reference: ");
                line.hex(at);
                line.bytes(b", ");
                line.decimal(bytes as usize);
                line.bytes(b" bytes\n");
                self.platform.print(line.text());
            }
            return;
        }
        self.count_live(tag, -1);
    }

    fn count_live(&self, tag: TagId, by: i64) {
        let live = self.live.load(Ordering::Relaxed) as *const u8;
        let capacity = self.root().map_or(0, |root| root.site_capacity);
        if live.is_null() || tag.0 >= capacity {
            return;
        }
        // SAFETY: memory for the counts, zero at first.
        let count = unsafe { count_live(live, tag, by) };
        if count < 0 && self.warned.is_new(OF_TAG | u64::from(tag.0)) {
            let mut line = Line::new();
            line.bytes(b"kmem: debug: more frees than allocations of ");
            self.describe_site(&mut line, tag, &[]);
            line.bytes(b"\n");
            self.platform.print(line.text());
        }
    }
}
