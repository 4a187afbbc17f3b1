//! The instruction counts of the fast paths against a file for each machine, as
//! `x86_64.golden`.
//!
//! A fast path ends a restartable section: the kernel's table of sections (`__rseq_cs`) says where
//! each one commits. The test looks at every commit that an exported function reaches. It finds the
//! shortest way from the function's first instruction to its return through that commit, and counts
//! the instructions. No program has to run, and the counts depend only on the compiler, not on the
//! machine: those of AArch64 are counted on x86-64, too. (The idea is tcmalloc's
//! `testing/fast_path.*.golden`.)
//!
//! `KMEM_BLESS=1` rewrites the file. A change of it belongs into the commit that causes it.

mod aarch64;
mod x86_64;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use kmem_testing::library;
use object::{Architecture, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable};

/// The exported functions whose fast paths are counted.
const FUNCTIONS: &[&str] = &[
    "malloc",
    "free",
    "_Znwm",
    "_ZdlPvm",
    "kmem_malloc_tag",
    "kmem_kmalloc_tag",
    "kmem_kfree",
    "kmem_cache_alloc_tag",
    "kmem_cache_free",
    "kmem_alloc_pages_tag",
    "kmem_free_pages",
];

/// Longest way that counts as a fast path, in instructions.
const LONGEST: usize = 110;
/// Calls within calls that a fast path may make.
const DEEPEST: usize = 3;

/// Where an instruction lets the program go on.
enum Flow {
    Next,
    Jump(u64),
    /// To the next instruction, or there.
    Branch(u64),
    Call(u64),
    /// Where the word at this address points to, which the dynamic linker sets.
    Bound(u64),
    Return,
    /// Where no fast path goes on.
    End,
}

/// An instruction: where it goes, and the address behind it.
struct Step {
    flow: Flow,
    next: u64,
}

/// Decodes the instruction at an offset of code that lies at an address.
type Decode = fn(code: &[u8], offset: usize, address: u64) -> Step;

/// A loaded image of the library.
struct Image {
    /// The name of its machine.
    machine: &'static str,
    decode: Decode,
    /// Address and bytes of each executable section.
    code: Vec<(u64, Vec<u8>)>,
    /// Addresses at which sections commit.
    commits: Vec<u64>,
    symbols: HashMap<String, u64>,
    /// Addresses of the words that the dynamic linker binds to functions of the library, unless
    /// the program has its own.
    bound: HashMap<u64, u64>,
}

impl Image {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let (machine, decode): (_, Decode) = match file.architecture() {
            Architecture::X86_64 => ("x86_64", x86_64::decode),
            Architecture::Aarch64 => ("aarch64", aarch64::decode),
            other => panic!("{}: no instructions of {other:?} are known", path.display()),
        };
        let code = file
            .sections()
            .filter(|section| section.kind() == object::SectionKind::Text)
            .map(|section| (section.address(), section.data().expect("its bytes").to_vec()))
            .collect();
        let symbols = file
            .dynamic_symbols()
            .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
            .collect();
        let table = file.dynamic_symbol_table().expect("dynamic symbols");
        let bound = file
            .dynamic_relocations()
            .into_iter()
            .flatten()
            .filter_map(|(at, relocation)| match relocation.target() {
                object::RelocationTarget::Symbol(index) => {
                    Some((at, table.symbol_by_index(index).ok()?.address()))
                }
                _ => None,
            })
            .collect();
        Self { machine, decode, code, commits: commits(&file), symbols, bound }
    }

    fn instruction(&self, at: u64) -> Option<Step> {
        let (start, bytes) = self
            .code
            .iter()
            .find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&at))?;
        Some((self.decode)(bytes, (at - start) as usize, *start))
    }
}

/// Where the restartable sections commit: `start_ip + post_commit_offset` of each `struct rseq_cs`.
/// The addresses are relocated, so they come from the relocations.
fn commits(file: &object::File<'_>) -> Vec<u64> {
    let section = file.section_by_name("__rseq_cs").expect("a table of restartable sections");
    let data = section.data().expect("its bytes");
    let starts: BTreeMap<u64, u64> = file
        .dynamic_relocations()
        .into_iter()
        .flatten()
        .map(|(at, relocation)| (at, relocation.addend() as u64))
        .collect();
    (0..data.len() / 32)
        .map(|entry| {
            let at = section.address() + entry as u64 * 32 + 8;
            let length = &data[entry * 32 + 16..entry * 32 + 24];
            let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
            starts.get(&at).expect("a relocated start") + length
        })
        .collect()
}

/// Where a way has come to: the instruction, the returns that are due, the commit it passed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    at: u64,
    returns: Vec<u64>,
    committed: Option<u64>,
}

/// Lengths of the shortest ways through each commit, in ascending order.
fn ways(image: &Image, function: u64) -> Vec<usize> {
    let mut shortest: BTreeMap<u64, usize> = BTreeMap::new();
    let mut seen = HashMap::new();
    let first = Place { at: function, returns: Vec::new(), committed: None };
    let mut queue = VecDeque::from([(first, 0)]);
    while let Some((mut place, length)) = queue.pop_front() {
        if length >= LONGEST || seen.insert(place.clone(), length).is_some() {
            continue;
        }
        let Some(Step { flow, next }) = image.instruction(place.at) else { continue };
        let mut committed = place.committed;
        // The store before the end of a section commits. A jump to that end leaves a section.
        if matches!(flow, Flow::Next) && image.commits.contains(&next) {
            if committed.is_some_and(|other| other != next) {
                continue;
            }
            committed = Some(next);
        }
        let mut go = |at: u64, returns: Vec<u64>| {
            queue.push_back((Place { at, returns, committed }, length + 1));
        };
        match flow {
            Flow::Next => go(next, place.returns),
            Flow::Jump(to) => go(to, place.returns),
            Flow::Branch(to) => {
                go(to, place.returns.clone());
                go(next, place.returns);
            }
            Flow::Bound(word) => {
                if let Some(to) = image.bound.get(&word) {
                    go(*to, place.returns);
                }
            }
            Flow::Call(to) if place.returns.len() < DEEPEST => {
                let mut returns = place.returns;
                returns.push(next);
                go(to, returns);
            }
            Flow::Return => match place.returns.pop() {
                Some(back) => go(back, place.returns),
                None => {
                    if let Some(commit) = place.committed {
                        // Breadth first: the first one is the shortest.
                        shortest.entry(commit).or_insert(length + 1);
                    }
                }
            },
            Flow::Call(_) | Flow::End => {}
        }
    }
    let mut lengths: Vec<usize> = shortest.into_values().collect();
    lengths.sort_unstable();
    lengths
}

fn library_under_test() -> PathBuf {
    PathBuf::from(library::named().expect("KMEM_TEST_LIBRARY names a release build of libkmem.so"))
}

/// The compiler that the counts are of: another one may count differently.
fn compiler() -> String {
    let output = std::process::Command::new("rustc").arg("--version").output();
    let text = String::from_utf8(output.expect("rustc runs").stdout).expect("a version");
    text.split_whitespace().nth(1).expect("a number").to_owned()
}

#[test]
#[ignore = "needs a release build: KMEM_TEST_LIBRARY=target/release/libkmem.so"]
fn instruction_counts_of_fast_paths_are_as_checked_in() {
    let image = Image::read(&library_under_test());
    let mut text = format!("rustc {}\n", compiler());
    for name in FUNCTIONS {
        let lengths = ways(&image, image.symbols[*name]);
        assert!(!lengths.is_empty(), "{name} has no fast path");
        let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
        text.push_str(&format!("{name}: {}\n", lengths.join(" ")));
    }
    let golden = format!("tests/fast_paths/{}.golden", image.machine);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
    if std::env::var_os("KMEM_BLESS").is_some() {
        std::fs::write(&golden, text).expect("a writable file");
        return;
    }
    let known = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(
        text == known,
        "the fast paths changed.\nchecked in:\n{known}\nnow:\n{text}\n\
         If that is meant, run the test with KMEM_BLESS=1 and commit the file."
    );
}
