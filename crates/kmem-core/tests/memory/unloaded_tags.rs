//! Static tags of objects that are loaded and unloaded again and again, at one address or at many.

use crate::instance::{Fixed, fixed, free_all};
use std::collections::BTreeSet;

use kmem_core::codetag::MIN_SITES;
use kmem_core::units::TagId;
use kmem_core::{Caller, StaticTag};
use kmem_layout::word::TAG_OTHER;

/// Bytes of an instance with room for few sites.
const FEW_SITES: usize = 8 << 20;

/// Ten tags at a new address, like those of a loaded object.
fn load() -> &'static [StaticTag] {
    let tags = (0..10).map(|line| StaticTag::new(c"plugin.c", c"work", line));
    Box::leak(tags.collect::<Box<[_]>>())
}

/// Loads tags, allocates for each, frees, and unloads them. Returns the tag numbers used.
fn cycle(instance: &'static Fixed, tags: &'static [StaticTag]) -> Vec<u32> {
    let range = tags.as_ptr_range();
    // SAFETY: the tags are never freed.
    unsafe { instance.register_tags(range.start, range.end, b"plugin.so") };
    let held: Vec<_> = tags.iter().map(|tag| instance.alloc(64, Caller::tagged(tag))).collect();
    let mut numbers = Vec::new();
    instance.census(|tag, bytes, calls| {
        assert_eq!((bytes, calls), (64, 1));
        let names = instance.sites().names(tag).expect("a tag of the object, not one of the rest");
        assert_eq!((names.module, names.file), (&b"plugin.so"[..], &b"plugin.c"[..]));
        assert!(names.line < 10);
        numbers.push(tag.0);
    });
    free_all(instance, held);
    instance.unregister_tags(range.start, range.end, b"plugin.so");
    numbers.sort_unstable();
    assert_eq!(numbers.len(), 10);
    numbers
}

/// More cycles than the index has slots.
const CYCLES: u32 = 2 * MIN_SITES / 10 + 100;

#[test]
fn tags_loaded_at_one_address_keep_their_numbers() {
    let instance = fixed(FEW_SITES);
    let tags = load();
    let numbers: BTreeSet<_> = (0..CYCLES).map(|_| cycle(instance, tags)).collect();
    assert_eq!(numbers.len(), 1);
}

#[test]
fn tags_loaded_at_ever_new_addresses_keep_their_numbers() {
    let instance = fixed(FEW_SITES);
    let numbers: BTreeSet<_> = (0..CYCLES).map(|_| cycle(instance, load())).collect();
    assert_eq!(numbers.len(), 1);
}

#[test]
fn an_object_with_more_tags_than_numbers_leaves_half_of_them_to_other_call_sites() {
    let instance = fixed(FEW_SITES);
    let tags = (0..4 * MIN_SITES).map(|line| StaticTag::new(c"plugin.c", c"work", line));
    let tags: &'static [StaticTag] = Box::leak(tags.collect::<Box<[_]>>());
    let range = tags.as_ptr_range();
    // SAFETY: the tags are never freed.
    unsafe { instance.register_tags(range.start, range.end, b"plugin.so") };
    let listed = || (0..2 * MIN_SITES).filter(|&tag| instance.sites().names(TagId(tag)).is_some());
    let given = listed().count();
    assert!(given > 0 && given as u32 <= MIN_SITES / 2, "{given} numbers");
    // A call site that comes later has its own row, and so has a tag that got no number.
    let last = &tags[tags.len() - 1];
    let held = [Caller::at(0x10_0000), Caller::tagged(last)].map(|of| instance.alloc(64, of));
    let mut rows = 0;
    instance.census(|tag, _, calls| {
        assert_ne!(tag.0, TAG_OTHER);
        rows += calls;
    });
    assert_eq!((rows, listed().count()), (2, given + 1));
    free_all(instance, held.to_vec());
}
