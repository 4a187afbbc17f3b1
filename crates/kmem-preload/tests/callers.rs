//! Chains of callers of programs without frame pointers, against those that libgcc's unwinder finds
//! in the same places.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use kmem_snapshot::{Process, Snapshot};
use kmem_testing::library::{is_not_kmem, under_test};
use kmem_testing::{Compiler, Coprocess, directory, is_missing};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words of a sample in the file: the number of addresses, and room for them.
const SAMPLE: usize = 33;
const DEPTH: usize = 32;

/// Number of live samples of each chain of callers.
type Chains = BTreeMap<Vec<u64>, u64>;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/callers").join(name)
}

/// The samples in the file: the bounds of the sampling code, and the callers of that code.
fn samples(path: &Path) -> (std::ops::Range<u64>, Chains) {
    let bytes = std::fs::read(path).expect("the file of samples");
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let (head, samples) = words.split_at(3);
    let used = head[2] as usize;
    assert!(used < samples.len() / SAMPLE, "{used} samples do not fit");
    let mut chains = Chains::new();
    for sample in samples.chunks_exact(SAMPLE).take(used) {
        // The first address is in the sampling code itself.
        let callers = &sample[2..1 + sample[0] as usize];
        *chains.entry(callers.to_vec()).or_default() += 1;
    }
    (head[0]..head[1], chains)
}

/// The chains of allocations by the sampling code, from its caller outwards.
fn recorded(pid: u32, sampler: &std::ops::Range<u64>) -> Chains {
    let process = Process::open(pid).expect("a process under kmem");
    let snapshot = Snapshot::take(&process).expect("its books");
    let mut chains = Chains::new();
    for row in snapshot.books.iter().flat_map(|books| &books.rows) {
        if let [first, callers @ ..] = row.key.addresses()
            && sampler.contains(first)
        {
            *chains.entry(callers.to_vec()).or_default() += row.calls;
        }
    }
    chains
}

/// Chains that are not in `other`, or with another number.
fn differences(chains: &Chains, other: &Chains) -> Vec<String> {
    let differs = chains.iter().filter(|(chain, count)| other.get(*chain) != Some(count));
    differs.map(|(chain, count)| format!("{count} x {chain:x?}")).collect()
}

#[test]
fn chains_without_frame_pointers_are_those_of_an_unwinder() {
    if is_not_kmem() || is_missing("c++") {
        return;
    }
    let dir = directory();
    let file = dir.path().join("samples");
    let build = |compiler: Compiler, name: &str, more: &[&str], output: &str| {
        let flags = ["-O2", "-fomit-frame-pointer", "-w", "-pthread"];
        compiler.args(flags).arg(source(name)).args(more).compile(dir.path().join(output))
    };
    let library = ["-shared", "-fPIC"];
    let sampler = build(Compiler::c(), "sampler.c", &library, "libsampler.so");
    let plugins = ["24", "72"].map(|frame| {
        let frame_flag = format!("-DFRAME={frame}");
        let flags = [library[0], library[1], &frame_flag];
        build(Compiler::c(), "plugin.c", &flags, &format!("libplugin{frame}.so"))
    });
    let sampler_text = sampler.display().to_string();
    let compiler = Compiler::cxx().arg("-std=c++17");
    let program = build(compiler, "exercise.cc", &[&sampler_text, "-ldl"], "exercise");

    let library = under_test().expect("the library");
    let mut command = Command::new(program);
    command.args(plugins);
    command.env("LD_PRELOAD", format!("{} {}", sampler.display(), library.display()));
    command.env("KMEM_CONF", format!("depth:{DEPTH}")).env("SAMPLES", &file);
    let mut child = Coprocess::start(&mut command);
    let said = child.wait_for("ready");
    assert_eq!(said, ["same"], "one library takes the place of another");

    let (sampler, expected) = samples(&file);
    let found = recorded(child.pid(), &sampler);
    assert!(expected.len() > 2000, "{} chains", expected.len());
    assert!(expected.keys().any(|chain| chain.len() == DEPTH - 1), "a deep recursion");
    let (missing, wrong) = (differences(&expected, &found), differences(&found, &expected));
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "of {} chains, not recorded:\n{}\nrecorded instead:\n{}",
        expected.len(),
        missing[..missing.len().min(10)].join("\n"),
        wrong[..wrong.len().min(10)].join("\n")
    );
}
