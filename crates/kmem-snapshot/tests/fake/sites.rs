//! The site table of the fake process: callers, static tags and chains.

use std::hint::black_box;
use std::mem::{offset_of, size_of};

use kmem_snapshot::kmem::root::{MAX_DEPTH, RootBlock, Site, TAG_FIRST_SITE, Text, site_kind};

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
/// The same text as [`STATIC`], elsewhere.
pub(crate) const STATIC_AGAIN: u32 = 33;
/// inner, middle, outer.
pub(crate) const CHAIN: u32 = 34;
/// inner, other, outer.
pub(crate) const CHAIN_OTHER: u32 = 35;
/// Library code, middle, outer.
pub(crate) const CHAIN_LIBRARY: u32 = 36;
/// Library code alone.
pub(crate) const CHAIN_LIBRARY_ALONE: u32 = 37;
/// Two addresses where nothing is mapped.
pub(crate) const CHAIN_NOWHERE: u32 = 38;
/// inner, and outer all the way.
pub(crate) const CHAIN_DEEP: u32 = 39;

const TEXTS: usize = 4096;

/// Room for the texts.
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

/// Fills in the table and its texts; in the order of the tags above.
pub(super) fn write(root: &mut RootBlock, texts: usize, fault: &str) {
    let sites = root.sites as usize;
    let middle = within(app_middle as fn(u32) -> u32 as usize);
    let other = within(app_other as fn(u32) -> u32 as usize);
    let outer = within(app_outer as fn(u32) -> u32 as usize);
    let library = within(Vec::<[u16; 3]>::reserve as fn(&mut Vec<[u16; 3]>, usize) as usize);
    let site = |tag: u32, addr: u64, kind: u32, count: usize, data: usize| {
        let at = sites + tag as usize * size_of::<Site>();
        put(at + offset_of!(Site, addr), addr);
        put(at + offset_of!(Site, kind), kind);
        put(at + offset_of!(Site, count), count as u32);
        put(at + offset_of!(Site, data), data as u64);
    };
    for tag in NOWHERE {
        site(tag, 0x1000 + u64::from(tag), site_kind::CALLER, 0, 0);
    }
    site(CALLER, other, site_kind::CALLER, 0, 0);
    site(CALLER_INNER, inner(), site_kind::CALLER, 0, 0);

    let mut next = texts;
    let mut text = |tag: u32, module: &[u8], file: &[u8], line: u32, function: &[u8]| {
        let at = next;
        let (module_len, file_len) = (module.len() as u16, file.len() as u16);
        let function_len = function.len() as u16;
        put(at, Text { line, module_len, file_len, function_len, reserved: [0; 3] });
        let names = module.iter().chain(file).chain(function);
        next = at + size_of::<Text>();
        for &byte in names {
            put(next, byte);
            next += 1;
        }
        next = next.next_multiple_of(8);
        // An address of zero: the module was unloaded, its text stays.
        let addr = if tag == STATIC_MODULE { 0 } else { at as u64 };
        site(tag, addr, site_kind::STATIC, 0, at);
    };
    text(STATIC, b"", b"src/main.c", 7, b"make");
    text(STATIC_MODULE, b"libplug.so", b"plug.c", 12, b"plug_open");
    text(STATIC_HOSTILE, b"", b"evil\x1b[2J ;a\n.c", 1, b"f\xff(\r)");
    text(STATIC_AGAIN, b"", b"src/main.c", 7, b"make");
    let mut chain = |tag: u32, addresses: &[u64]| {
        let at = next;
        for &address in addresses {
            put(next, address);
            next += 8;
        }
        site(tag, addresses[0], site_kind::CHAIN, addresses.len(), at);
    };
    chain(CHAIN, &[inner(), middle, outer]);
    chain(CHAIN_OTHER, &[inner(), other, outer]);
    chain(CHAIN_LIBRARY, &[library, middle, outer]);
    chain(CHAIN_LIBRARY_ALONE, &[library]);
    chain(CHAIN_NOWHERE, &[0x2001, 0x3001]);
    let mut deep = [outer; MAX_DEPTH as usize];
    deep[0] = inner();
    chain(CHAIN_DEEP, &deep);
    assert!(next <= texts + TEXTS);
    root.texts = texts as u64;
    *root.texts_len.get_mut() = TEXTS as u64;

    let field = |tag: u32, offset: usize| sites + tag as usize * size_of::<Site>() + offset;
    match fault {
        // The lengths of names, or the texts themselves, reach beyond the area.
        "text-length" => put(texts + offset_of!(Text, function_len), u16::MAX),
        "text-cut" => *root.texts_len.get_mut() = size_of::<Text>() as u64 + 2,
        "text-outside" => put(field(STATIC, offset_of!(Site, data)), texts as u64 - 8),
        "text-wrap" => put(field(STATIC, offset_of!(Site, data)), u64::MAX - 4),
        "chain-outside" => {
            put(field(CHAIN, offset_of!(Site, data)), (texts + TEXTS) as u64 - 16);
        }
        "chain-count" => put(field(CHAIN, offset_of!(Site, count)), MAX_DEPTH + 1),
        "chain-empty" => put(field(CHAIN, offset_of!(Site, count)), 0_u32),
        "chain-zero" => put(next - 8 * MAX_DEPTH as usize, 0_u64),
        "site-kind" => put(field(STATIC, offset_of!(Site, kind)), 77_u32),
        "texts-outside" => root.texts = 1 << 60,
        "texts-none" => root.texts = 0,
        "texts-long" => *root.texts_len.get_mut() = u64::MAX,
        // Longer than what is mapped: what is there is used.
        "texts-past-end" => *root.texts_len.get_mut() = 200 << 20,
        // Every site has the same long text: more than the texts can hold without overlap.
        "texts-overlap" => {
            for tag in 0..SITES - TAG_FIRST_SITE {
                let at = texts + size_of::<Text>() * tag as usize;
                put(
                    at,
                    Text {
                        line: tag,
                        module_len: 0,
                        file_len: 0,
                        function_len: 3000,
                        reserved: [0; 3],
                    },
                );
                site(tag + TAG_FIRST_SITE, 0, site_kind::STATIC, 0, at);
            }
        }
        _ => {}
    }
}
