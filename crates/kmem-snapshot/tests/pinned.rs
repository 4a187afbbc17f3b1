//! Memory that rows pin, in a process with two allocators.

use kmem_core::Kmem;
use kmem_core::request::Caller;
use kmem_snapshot::{Filter, Pattern, Query, Target};

static ONE: Kmem = Kmem::new();
static TWO: Kmem = Kmem::new();
/// Return addresses in no module, so that each is a place of its own.
const A: usize = 0x10_0001;
const B: usize = 0x10_0101;
const MIB: usize = 1 << 20;

/// Pinned and sole bytes of the places of `A` and `B`.
fn pinned(filter: &Filter) -> [Option<(u64, u64)>; 2] {
    let query = Query { filter: filter.clone(), ..Query::default() };
    let reading = Target::Process(std::process::id()).read(&query).expect("this process's books");
    assert_eq!(reading.snapshot.books.len(), 2);
    let sites = &reading.sites;
    [A, B].map(|addr| {
        let place = format!("{:#x}", addr - 1);
        let site = sites.iter().find(|site| site.origin.location() == place)?;
        site.pinned.map(|p| (p.pinned, p.sole))
    })
}

#[test]
fn the_same_number_is_another_tag_in_each_of_two_books() {
    let mib = MIB as u64;
    ONE.alloc(MIB, Caller::at(A));
    TWO.alloc(4 * MIB, Caller::at(B));
    TWO.alloc(2 * MIB, Caller::at(A));
    assert_eq!(pinned(&Filter::default()), [Some((3 * mib, 3 * mib)), Some((4 * mib, 4 * mib))]);
    // Both share one slab.
    ONE.alloc(64, Caller::at(A));
    ONE.alloc(64, Caller::at(B));
    let slab = 64 << 10;
    let both = [Some((3 * mib + slab, 3 * mib)), Some((4 * mib + slab, 4 * mib))];
    assert_eq!(pinned(&Filter::default()), both);
    // Rows that the filter leaves out still pin.
    let file = vec![Pattern::new(&format!("{:#x}", A - 1))];
    assert_eq!(pinned(&Filter { file, ..Filter::default() }), [both[0], None]);
}
