use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn any_record_over_any_texts_is_survived(
        words in proptest::collection::vec(prop_oneof![8 => 1..60_u16, 1 => any::<u16>()], 0..300),
        base in prop_oneof![Just(0x1000_u64), any::<u64>(), Just(u64::MAX - 100)],
        records in proptest::collection::vec(
            (
                any::<u64>(),
                0..5_u32,
                prop_oneof![9 => 0..40_u32, 1 => any::<u32>()],
                any::<u64>(),
                0..500_u64,
                prop_oneof![9 => Just(true), 1 => Just(false)],
            ),
            1..100,
        ),
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let left = bytes.len();
        let mut texts = Texts { base, bytes, left, known: HashMap::new() };
        let mut names = 0;
        for (addr, kind, count, data, near, is_near) in records {
            let data = if is_near { base.wrapping_add(near) } else { data };
            let mut record = [0; size_of::<Site>()];
            let mut put = |offset: usize, bytes: &[u8]| {
                record[offset..offset + bytes.len()].copy_from_slice(bytes);
            };
            put(offset_of!(Site, addr), &addr.to_le_bytes());
            put(offset_of!(Site, kind), &kind.to_le_bytes());
            put(offset_of!(Site, count), &count.to_le_bytes());
            put(offset_of!(Site, data), &data.to_le_bytes());
            let known = texts.known.len();
            match texts.key(&record) {
                Some(Key::Chain { addresses, .. }) => {
                    prop_assert!((1..=MAX_DEPTH as usize).contains(&addresses.len()));
                }
                Some(Key::Static(tag)) if texts.known.len() > known => {
                    names += tag.module.chars().count() + tag.file.chars().count();
                    names += tag.function.chars().count();
                }
                _ => {}
            }
        }
        // However texts overlap, the names made of them are no longer than the texts.
        prop_assert!(names <= left);
    }
}
