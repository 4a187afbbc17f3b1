//! Names of call sites and groups in reports, as far as the process itself knows them.

use core::fmt;

use kmem_layout::group::{MAX_GROUP_DEPTH, MAX_GROUP_NAME};
use kmem_layout::word::{TAG_MASK, TAG_OTHER, TAG_UNTAGGED};

use super::line::{Printable, Word};
use crate::codetag::Sites;
use crate::memcg::Groups;
use crate::os::mappings::{self, Mapping};
use crate::units::{ObjcgId, TagId};

/// Displays a call site as a row of allocinfo does: `file:line [module] func:name`. A return
/// address is `module+0xoffset`, if the text of the mappings has the module.
pub struct SiteName<'a> {
    /// The call sites.
    pub sites: &'a Sites,
    /// The site.
    pub tag: TagId,
    /// Text of `/proc/self/maps`; may be empty.
    pub maps: &'a [u8],
}

impl fmt::Display for SiteName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(names) = self.sites.names(self.tag) {
            write!(f, "{}:{}", Printable(names.file), names.line)?;
            if !names.module.is_empty() {
                write!(f, " [{}]", Printable(names.module))?;
            }
            return write!(f, " func:{}", Printable(names.function));
        }
        let ret = self.sites.address(self.tag);
        if ret == 0 {
            return f.write_str(match self.tag.0 {
                TAG_UNTAGGED => "kmem:0 func:not_tagged",
                TAG_OTHER => "kmem:0 func:other_sites",
                _ => "kmem:0 func:unknown",
            });
        }
        let name = InObject::of(self.maps, ret);
        let object = name.object;
        write!(f, "{name}:0")?;
        if object.windows(3).any(|part| part == b".so") {
            write!(f, " [{}]", Printable(object))?;
        }
        write!(f, " func:{name}")
    }
}

/// Displays an address as `object+0xoffset`, or alone if it is in no object.
struct InObject<'a> {
    object: &'a [u8],
    offset: usize,
}

impl<'a> InObject<'a> {
    fn of(maps: &'a [u8], address: usize) -> Self {
        let found = object_of(maps, address).filter(|(object, _)| !object.is_empty());
        let (object, offset) = found.unwrap_or((b"", address));
        Self { object, offset }
    }
}

impl fmt::Display for InObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plus = if self.object.is_empty() { "" } else { "+" };
        write!(f, "{}{plus}{:#x}", Printable(self.object), self.offset)
    }
}

/// Displays a call by the address that it returns to, as `module+0xoffset` if the text of the
/// mappings has the module.
pub struct CallName<'a> {
    /// The return address.
    pub ret: usize,
    /// Text of `/proc/self/maps`; may be empty.
    pub maps: &'a [u8],
}

impl fmt::Display for CallName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the call that returns to {}", InObject::of(self.maps, self.ret))
    }
}

/// Displays the holder in an extension word, for a report of misuse: the call, or the static tag.
pub struct HolderName<'a> {
    /// The call sites.
    pub sites: &'a Sites,
    /// The extension word.
    pub word: u32,
    /// Text of `/proc/self/maps`; may be empty.
    pub maps: &'a [u8],
}

impl fmt::Display for HolderName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = TagId(self.word & TAG_MASK);
        match self.sites.address(tag) {
            0 => write!(f, "{}", SiteName { sites: self.sites, tag, maps: self.maps }),
            ret => write!(f, "{}", CallName { ret, maps: self.maps }),
        }
    }
}

/// Displays a call site as a row of vmallocinfo does: `function@file:line`, or the return address.
pub struct FunctionName<'a>(pub &'a Sites, pub TagId);

impl fmt::Display for FunctionName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.names(self.1) {
            Some(names) => {
                write!(f, "{}@{}:{}", Word(names.function), Word(names.file), names.line)
            }
            None => write!(f, "{:#x}", self.0.address(self.1)),
        }
    }
}

/// Displays a group's path from the root, with a slash in front of each name.
pub struct GroupPath<'a>(pub &'a Groups, pub ObjcgId);

impl fmt::Display for GroupPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut way = [ObjcgId::ROOT; MAX_GROUP_DEPTH as usize];
        let up = self.0.charged_for(self.1).zip(&mut way).map(|((at, _), place)| *place = at);
        let levels = up.count();
        if levels == 0 {
            return f.write_str("/");
        }
        for &at in way[..levels].iter().rev() {
            f.write_str("/")?;
            if let Some(block) = self.0.id(at).and_then(|id| self.0.get(id).ok()) {
                write!(f, "{}", Printable(block.name(&mut [0; MAX_GROUP_NAME])))?;
            }
        }
        Ok(())
    }
}

/// Name of the object that is mapped at `address`, and the bytes from its first mapping.
fn object_of(maps: &[u8], address: usize) -> Option<(&[u8], usize)> {
    let (mut object, mut begin): (&[u8], usize) = (b"", 0);
    for Mapping { range, path, .. } in mappings::lines(maps) {
        if path != object {
            (object, begin) = (path, range.start);
        }
        if range.contains(&address) {
            let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
            return Some((name, address - begin));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString as _;

    use super::{CallName, object_of};

    #[test]
    fn an_address_is_named_by_its_object_and_the_offset_from_its_first_mapping() {
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
        // Memory without a name has no offset that says anything.
        for (ret, name) in [
            (0x7f00_0000_2010, "the call that returns to libx.so.1+0x10"),
            (0x7f00_0000_0010, "the call that returns to 0x7f0000000010"),
            (0x1000, "the call that returns to 0x1000"),
        ] {
            assert_eq!(CallName { ret, maps }.to_string(), name);
        }
    }
}
