//! The profiling switch of a real program under the real libkmem.so, written from outside.

mod program;

use std::process::{Command, Output};

use program::{KMEM, Program};
use serde_json::Value;

/// A round: 1000 objects of the 112-byte class.
const ROUND: (i64, u64) = (112_000, 1000);

/// A program that allocates and frees a round on each byte of input.
struct Rounds(Program);

impl Rounds {
    fn start(conf: &str) -> Self {
        Self(Program::start("rounds", &[], &[], conf))
    }

    fn tell(&mut self, command: u8) {
        self.0.tell(command);
    }

    fn kmem(&self, args: &[&str]) -> Output {
        self.0.kmem(args)
    }

    /// Output of `kmem sysctl`, which must succeed.
    fn sysctl(&self, args: &[&str]) -> String {
        let output = self.kmem(&[&["sysctl"], args].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.as_str()), (Some(0), ""));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Bytes and objects of the rounds' call site, of untagged memory, and of all rows.
    fn books(&self) -> [(i64, u64); 3] {
        let json = self.0.json(&["dump", "--json", "--no-mmap"]);
        let rows = json["rows"].as_array().unwrap();
        let sum = |wanted: &dyn Fn(&Value) -> bool| {
            rows.iter().filter(|row| wanted(row)).fold((0, 0), |(bytes, calls), row| {
                // A negative count of objects would not parse as a u64.
                let (b, c) = (row["bytes"].as_i64().unwrap(), row["calls"].as_u64().unwrap());
                assert!(b >= 0, "{row}");
                (bytes + b, calls + c)
            })
        };
        let all = sum(&|_| true);
        assert_eq!(json["accounting"]["tracked"], all.0);
        [sum(&|row| row["function"] == "allocate"), sum(&|row| row["kind"] == "not_tagged"), all]
    }
}

fn times(rounds: i64) -> (i64, u64) {
    (ROUND.0 * rounds, ROUND.1 * rounds as u64)
}

#[test]
fn objects_of_rounds_while_the_switch_is_off_are_not_tagged() {
    let mut program = Rounds::start("");
    let [tagged, untagged, base] = program.books();
    assert_eq!((tagged, untagged), ((0, 0), (0, 0)));
    let expect = |program: &Rounds, tagged, untagged| {
        let (on, off) = (times(tagged), times(untagged));
        let all = (base.0 + on.0 + off.0, base.1 + on.1 + off.1);
        assert_eq!(program.books(), [on, off, all]);
    };
    assert_eq!(program.sysctl(&[]), "vm.mem_profiling = 1\n");
    program.tell(b'a');
    expect(&program, 1, 0);

    assert_eq!(program.sysctl(&["vm.mem_profiling=0"]), "vm.mem_profiling = 0\n");
    assert_eq!(program.sysctl(&["vm.mem_profiling"]), "vm.mem_profiling = 0\n");
    expect(&program, 1, 0);
    program.tell(b'a');
    expect(&program, 1, 1);
    program.tell(b'a');
    expect(&program, 1, 2);
    // Tagged objects are freed while the switch is off.
    program.tell(b'f');
    expect(&program, 0, 2);

    assert_eq!(program.sysctl(&["vm/mem_profiling=1"]), "vm.mem_profiling = 1\n");
    program.tell(b'a');
    expect(&program, 1, 2);
    // Untagged objects are freed while the switch is on.
    program.tell(b'f');
    program.tell(b'a');
    expect(&program, 2, 1);
    // One command writes both values, and the last one counts.
    program.sysctl(&["vm.mem_profiling=0", "vm.mem_profiling=1", "vm.mem_profiling=0"]);
    program.tell(b'a');
    expect(&program, 2, 2);
    program.sysctl(&["vm.mem_profiling=0", "vm.mem_profiling=1"]);
    program.tell(b'a');
    expect(&program, 3, 2);
    (0..5).for_each(|_| program.tell(b'f'));
    expect(&program, 0, 0);
}

#[test]
fn a_program_switches_itself_and_the_last_switch_from_inside_or_outside_counts() {
    let mut program = Rounds::start("");
    program.tell(b'0');
    assert_eq!(program.sysctl(&[]), "vm.mem_profiling = 0\n");
    program.tell(b'a');
    assert_eq!(program.books()[..2], [times(0), times(1)]);
    program.tell(b'1');
    assert_eq!(program.sysctl(&[]), "vm.mem_profiling = 1\n");
    program.tell(b'a');
    assert_eq!(program.books()[..2], [times(1), times(1)]);
    program.sysctl(&["vm.mem_profiling=0"]);
    program.tell(b'a');
    assert_eq!(program.books()[..2], [times(1), times(2)]);
    program.tell(b'1');
    program.tell(b'a');
    (0..4).for_each(|_| program.tell(b'f'));
    assert_eq!(program.books()[..2], [times(0), times(0)]);
}

#[test]
fn a_program_without_books_has_no_switch() {
    Rounds::start("mem_profiling:never").tell(b'?');
}

#[test]
fn a_program_that_was_started_with_the_switch_off_can_be_looked_at_later() {
    let mut program = Rounds::start("mem_profiling:0");
    assert_eq!(program.sysctl(&[]), "vm.mem_profiling = 0\n");
    program.tell(b'a');
    let [tagged, before, _] = program.books();
    assert_eq!(tagged, (0, 0));
    program.sysctl(&["vm.mem_profiling=1"]);
    program.tell(b'a');
    let [tagged, untagged, _] = program.books();
    assert_eq!((tagged, untagged), (ROUND, before));
}

#[test]
fn never_cannot_be_changed_in_either_direction() {
    let refused = |program: &Rounds, setting: &str, what: &str| {
        let output = program.kmem(&["sysctl", setting]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{text}");
        assert!(text.contains(what), "{text}");
    };
    let never = Rounds::start("mem_profiling:never");
    assert_eq!(never.sysctl(&[]), "vm.mem_profiling = never\n");
    for setting in ["vm.mem_profiling=0", "vm.mem_profiling=1"] {
        refused(
            &never,
            setting,
            "is `never` (KMEM_CONF=mem_profiling:never) and cannot be changed",
        );
    }
    assert_eq!(never.sysctl(&["vm.mem_profiling"]), "vm.mem_profiling = never\n");
    let on = Rounds::start("");
    refused(&on, "vm.mem_profiling=never", "can only be chosen when a process starts");
    refused(&on, "vm.mem_profiling=2", "\"2\" is not 0 or 1");
    refused(&on, "vm.swappiness", "unknown name");
    assert_eq!(on.sysctl(&[]), "vm.mem_profiling = 1\n");
}

#[test]
fn absent_processes_and_programs_without_kmem_are_told() {
    let run = |pid: u32| {
        let args = ["sysctl", "-p", &pid.to_string(), "vm.mem_profiling=0"];
        Command::new(KMEM).args(args).output().unwrap()
    };
    let output = run(std::process::id());
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("runs without kmem"));
    assert_eq!(run(0x7fff_fff0).status.code(), Some(3));
}
