//! Chains of callers of programs without frame pointers, against those that libgcc's unwinder finds
//! in the same places.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use kmem_snapshot::{Process, Snapshot};
use kmem_testing::library::{is_not_kmem, under_test};
use kmem_testing::{Compiler, Coprocess, directory, is_missing};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const DEPTH: usize = 32;
/// Words of a sample in the file: two chains of addresses, each with its length first. The second
/// chain is that of libunwind, which is not asked here.
const SAMPLE: usize = 2 * (1 + DEPTH);

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

/// Compiles a source of the directory.
fn build(compiler: Compiler, name: &str, more: &[&str], output: &Path) -> PathBuf {
    let flags = ["-O2", "-fomit-frame-pointer", "-w", "-pthread"];
    compiler.args(flags).arg(source(name)).args(more).compile(output)
}

/// Starts a program under the sampler and the library. Waits until it says that it is ready.
/// Returns it, and the lines before.
fn start(mut command: Command, sampler: &Path, file: &Path) -> (Coprocess, Vec<String>) {
    let library = under_test().expect("the library");
    command.env("LD_PRELOAD", format!("{} {}", sampler.display(), library.display()));
    command.env("KMEM_CONF", format!("depth:{DEPTH}")).env("SAMPLES", file);
    let mut child = Coprocess::start(&mut command);
    let said = child.wait_for("ready");
    (child, said)
}

#[test]
fn code_without_a_table_and_without_a_frame_pointer_ends_a_chain() {
    if is_not_kmem() {
        return;
    }
    let dir = directory();
    let in_dir = |name: &str| dir.path().join(name);
    let library = ["-shared", "-fPIC"];
    let sampler = build(Compiler::c(), "sampler.c", &library, &in_dir("libsampler.so"));
    let more = [sampler.to_str().expect("a path in UTF-8")];
    let program = build(Compiler::c(), "made_code.c", &more, &in_dir("made_code"));
    let file = in_dir("samples");
    let (child, said) = start(Command::new(program), &sampler, &file);
    let places: Vec<u64> = said[0]
        .split_whitespace()
        .map(|place| u64::from_str_radix(&place[2..], 16).expect("an address"))
        .collect();

    let (sampler, expected) = samples(&file);
    let found = recorded(child.pid(), &sampler);
    let through = |chains: &Chains, place: u64| {
        let is_in = |ret: &u64| (place..place + 4096).contains(ret);
        let mut chains = chains.keys().filter(|chain| chain.iter().any(is_in));
        let chain = chains.next().expect("a chain through the code").clone();
        assert_eq!(chains.next(), None, "all chains through the code are the same");
        chain
    };
    // libgcc goes no further than the code.
    let [with, without] =
        [0, 1].map(|i| (through(&expected, places[i]), through(&found, places[i])));
    assert!(with.1.starts_with(&with.0) && with.1.len() >= with.0.len() + 3, "{with:x?}");
    assert_eq!(without.0, without.1);
}

#[test]
fn chains_through_the_dynamic_linker_and_signal_handlers_are_right_as_far_as_they_go() {
    if is_not_kmem() {
        return;
    }
    let dir = directory();
    let in_dir = |name: &str| dir.path().join(name);
    let library = ["-shared", "-fPIC", "-Wl,-z,lazy"];
    let sampler = build(Compiler::c(), "sampler.c", &library, &in_dir("libsampler.so"));
    let chosen = build(Compiler::c(), "chosen.c", &library, &in_dir("libchosen.so"));
    let [sampler_path, chosen] = [&sampler, &chosen].map(|path| path.to_str().expect("UTF-8"));
    let rpath = format!("-Wl,-z,lazy,-rpath,{}", dir.path().display());
    let more = [sampler_path, chosen, &rpath];
    let program = build(Compiler::c(), "interrupted.c", &more, &in_dir("interrupted"));
    let file = in_dir("samples");
    let mut command = Command::new(program);
    command.env_remove("LD_BIND_NOW");
    let (child, _) = start(command, &sampler, &file);

    let (bounds, expected) = samples(&file);
    let found = recorded(child.pid(), &bounds);
    let count = |chains: &Chains| chains.values().sum::<u64>();
    // Two functions are bound, and ten signals are handled.
    assert_eq!((count(&expected), count(&found)), (12, 12), "{found:x?}");
    for chain in found.keys() {
        let is_begin = expected.keys().any(|whole| whole.starts_with(chain));
        assert!(is_begin && chain.len() >= 3, "{chain:x?} is none of {expected:x?}");
    }
}

#[test]
fn chains_without_frame_pointers_are_those_of_an_unwinder() {
    if is_not_kmem() || is_missing("c++") {
        return;
    }
    let dir = directory();
    let in_dir = |name: &str| dir.path().join(name);
    let file = in_dir("samples");
    let library = ["-shared", "-fPIC"];
    let sampler = build(Compiler::c(), "sampler.c", &library, &in_dir("libsampler.so"));
    let plugins = ["24", "72"].map(|frame| {
        let frame_flag = format!("-DFRAME={frame}");
        let flags = [library[0], library[1], &frame_flag];
        build(Compiler::c(), "plugin.c", &flags, &in_dir(&format!("libplugin{frame}.so")))
    });
    let more = [sampler.to_str().expect("a path in UTF-8"), "-ldl"];
    let compiler = Compiler::cxx().arg("-std=c++17");
    let mut command = Command::new(build(compiler, "exercise.cc", &more, &in_dir("exercise")));
    command.args(plugins);
    let (child, said) = start(command, &sampler, &file);
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
