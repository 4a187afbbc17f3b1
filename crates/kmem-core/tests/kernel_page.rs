//! The page on kernels shows the program that `scripts/unikernel.sh` boots.

use std::fs;
use std::path::Path;

use kmem_testing::page::check;

#[test]
fn the_page_shows_the_kernel_that_is_booted() {
    let path = "../../examples/unikernel/src/bin/kernel.rs";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let kernel = fs::read_to_string(path).expect("a readable file");
    assert!(kernel.lines().count() <= 60, "{} lines", kernel.lines().count());
    check("docs/your-kernel.md", "kernel", &format!("```rust\n{kernel}```\n"));
}
