//! The site table of the fake process: callers, static tags and chains.

use std::hint::black_box;
use std::mem::offset_of;

use kmem_layout::root::RootBlock;
use kmem_layout::site::{MAX_DEPTH, Site, Text, site_kind};
use kmem_layout::word::TAG_FIRST_SITE;

use super::{SITES, put};

/// Callers at addresses where nothing is mapped: `0x1000 + tag`.
pub(crate) const NOWHERE: std::ops::Range<u32> = TAG_FIRST_SITE..28;
/// A caller in [`app_other`].
pub(crate) const CALLER: u32 = 28;
/// A caller in [`app_inner`], where some of the chains begin.
pub(crate) const CALLER_INNER: u32 = 29;
/// A static tag of the main program.
pub(crate) const STATIC: u32 = 30;
/// A static tag of a module.
pub(crate) const STATIC_MODULE: u32 = 31;
/// A static tag with names that must not reach a terminal.
pub(crate) const STATIC_HOSTILE: u32 = 32;
/// A static tag with the text of [`STATIC`], at another address.
pub(crate) const STATIC_AGAIN: u32 = 33;
/// A chain of inner, middle, outer.
pub(crate) const CHAIN: u32 = 34;
/// A chain of inner, other, outer.
pub(crate) const CHAIN_OTHER: u32 = 35;
/// A chain of library code, middle, outer.
pub(crate) const CHAIN_LIBRARY: u32 = 36;
/// A chain of library code alone.
pub(crate) const CHAIN_LIBRARY_ALONE: u32 = 37;
/// A chain of two addresses where nothing is mapped.
pub(crate) const CHAIN_NOWHERE: u32 = 38;
/// A chain of the largest depth: inner, and then outer only.
pub(crate) const CHAIN_DEEP: u32 = 39;

const TEXTS: usize = 4096;

/// Bytes of room for the texts.
pub(super) const TEXTS_ROOM: usize = 2 * TEXTS;

#[inline(never)]
fn app_inner(n: u32) -> u32 {
    black_box(n) + 1
}

#[inline(never)]
fn app_middle(n: u32) -> u32 {
    black_box(app_inner(n)) * 3
}

#[inline(never)]
fn app_other(n: u32) -> u32 {
    black_box(app_inner(n)) ^ 5
}

#[inline(never)]
fn app_outer(n: u32) -> u32 {
    black_box(app_middle(n)) - black_box(app_other(n))
}

/// A "return address" within a function.
fn within(function: usize) -> u64 {
    function as u64 + 1
}

fn inner() -> u64 {
    within(app_inner as fn(u32) -> u32 as usize)
}

/// The site table and its texts while they are filled.
struct Writer {
    sites: usize,
    /// First free address in the texts.
    next: usize,
}

impl Writer {
    /// Address of a field in the entry of a tag.
    fn field(&self, tag: u32, offset: usize) -> usize {
        self.sites + tag as usize * size_of::<Site>() + offset
    }

    fn site(&self, tag: u32, addr: u64, kind: u32, count: usize, data: usize) {
        put(self.field(tag, offset_of!(Site, addr)), addr);
        put(self.field(tag, offset_of!(Site, kind)), kind);
        put(self.field(tag, offset_of!(Site, count)), count as u32);
        put(self.field(tag, offset_of!(Site, data)), data as u64);
    }

    fn text(&mut self, tag: u32, module: &[u8], file: &[u8], line: u32, function: &[u8]) {
        let at = self.next;
        let (module_len, file_len) = (module.len() as u16, file.len() as u16);
        let function_len = function.len() as u16;
        put(at, Text { line, module_len, file_len, function_len, reserved: [0; 3] });
        self.next = at + size_of::<Text>();
        for &byte in module.iter().chain(file).chain(function) {
            put(self.next, byte);
            self.next += 1;
        }
        self.next = self.next.next_multiple_of(8);
        // An address of zero means that the module was unloaded. Its text stays.
        let addr = if tag == STATIC_MODULE { 0 } else { at as u64 };
        self.site(tag, addr, site_kind::STATIC, 0, at);
    }

    fn chain(&mut self, tag: u32, addresses: &[u64]) {
        let at = self.next;
        for &address in addresses {
            put(self.next, address);
            self.next += 8;
        }
        self.site(tag, addresses[0], site_kind::CHAIN, addresses.len(), at);
    }
}

/// Fills the table and its texts, in the order of the tags above, with a fault.
pub(super) fn write(root: &mut RootBlock, texts: usize, fault: &str) {
    let mut to = Writer { sites: root.sites as usize, next: texts };
    let middle = within(app_middle as fn(u32) -> u32 as usize);
    let other = within(app_other as fn(u32) -> u32 as usize);
    let outer = within(app_outer as fn(u32) -> u32 as usize);
    let library = within(Vec::<[u16; 3]>::reserve as fn(&mut Vec<[u16; 3]>, usize) as usize);
    for tag in NOWHERE {
        to.site(tag, 0x1000 + u64::from(tag), site_kind::CALLER, 0, 0);
    }
    to.site(CALLER, other, site_kind::CALLER, 0, 0);
    to.site(CALLER_INNER, inner(), site_kind::CALLER, 0, 0);
    to.text(STATIC, b"", b"src/main.c", 7, b"make");
    to.text(STATIC_MODULE, b"libplug.so", b"plug.c", 12, b"plug_open");
    to.text(STATIC_HOSTILE, b"", b"evil\x1b[2J ;a\n.c", 1, b"f\xff(\r)");
    to.text(STATIC_AGAIN, b"", b"src/main.c", 7, b"make");
    to.chain(CHAIN, &[inner(), middle, outer]);
    to.chain(CHAIN_OTHER, &[inner(), other, outer]);
    to.chain(CHAIN_LIBRARY, &[library, middle, outer]);
    to.chain(CHAIN_LIBRARY_ALONE, &[library]);
    to.chain(CHAIN_NOWHERE, &[0x2001, 0x3001]);
    let mut deep = [outer; MAX_DEPTH as usize];
    deep[0] = inner();
    to.chain(CHAIN_DEEP, &deep);
    assert!(to.next <= texts + TEXTS);
    root.texts = texts as u64;
    *root.texts_len.get_mut() = TEXTS as u64;
    break_it(fault, root, texts, &to);
}

/// Builds the fault into the table, the texts, or the root block.
fn break_it(fault: &str, root: &mut RootBlock, texts: usize, to: &Writer) {
    let data = |tag| to.field(tag, offset_of!(Site, data));
    let count = |tag| to.field(tag, offset_of!(Site, count));
    match fault {
        // Lengths of names, or texts, that reach beyond the area.
        "text-length" => put(texts + offset_of!(Text, function_len), u16::MAX),
        "text-cut" => *root.texts_len.get_mut() = size_of::<Text>() as u64 + 2,
        "text-outside" => put(data(STATIC), texts as u64 - 8),
        "text-wrap" => put(data(STATIC), u64::MAX - 4),
        "chain-outside" => put(data(CHAIN), (texts + TEXTS) as u64 - 16),
        "chain-count" => put(count(CHAIN), MAX_DEPTH + 1),
        "chain-empty" => put(count(CHAIN), 0_u32),
        "chain-zero" => put(to.next - 8 * MAX_DEPTH as usize, 0_u64),
        "site-kind" => put(to.field(STATIC, offset_of!(Site, kind)), 77_u32),
        "texts-outside" => root.texts = 1 << 60,
        "texts-none" => root.texts = 0,
        "texts-long" => *root.texts_len.get_mut() = u64::MAX,
        // Longer than the mapping: the mapped part is used.
        "texts-past-end" => *root.texts_len.get_mut() = 200 << 20,
        "texts-overlap" => overlap(texts, to),
        _ => {}
    }
}

/// Gives every site one long text. Without overlap there would be no room for all of them.
fn overlap(texts: usize, to: &Writer) {
    for tag in 0..SITES - TAG_FIRST_SITE {
        let at = texts + size_of::<Text>() * tag as usize;
        let (module_len, file_len, function_len) = (0, 0, 3000);
        put(at, Text { line: tag, module_len, file_len, function_len, reserved: [0; 3] });
        to.site(tag + TAG_FIRST_SITE, 0, site_kind::STATIC, 0, at);
    }
}
