//! Callers that cannot be found: stacks and tables of frames that are wrong. The walk over them
//! must not end the program.

use crate::harness::{Environment, Run, must_work_in, program, shared_library};
use kmem_testing::directory;
use object::{Object as _, ObjectSection as _};

/// Configurations in which each allocation asks for its callers.
const DEEP: &[(&str, Environment)] = &[
    ("depth 8", &[("KMEM_CONF", "depth:8")]),
    ("depth 32", &[("KMEM_CONF", "depth:32")]),
    ("depth 8 by copies of the stack", &[("KMEM_CONF", "depth:8,rseq:off")]),
];
/// Damaged copies of a library.
const COPIES: usize = 200;

fn must_work_deep(path: &std::path::Path, arguments: &[&str]) {
    must_work_in(DEEP, || Run::new(path).args(arguments));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn frames_that_lead_nowhere_are_harmless() {
    must_work_deep(&program("hostile_frames.c"), &[]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_hole_between_the_stacks_of_a_thread_and_its_coroutine_is_harmless() {
    must_work_deep(&program("hostile_frames.c"), &["holes"]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn chains_of_callers_take_no_system_call_on_another_thread() {
    must_work_deep(&program("quiet_calls.c"), &[]);
}

/// Random numbers, the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn damaged_tables_of_frames_are_harmless() {
    let dir = directory();
    let library = std::fs::read(shared_library("several_frames.c")).expect("the library");
    let file = object::File::parse(&*library).expect("an ELF file");
    let ranges: Vec<_> = [".eh_frame_hdr", ".eh_frame"]
        .iter()
        .filter_map(|name| file.section_by_name(name)?.file_range())
        .map(|(offset, len)| offset as usize..(offset + len) as usize)
        .collect();
    assert_eq!(ranges.len(), 2, "both tables");
    let mut random = Random(1);
    let copies: Vec<String> = (0..COPIES)
        .map(|number| {
            let mut damaged = library.clone();
            let range = &ranges[number % 2];
            for _ in 0..=number % 8 {
                let at = range.start + random.below(range.len());
                damaged[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => damaged[at] ^ 1 << random.below(8),
                    _ => random.below(256) as u8,
                };
            }
            let path = dir.path().join(format!("libdamaged{number}.so"));
            std::fs::write(&path, damaged).expect("a copy");
            path.to_str().expect("a path in UTF-8").to_owned()
        })
        .collect();
    let copies: Vec<&str> = copies.iter().map(String::as_str).collect();
    must_work_deep(&program("damaged_tables.c"), &copies);
}
