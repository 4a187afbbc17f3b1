//! Files of modules: ELF files, compressed or not, and the indexes of a directory of them.

use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use kmem_module::decompress::Packed;
use kmem_module::depmod::Catalogue;
use kmem_module::elf::Machine;
use kmem_module::link::Options;
use kmem_module::os::{Account, Gauge, Linux};
use kmem_module::source::{Source, Window};
use kmem_module::symbols::{Core, Definition};
use kmem_module::{describe, probe, tryout};

use crate::Answer;

/// Most bytes of a file when it is expanded, and of a module in memory.
const MOST: u64 = 1 << 20;

/// Every name is there.
struct All;

impl Core for All {
    fn find(&self, name: &CStr) -> Option<Definition> {
        let value = 0x7000_0000_0000 + name.count_bytes() as u64 * 16;
        Some(Definition { value, version: None, gpl: false })
    }
}

/// A module: checked, laid out, relocated, never run. Nothing may be left of it.
pub(crate) fn module(bytes: &[u8], answer: &mut Answer) {
    let gauge = Arc::<Gauge>::default();
    let account = Account::new(Arc::new(Linux), gauge.clone()).expect("an account");
    let source = Source::Bytes(bytes);
    for machine in [Machine::X86_64, Machine::Aarch64] {
        let base = (machine != Machine::HERE).then_some(1 << 40);
        let options = Options { machine, base, most: MOST, this_module: 0x1000 };
        if let Err(error) = tryout::try_out(source, &account, &All, &options) {
            answer.say(error);
        }
    }
    if let Ok(mut window) = Window::new(source, &account) {
        let _ = probe::name(&mut window, &account);
    }
    if let Err(error) = describe::entries(source, &account) {
        answer.say(error);
    }
    assert_eq!(gauge.now(), 0, "memory is left");
}

/// A compressed file.
pub(crate) fn packed(bytes: &[u8], answer: &mut Answer) {
    let gauge = Arc::<Gauge>::default();
    let account = Account::new(Arc::new(Linux), gauge.clone()).expect("an account");
    match Packed::open(Source::Bytes(bytes), &account, MOST) {
        Ok(packed) => {
            let expanded = packed.expand(&account).expect("a whole file expands");
            assert!(expanded.len() as u64 <= MOST);
        }
        Err(error) => answer.say(error),
    }
    assert_eq!(gauge.now(), 0, "memory is left");
}

/// Indexes of a directory, with a zero byte between them.
pub(crate) fn depmod(bytes: &[u8], answer: &mut Answer) {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        directory.expect("a temporary directory").keep()
    });
    let mut parts = bytes.split(|&byte| byte == 0);
    for name in ["modules.dep", "modules.alias", "modules.softdep", "modules.builtin"] {
        fs::write(directory.join(name), parts.next().unwrap_or_default()).expect("a written file");
    }
    match Catalogue::read(directory) {
        Ok(catalogue) => {
            for wanted in ["first", "second", "pci:v00001af4d00001000"] {
                match catalogue.plan(wanted) {
                    Ok(plan) => answer.say(format!("{plan:?}")),
                    Err(error) => answer.say(error),
                }
            }
        }
        Err(error) => answer.fail(error),
    }
}
