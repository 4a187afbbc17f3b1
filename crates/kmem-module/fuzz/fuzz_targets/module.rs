//! Any bytes as a module: checked, laid out, relocated, never run. Nothing may be left of it.
#![no_main]

use std::ffi::CStr;
use std::sync::Arc;

use kmem_module::describe;
use kmem_module::elf::Machine;
use kmem_module::link::Options;
use kmem_module::os::{Account, Gauge, Linux};
use kmem_module::source::{Source, Window};
use kmem_module::symbols::{Core, Definition};
use kmem_module::{probe, tryout};
use libfuzzer_sys::fuzz_target;

/// Every name is there.
struct All;

impl Core for All {
    fn find(&self, name: &CStr) -> Option<Definition> {
        let value = 0x7000_0000_0000 + name.count_bytes() as u64 * 16;
        Some(Definition { value, version: None, gpl: false })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let gauge = Arc::<Gauge>::default();
    let account = Account::new(Arc::new(Linux), gauge.clone()).unwrap();
    let source = Source::Bytes(bytes);
    for machine in [Machine::X86_64, Machine::Aarch64] {
        let base = (machine != Machine::HERE).then_some(1 << 40);
        let options = Options { machine, base, most: 1 << 20, this_module: 0x1000 };
        let _ = tryout::try_out(source, &account, &All, &options);
    }
    if let Ok(mut window) = Window::new(source, &account) {
        let _ = probe::name(&mut window, &account);
    }
    let _ = describe::entries(source, &account);
    assert_eq!(gauge.now(), 0);
});
