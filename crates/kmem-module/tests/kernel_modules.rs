//! The modules of a Linux kernel: checked, laid out at a kernel's addresses and relocated against
//! stubs; nothing is run. `scripts/kernel-modules.sh` gets them, and runs this with the directory
//! in `KMEM_KERNEL_MODULES`.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kmem_module::describe;
use kmem_module::elf::{Elf, Machine};
use kmem_module::link::Options;
use kmem_module::os::{Account, Gauge, Linux};
use kmem_module::source::Source;
use kmem_module::symbols::{Core, Definition, Versions};
use kmem_module::tryout::try_out;

/// Addresses of a kernel's modules, and of its own symbols. On x86-64 both ends of what 32 bits
/// with a sign reach; on AArch64 further apart than a branch reaches.
fn addresses(machine: Machine) -> (u64, u64) {
    match machine {
        Machine::X86_64 => (0xffff_ffff_c000_0000, 0xffff_ffff_8100_0000),
        Machine::Aarch64 => (0xffff_8000_0100_0000, 0xffff_8000_1000_0000),
    }
}

/// A stub for every name, from an address on; the versions are those that the modules were built
/// for.
struct Stubs(HashMap<Vec<u8>, (u64, u32)>, u64);

impl Core for Stubs {
    fn find(&self, name: &CStr) -> Option<Definition> {
        let (number, version) = self.0.get(name.to_bytes())?;
        Some(Definition { value: self.1 + number * 16, version: Some(*version), gpl: false })
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "ko") {
            found.push(path);
        }
    }
}

#[test]
#[ignore = "needs the modules of a kernel: scripts/kernel-modules.sh"]
fn every_module_of_a_kernel_is_checked_laid_out_and_relocated() {
    let dir = std::env::var_os("KMEM_KERNEL_MODULES").expect("KMEM_KERNEL_MODULES is a directory");
    let mut paths = Vec::new();
    files(Path::new(&dir), &mut paths);
    paths.sort();
    assert!(paths.len() > 300, "{} modules", paths.len());

    let gauge = Arc::<Gauge>::default();
    let account = Account::new(Arc::new(Linux), gauge.clone()).unwrap();
    let machine = match std::env::var("KMEM_KERNEL_MACHINE").as_deref() {
        Ok("aarch64") => Machine::Aarch64,
        _ => Machine::X86_64,
    };
    let (base, kernel) = addresses(machine);
    let mut stubs = Stubs(HashMap::new(), kernel);
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        let file = Elf::read(Source::Bytes(&bytes), &account, Some(machine)).unwrap();
        for (name, version) in Versions::read(&file, &account).unwrap().iter() {
            let next = stubs.0.len() as u64;
            let known = stubs.0.entry(name.to_vec()).or_insert((next, version));
            assert_eq!(known.1, version, "{}", String::from_utf8_lossy(name));
        }
    }
    let most = 64 << 20;
    let options = Options { machine, base: Some(base), most, this_module: kernel };
    let (mut bytes, mut text, mut imports) = (0, 0, 0);
    for path in &paths {
        let file = fs::File::open(path).unwrap();
        let len = file.metadata().unwrap().len();
        let source = Source::File(std::os::fd::AsFd::as_fd(&file), len);
        let report = try_out(source, &account, &stubs, &options)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let entries = describe::file(path).unwrap();
        assert_eq!(report.name.as_deref().map(str::as_bytes), describe::get(&entries, "name"));
        assert_eq!(gauge.now(), 0);
        bytes += report.size;
        text += report.text;
        imports += report.imports;
        // From memory it is the same.
        if len < 100_000 {
            let copy = fs::read(path).unwrap();
            assert_eq!(try_out(Source::Bytes(&copy), &account, &stubs, &options), Ok(report));
        }
    }
    println!(
        "{} modules, {} symbols: {bytes} bytes of memory, {text} of code, {imports} imports",
        paths.len(),
        stubs.0.len()
    );
}
