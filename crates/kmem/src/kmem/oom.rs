//! The report on memory that could not be had (the kernel's `alloc_tag_top_users` in `show_mem`):
//! which sites hold most. Made without allocating.

use super::Instance;
use super::fault::Line;
use crate::alloc_tag::Tally;
use crate::codetag::Caller;
use crate::os::Platform;
use crate::root::{TAG_OTHER, TAG_UNTAGGED};
use crate::sync::Ordering;
use crate::units::{ObjcgId, TagId};

/// Bytes of room for the text of the mappings, beside tables for so many sites.
pub(super) const fn room(sites: u32) -> usize {
    let bytes = sites as usize * 4;
    if bytes > 256 << 10 { 256 << 10 } else { bytes }
}

/// Sites shown.
const TOP: usize = 10;
/// One report in this time.
const INTERVAL_MS: u64 = 5000;

impl<P: Platform> Instance<P> {
    /// Says who holds the memory, now that a request for `size` bytes fails. Requests that no
    /// machine could serve are the program's mistake, not a lack of memory: nothing is said.
    #[cold]
    #[inline(never)]
    pub(super) fn out_of_memory(&'static self, size: usize, caller: Caller) {
        let budget = self.platform.budget();
        if caller.is_quiet() || size > budget.first_zone || !self.books() {
            return;
        }
        if !self.may_report() {
            return;
        }
        let Some(root) = self.root() else { return };
        self.scratch.with(root, |tally| {
            self.census_recorded(root, tally, crate::blackbox::reason::OUT_OF_MEMORY);
            let mut line = Line::new();
            line.bytes(b"kmem: out of memory: no ");
            line.decimal(size);
            line.bytes(b" bytes for ");
            let maps = self.read_mappings();
            self.describe_caller(&mut line, caller, maps);
            line.bytes(b"\nMemory allocations:\n");
            self.platform.print(line.text());
            self.print_top(tally, maps);
        });
    }

    /// Says who holds a group's memory, now that a request for it is refused.
    #[cold]
    #[inline(never)]
    pub(super) fn group_refused(&'static self, at: ObjcgId, bytes: u64, caller: Caller) {
        if caller.is_quiet() || !self.may_report() {
            return;
        }
        let Some(root) = self.root() else { return };
        self.scratch.with(root, |tally| {
            self.census_by_group(|held| {
                if self.groups.is_below(held.objcg, at) {
                    tally.add(held.tag, held.bytes, held.calls);
                }
            });
            let mut line = Line::new();
            line.bytes(b"kmem: the group ");
            self.describe_group(&mut line, at);
            line.bytes(b" is at its max: no ");
            line.decimal(bytes as usize);
            line.bytes(b" bytes for ");
            let maps = self.read_mappings();
            self.describe_caller(&mut line, caller, maps);
            line.bytes(b"\nMemory allocations of the group:\n");
            self.platform.print(line.text());
            self.print_top(tally, maps);
        });
    }

    /// Whether the last report was long enough ago; then this is one.
    fn may_report(&self) -> bool {
        let now = self.platform.now_ms().max(1);
        let last = self.last_report.load(Ordering::Relaxed);
        let long_ago = last == 0 || now.wrapping_sub(last) >= INTERVAL_MS;
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        long_ago && self.last_report.compare_exchange(last, now, done, failed).is_ok()
    }

    fn print_top(&self, tally: &Tally<'_>, maps: &[u8]) {
        let mut top = [TagId(0); TOP];
        let found = tally.largest(&mut top);
        for &tag in &top[..found] {
            self.print_row(tag, tally.get(tag), maps);
        }
    }

    /// A group's path from the root, with a slash in front of each name.
    fn describe_group(&self, line: &mut Line, at: ObjcgId) {
        let mut way = [ObjcgId::ROOT; crate::root::MAX_GROUP_DEPTH as usize];
        let up = self.groups.charged_for(at).zip(&mut way).map(|((at, _), place)| *place = at);
        let levels = up.count();
        if levels == 0 {
            line.bytes(b"/");
        }
        for &at in way[..levels].iter().rev() {
            line.bytes(b"/");
            if let Some(block) = self.groups.id(at).and_then(|id| self.groups.get(id).ok()) {
                line.printable(block.name(&mut [0; crate::root::MAX_GROUP_NAME]));
            }
        }
    }

    /// One line of a report: bytes and objects of a tag, as the kernel aligns them.
    pub(super) fn print_row(&self, tag: TagId, (bytes, calls): (u64, u64), maps: &[u8]) {
        let mut line = Line::new();
        line.size(bytes, 12);
        line.bytes(b" ");
        line.padded(calls, 8);
        line.bytes(b" ");
        self.describe_site(&mut line, tag, maps);
        line.bytes(b"\n");
        self.platform.print(line.text());
    }

    /// The text of the mappings; whoever holds the scratch table may read it.
    fn read_mappings(&self) -> &[u8] {
        let room = self.report_room.load(Ordering::Relaxed) as *mut u8;
        if room.is_null() {
            return &[];
        }
        let capacity = self.root().map_or(0, |root| root.site_capacity);
        // SAFETY: room of that size, for whoever holds the scratch table.
        let room = unsafe { core::slice::from_raw_parts_mut(room, self::room(capacity)) };
        let len = self.platform.mappings(room);
        &room[..len]
    }

    fn describe_caller(&self, line: &mut Line, caller: Caller, maps: &[u8]) {
        let word = self.word_for(caller);
        self.describe_site(line, TagId(word & crate::root::TAG_MASK), maps);
    }

    /// `file:line [module] func:name`; of a return address `module+0xoffset`, as far as the
    /// mappings tell.
    pub(super) fn describe_site(&self, line: &mut Line, tag: TagId, maps: &[u8]) {
        if let Some(names) = self.sites.names(tag) {
            line.printable(names.file);
            line.bytes(b":");
            line.decimal(names.line as usize);
            if !names.module.is_empty() {
                line.bytes(b" [");
                line.printable(names.module);
                line.bytes(b"]");
            }
            line.bytes(b" func:");
            line.printable(names.function);
            return;
        }
        let Some(&ret) = self.sites.frames(tag).first() else {
            return line.bytes(match tag.0 {
                TAG_UNTAGGED => b"kmem:0 func:not_tagged",
                TAG_OTHER => b"kmem:0 func:other_sites",
                _ => b"kmem:0 func:unknown",
            });
        };
        let (object, offset) = object_of(maps, ret as usize).unwrap_or((b"", ret as usize));
        let name = |line: &mut Line| {
            line.printable(object);
            line.bytes(if object.is_empty() { b"" } else { b"+" });
            line.hex(offset);
        };
        name(line);
        line.bytes(b":0");
        if object.windows(3).any(|part| part == b".so") {
            line.bytes(b" [");
            line.printable(object);
            line.bytes(b"]");
        }
        line.bytes(b" func:");
        name(line);
    }
}

/// Name of the object that is mapped at `address`, and the distance from where it begins.
fn object_of(maps: &[u8], address: usize) -> Option<(&[u8], usize)> {
    let hex = |text: &[u8]| {
        text.iter().try_fold(0usize, |value, &digit| {
            Some(value << 4 | (digit as char).to_digit(16)? as usize)
        })
    };
    let (mut object, mut begin): (&[u8], usize) = (b"", 0);
    for line in maps.split(|&b| b == b'\n') {
        // START-END PERMS OFFSET DEV INODE PATH
        let mut fields = line.splitn(6, |&b| b == b' ');
        let mut range = fields.next()?.split(|&b| b == b'-');
        let (Some(start), Some(end)) = (range.next().and_then(hex), range.next().and_then(hex))
        else {
            continue;
        };
        let path = fields.nth(4).unwrap_or_default().trim_ascii_start();
        if path != object {
            (object, begin) = (path, start);
        }
        if (start..end).contains(&address) {
            let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
            return Some((name, address - begin));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::object_of;

    #[test]
    fn an_address_is_named_by_its_object_and_the_distance_from_its_first_mapping() {
        let maps =
            b"555500000000-555500001000 r--p 00000000 08:01 42                 /usr/bin/a b\n\
            555500001000-555500002000 r-xp 00001000 08:01 42                 /usr/bin/a b\n\
            7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
            7f0000002000-7f0000003000 r-xp 00002000 08:01 43                 /lib/libx.so.1\n";
        assert_eq!(object_of(maps, 0x5555_0000_1234), Some((&b"a b"[..], 0x1234)));
        assert_eq!(object_of(maps, 0x7f00_0000_2010), Some((&b"libx.so.1"[..], 0x10)));
        assert_eq!(object_of(maps, 0x7f00_0000_0010), Some((&b""[..], 0x10)));
        assert_eq!(object_of(maps, 0x1000), None);
        assert_eq!(object_of(b"", 0x1000), None);
    }
}
