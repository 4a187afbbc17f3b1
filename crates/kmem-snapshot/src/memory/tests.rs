use super::*;

#[test]
fn a_lost_span_does_not_stop_the_others() {
    let memory = LiveMemory { pid: std::process::id() };
    let data: Vec<u8> = (0..=255).collect();
    let at = data.as_ptr() as u64;
    let spans: Vec<Span> = (0..3000_u64)
        .map(|i| Span { addr: if i % 7 == 3 { 8 } else { at + i % 200 }, len: 5 })
        .collect();
    let mut into = vec![0; 5 * spans.len()];
    let whole = memory.read_spans(&spans, &mut into).unwrap();
    for (i, got) in into.chunks(5).enumerate() {
        assert_eq!(whole[i], i % 7 != 3);
        if whole[i] {
            assert_eq!(got, &data[i % 200..i % 200 + 5]);
        }
    }
}

#[test]
fn unmapped_memory_and_absent_processes_are_errors() {
    let memory = LiveMemory { pid: std::process::id() };
    let mut into = [0; 8];
    assert!(matches!(memory.read(16, &mut into), Err(ReadError::Memory { .. })));
    assert!(matches!(memory.read(u64::MAX - 3, &mut into), Err(ReadError::Memory { .. })));
    assert!(matches!(memory.write(16, &[1]), Err(ReadError::Memory { .. })));
    assert!(matches!(memory.write(u64::MAX - 3, &[1; 8]), Err(ReadError::Memory { .. })));
    let memory = LiveMemory { pid: 0x7fff_fff0 };
    assert!(matches!(memory.read(16, &mut into), Err(ReadError::NoProcess { .. })));
    assert!(matches!(memory.write(16, &[1]), Err(ReadError::NoProcess { .. })));
}

#[test]
fn own_pages() {
    let map = PageMap::open(Path::new("/proc/self/pagemap")).unwrap();
    let touched = vec![1_u8; 64 << 10];
    let at = touched.as_ptr() as u64;
    assert!(map.resident(at, 64 << 10).unwrap() >= 64 << 10);
    assert_eq!(map.resident(0, 4096), Some(0));
    assert_eq!(map.resident(u64::MAX - 4096, 8192), None);
}

#[test]
fn both_ways_agree_except_for_the_zero_page() {
    let map = PageMap::open(Path::new("/proc/self/pagemap")).unwrap();
    // Large enough for a mapping of its own. One page in ten is touched.
    let mut memory = vec![0_u8; 8 << 20];
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
    for page in (0..1000).step_by(10) {
        memory[page * 4096 + 4096] = 1;
    }
    let pages = |scan: bool| {
        let mut found = Vec::new();
        let mut each = |r: Range<u64>| found.extend((r.start..r.end).step_by(PAGE as usize));
        let end = start + 1000 * PAGE;
        if scan {
            let without = CATEGORY_ZERO_PAGE;
            map.scan((start, end), PageState::Present, without, &mut each).map(|()| found)
        } else {
            map.entries(start, end, PageState::Present, &mut each);
            Ok(found)
        }
    };
    // The kernel may join or reclaim pages between the two scans.
    let agree = |_| {
        let Ok(scanned) = pages(true) else { return true };
        scanned == pages(false).unwrap() && scanned.len() >= 100
    };
    assert!((0..10).any(agree));
}

#[test]
fn a_guard_is_not_in_swap() {
    const MADV_GUARD_INSTALL: i32 = 102;
    let map = PageMap::open(Path::new("/proc/self/pagemap")).unwrap();
    let memory = vec![1_u8; 64 << 10];
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
    // SAFETY: two pages of the memory, which nothing uses until they are accessible again.
    let marked = unsafe { libc::madvise(start as *mut _, 2 * PAGE as usize, MADV_GUARD_INSTALL) };
    let mut swapped = Vec::new();
    let each = |range: Range<u64>| swapped.push(range);
    map.regions(start, 4 * PAGE, PageState::Swapped, each).unwrap();
    let mut entries = Vec::new();
    let end = start + 4 * PAGE;
    map.entries(start, end, PageState::Swapped, &mut |range| entries.push(range)).unwrap();
    if marked == 0 {
        const MADV_GUARD_REMOVE: i32 = 103;
        // SAFETY: the two pages.
        unsafe { libc::madvise(start as *mut _, 2 * PAGE as usize, MADV_GUARD_REMOVE) };
    }
    // Linux 6.13 and 6.14 do not tell readers of guards.
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    if !kernel.starts_with("6.13.") && !kernel.starts_with("6.14.") {
        assert_eq!((swapped, entries), (Vec::new(), Vec::new()));
    }
}
