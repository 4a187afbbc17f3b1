//! Memory of modules that were unloaded. A program of its own: the allocator recounts itself, which
//! is exact at rest only.

mod harness;

use harness::{EMPTY, KMEM, directory, insmod, loader, module_with};
use kmem_core::units::Gfp;
use kmem_core::{Caller, static_tag};

#[test]
fn memory_that_modules_had_can_be_written_and_not_executed_afterwards() {
    let dir = directory();
    let path = module_with(dir.path(), "again", EMPTY, &["-DKBUILD_MODNAME=again"]);
    let loader = loader();
    for _ in 0..300 {
        insmod(&loader, &path, "").unwrap();
        loader.delete_module("again", 0).unwrap();
        // The allocator hands the pages out again.
        let caller = Caller::tagged(static_tag!());
        let area = KMEM.vmalloc(16 << 10, Gfp::KERNEL, caller);
        assert!(!area.is_null());
        // SAFETY: an area of this size, which is freed only now.
        unsafe {
            area.write_bytes(0x5a, 16 << 10);
            KMEM.vfree(area);
        }
    }
    KMEM.validate().unwrap();
}
