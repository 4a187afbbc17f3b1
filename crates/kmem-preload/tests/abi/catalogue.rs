//! The catalogue of memory misuse, in each mode of the library. The table of `docs/misuse.md` says
//! how each case ends. That is the beginning of the first line on standard error, if SIGABRT ended
//! the program. It is the name of another signal, or the word of a program that was not ended.
//!
//! `KMEM_BLESS=1` writes the endings into the page. Then read the change of the page: a case that
//! becomes `missed` is a loss.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use kmem_testing::misuse::{Case, Ending, MODES, Mode, cases, malloc_of, run};
use kmem_testing::page::{cell, check};
use kmem_testing::{Outcome, SIGBUS, SIGSEGV, compile_once};

use crate::harness::{SIGABRT, is_not_kmem, library, no_cxx};

const PAGE: &str = "docs/misuse.md";

/// The one wrong free that cannot be told from a right one in the default mode, because the address
/// is that of a live block.
const FREE_OF_ANOTHERS_BLOCK: &str = "twice, its memory reused between";

/// The compiled program of a source in the catalogue.
pub(crate) fn program_of(source: &str) -> PathBuf {
    let case = cases().into_iter().find(|case| case.source == source);
    compiled(&case.unwrap_or_else(|| panic!("{source} has no case")))
}

fn compiled(case: &Case) -> PathBuf {
    compile_once(&case.program(), |path| {
        case.compiler().compile(path);
    })
}

/// A run of a case in a mode.
struct Ran {
    ending: Ending,
    /// The ending as the page has it.
    text: String,
    story: String,
}

/// Runs a case in a mode, and asserts what holds for all cases.
fn ran(case: &Case, mode: &Mode) -> Ran {
    let program = compiled(case);
    let library = library().expect("there is a library to test");
    let outcome =
        run(case, &program).env("LD_PRELOAD", &library).configured(mode.environment).run();
    let malloc = malloc_of(&outcome).and_then(|path| path.canonicalize().ok());
    assert_eq!(malloc, library.canonicalize().ok(), "{}", outcome.story());
    let ending = Ending::of(&outcome).unwrap_or_else(|story| panic!("{story}"));
    let text = match ending {
        Ending::Found => found(case, &outcome),
        Ending::Crash => signal(&outcome).to_owned(),
        Ending::Hang => panic!("{}", outcome.story()),
        _ => {
            assert!(outcome.stderr.is_empty(), "{}", outcome.story());
            ending.word().to_owned()
        }
    };
    Ran { ending, text, story: outcome.story() }
}

/// The kind of misuse that the first line on standard error names. In the line of a wrong free is
/// the address that the program announced. A write may damage another block than its own.
fn found(case: &Case, outcome: &Outcome) -> String {
    let by_hardware = outcome.signal() == Some(SIGSEGV);
    if !by_hardware {
        outcome.assert_signal(SIGABRT);
    }
    let line = outcome.stderr.lines().next().unwrap_or_default();
    let kind = line.strip_prefix("kmem: ").and_then(|text| text.split_once(": "));
    let (kind, _) = kind.unwrap_or_else(|| panic!("{line:?} names no kind: {}", outcome.story()));
    let mut announced = outcome.stdout.lines().skip(1);
    let names_address = announced.any(|address| line.contains(address));
    assert!(names_address || case.group == "write", "{}", outcome.story());
    format!("`{kind}`{}", if by_hardware { ", SIGSEGV" } else { "" })
}

fn signal(outcome: &Outcome) -> &'static str {
    match outcome.signal() {
        Some(SIGSEGV) => "SIGSEGV",
        Some(SIGBUS) => "SIGBUS",
        _ => panic!("neither SIGSEGV nor SIGBUS: {}", outcome.story()),
    }
}

/// Runs all cases in all modes, by as many threads as there are CPUs.
fn all(cases: &[Case]) -> Vec<[Ran; MODES.len()]> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let runs = MODES.each_ref().map(|mode| ran(case, mode));
            done.lock().unwrap_or_else(PoisonError::into_inner).push((case, runs));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |case: &Case| cases.iter().position(|other| other == case);
    done.sort_by_key(|(case, _)| place(case));
    done.into_iter().map(|(_, runs)| runs).collect()
}

/// The row of a case in the page.
fn row(case: &Case, runs: &[Ran; MODES.len()]) -> String {
    let mut row = format!("| {} | {} |", case.group, cell(&case.name));
    for run in runs {
        write!(row, " {} |", run.text).expect("a text can be written to");
    }
    row
}

fn heading(first: &str) -> String {
    let mut text = format!("| {first} |");
    for mode in &MODES {
        write!(text, " {} |", mode.name).expect("a text can be written to");
    }
    format!("{text}\n|{}", "---|".repeat(text.matches(" |").count()))
}

/// The count of each ending in each mode.
fn counts(all: &[[Ran; MODES.len()]]) -> String {
    let mut text = heading("ending") + "\n";
    for ending in Ending::ALL {
        let count = |mode: usize| all.iter().filter(|runs| runs[mode].ending == ending).count();
        let counts: Vec<usize> = (0..MODES.len()).map(count).collect();
        if counts.iter().any(|count| *count > 0) {
            let counts = counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" | ");
            writeln!(text, "| {} | {counts} |", ending.word()).expect("a text can be written to");
        }
    }
    text
}

/// The sentence of the security policy about the counts.
fn promise(all: &[[Ran; MODES.len()]]) -> String {
    let stops = |ending| matches!(ending, Ending::Found | Ending::Crash | Ending::Refused);
    let count = |mode: usize| all.iter().filter(|runs| stops(runs[mode].ending)).count();
    let [default, hardened, guard] = ["default", "hardened", "guard"]
        .map(|name| count(MODES.iter().position(|mode| mode.name == name).expect("a mode")));
    format!(
        "Of [{} kinds of misuse](docs/misuse.md), which the tests run, the default finds or \
         refuses {default},\n`hardened` {hardened} and `guard` {guard}.\n",
        all.len()
    )
}

/// Stories of the runs whose rows are not in the page. They are the message of a failure, because
/// a comparison of whole tables would hide the row that changed.
fn changed(cases: &[Case], all: &[[Ran; MODES.len()]]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = fs::read_to_string(path).expect("the page can be read");
    let mut text = String::new();
    for (case, runs) in cases.iter().zip(all) {
        let row = row(case, runs);
        if !page.lines().any(|line| line == row) {
            let stories: Vec<&str> = runs.iter().map(|run| &*run.story).collect();
            text.push_str(&format!("not in {PAGE}: {row}\n{}\n\n", stories.join("\n")));
        }
    }
    text
}

#[test]
fn every_kind_of_misuse_ends_as_the_page_says() {
    if is_not_kmem() || no_cxx() {
        return;
    }
    let cases = cases();
    let all = all(&cases);
    assert_eq!(all.len(), cases.len());
    for (case, runs) in cases.iter().zip(&all) {
        // The modes check more than the default, so they miss no wrong free that it finds.
        let is_free = ["free", "moment", "resize"].contains(&&*case.group);
        for run in runs.iter().filter(|_| is_free && case.name != FREE_OF_ANOTHERS_BLOCK) {
            let stopped = [Ending::Found, Ending::Crash, Ending::Refused].contains(&run.ending);
            assert!(stopped, "a wrong free went unnoticed: {}", run.story);
        }
        assert!(!is_free || runs[0].ending != Ending::Crash, "a crash: {}", runs[0].story);
    }
    let changed = changed(&cases, &all);
    let bless = std::env::var_os("KMEM_BLESS").is_some();
    assert!(changed.is_empty() || bless, "{changed}Run this with KMEM_BLESS=1.");
    let mut table = heading("group | case") + "\n";
    for (case, runs) in cases.iter().zip(&all) {
        writeln!(table, "{}", row(case, runs)).expect("a text can be written to");
    }
    check(PAGE, "endings", &table);
    check("docs/hardening.md", "endings", &counts(&all));
    check("SECURITY.md", "endings", &promise(&all));
}
