//! kmem as the allocator of a Rust program, with the books that `libkmem.so` keeps.
//!
//! ```sh
//! cargo run --release -p kmem-core --example global_allocator &
//! cargo run --release -- top --once -p $!
//! ```

use std::collections::BTreeMap;
use std::io::Read;

use kmem_core::Kmem;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

fn index(lines: usize) -> BTreeMap<usize, String> {
    (0..lines).map(|i| (i, format!("line {i}"))).collect()
}

fn main() {
    let held = index(100_000);
    let mut sites = BTreeMap::new();
    KMEM.census(|tag, bytes, objects| {
        // The table allocates for a new site. The census may miss these allocations.
        let sum = sites.entry(KMEM.site_address(tag)).or_insert((0u64, 0u64));
        *sum = (sum.0 + bytes, sum.1 + objects);
    });
    println!("{:>12} {:>8} call returns to", "bytes", "objects");
    for (site, (bytes, objects)) in &sites {
        println!("{bytes:>12} {objects:>8} {site:#x}");
    }
    println!("{} lines held; end with end-of-file (Ctrl-D)", held.len());
    let _ = std::io::stdin().read(&mut [0; 1]);
}
