//! The command on a real program with groups, against the program's own counts.

mod mount;
#[path = "../program/mod.rs"]
mod program;
#[path = "../formats/readers.rs"]
mod readers;
mod tenants;
mod views;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use program::{KMEM, Program, text};
use serde_json::{Value, json};

/// Not a test: the program that the others read.
#[test]
#[ignore = "started by the other tests"]
fn tenants_target() {
    tenants::target();
}

/// Path and numbers of each group, by the process itself: current, own, reserved, cached, peak,
/// max, high, and the events low, high, max, oom.
fn said(program: &mut Program) -> Vec<(String, [u64; 11])> {
    let parse = |line: String| {
        let mut fields = line.splitn(12, ' ');
        let numbers = std::array::from_fn(|_| fields.next().unwrap().parse().unwrap());
        (
            serde_json::from_str(&fields.next().unwrap().replace("\\u{1b}", "\\u001b")).unwrap(),
            numbers,
        )
    };
    program.tell(b's').into_iter().map(parse).collect()
}

fn group(program: &Program, args: &[&str]) -> Output {
    program.kmem(&[&["group"], args].concat())
}

/// Output of the command, which must succeed.
fn prints(output: &Output) -> String {
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    text(&output.stdout)
}

fn refused(output: &Output, code: i32, what: &str) {
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{errors}");
    assert!(errors.contains(what), "{errors}");
}

fn limit(bytes: u64) -> Value {
    if bytes == u64::MAX { Value::Null } else { bytes.into() }
}

#[test]
fn the_tree_is_what_the_process_says_of_its_groups() {
    let mut program = tenants::start();
    for deleted in [false, true] {
        if deleted {
            program.tell(b'd');
        }
        let said = said(&mut program);
        let json = program.json(&["group", "ls", "--json"]);
        let groups = json["copies"][0]["groups"].as_array().unwrap();
        assert_eq!(groups.len(), said.len());
        assert_eq!(said.len(), if deleted { 6 } else { 7 });
        for (group, (path, numbers)) in groups.iter().zip(&said) {
            let [current, own, _, cached, peak, max, high, ..] = *numbers;
            assert_eq!(group["group"], *path);
            assert_eq!(group["current"], current, "{path}");
            assert_eq!(group["cached"], cached, "{path}");
            if path != "/" {
                assert_eq!(group["peak"], peak, "{path}");
                assert_eq!((&group["max"], &group["high"]), (&limit(max), &limit(high)), "{path}");
            }
            // Objects of the deleted `b` are its parent's own.
            let inherited = if deleted && path == "/tenants" { 300 * 1028 + 200 * 116 } else { 0 };
            assert_eq!(group["own"], own + inherited, "{path}");
        }
        let sum: u64 = groups.iter().map(|group| group["own"].as_u64().unwrap()).sum();
        assert_eq!(groups[0]["current"], sum);
    }
    let table = prints(&group(&program, &["ls"]));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "   CURRENT       PEAK       MAX       HIGH        OWN   OBJECTS  GROUP"
            .replace("MAX ", " MAX ")
    );
    let ends = [
        "  /",
        "    batch",
        "      evil\\x1b[2J\\x0a x;y",
        "    tenants",
        "      a",
        "      reserved",
    ];
    for (line, end) in lines[1..].iter().zip(ends) {
        assert!(line.ends_with(end), "{table}");
    }
    assert_eq!(lines.len(), 7, "{table}");
    assert!(lines[4].contains("   64.0 MiB        max "), "{table}");
    assert!(lines[1].contains("          -          -          - "), "{table}");
}

#[test]
fn files_are_those_of_a_cgroup() {
    let mut program = tenants::start();
    let said = said(&mut program);
    let of = |path: &str| said.iter().find(|(other, _)| other == path).unwrap().1;
    let show = |args: &[&str]| prints(&group(&program, &[&["show"], args].concat()));
    let [current, .., peak, _, _, _, _, _, _] = of("/tenants/a");
    assert_eq!(show(&["/tenants/a", "memory.current"]), format!("{current}\n"));
    assert_eq!(current, 1000 * 1028 + tenants::PAGES / 4096 * 4100);
    assert_eq!(show(&["tenants/a/", "memory.peak"]), format!("{peak}\n"));
    assert_eq!(show(&["/tenants/a", "memory.max"]), "max\n");
    assert_eq!(show(&["/tenants", "memory.max"]), "67108864\n");
    assert_eq!(show(&["/tenants", "memory.low"]), "0\n");
    assert_eq!(show(&["/tenants", "memory.events"]), "low 0\nhigh 0\nmax 0\noom 0\n");
    let [current, _, _, cached, ..] = of("/tenants");
    let stat = format!(
        "slab {}\npages {}\nvmalloc 0\npercpu 0\nmetadata {}\nreserved 1048576\ncached {cached}\n",
        1300 * 1024 + 200 * 112,
        tenants::PAGES,
        1500 * 4 + tenants::PAGES / 4096 * 4,
    );
    assert_eq!(show(&["/tenants", "memory.stat"]), stat);
    let sum = stat.lines().take(6).map(|l| l.split_once(' ').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(sum.sum::<u64>(), current);
    // Several files are printed as grep prints them.
    assert_eq!(
        show(&["/tenants", "memory.high", "memory.max"]),
        "memory.high:max\nmemory.max:67108864\n"
    );
    let all = show(&["/tenants"]);
    for name in ["current", "peak", "low", "high", "max", "events", "stat"] {
        assert!(all.contains(&format!("memory.{name}:")), "{all}");
    }
    let all = program.json(&["group", "show", "/tenants", "--json"]);
    assert_eq!(
        (&all["memory.high"], &all["memory.stat"]["reserved"]),
        (&Value::Null, &json!(1 << 20))
    );
    // As in cgroup v2, the root has no limits.
    let root = show(&["/"]);
    assert!(root.starts_with(&format!("memory.current:{}\n", of("/")[0])), "{root}");
    assert!(!root.contains("memory.max") && root.contains("memory.stat:slab "), "{root}");
    refused(&group(&program, &["show", "/", "memory.max"]), 3, "which has no memory.max");
    refused(&group(&program, &["show", "/tenants/c"]), 3, "has no group /tenants/c");
    refused(&group(&program, &["show", "/tenants", "memory.swap"]), 2, "memory.swap");
}

#[test]
fn a_limit_that_is_set_from_outside_holds_from_the_next_charge_on() {
    let mut program = tenants::start();
    let set = |program: &Program, args: &[&str]| group(program, &[&["set"], args].concat());
    let of = |program: &mut Program, path: &str| {
        said(program).into_iter().find(|(other, _)| other == path).unwrap().1
    };
    let before = of(&mut program, "/tenants/a")[0];
    let limits = ["memory.max=8M", "memory.high=7M", "memory.low=1K"];
    assert_eq!(prints(&set(&program, &[&["/tenants/a"], &limits[..]].concat())), "");
    let shown = prints(&group(&program, &["show", "/tenants/a", "memory.low"]));
    assert_eq!(shown, "1024\n");
    assert_eq!(of(&mut program, "/tenants/a")[5..7], [8 << 20, 7 << 20]);
    assert_eq!(of(&mut program, "/tenants/b")[5..7], [u64::MAX; 2]);
    let granted: u64 = program.tell(b'f')[0].parse().unwrap();
    let [current, _, _, _, peak, _, _, low, high, max, oom] = of(&mut program, "/tenants/a");
    assert_eq!(current, before + granted * 1028);
    assert!(current + 1028 > 8 << 20 && peak <= 8 << 20, "{current} {peak}");
    assert!(low == 0 && high > 0 && max > 0 && oom > 0, "{low} {high} {max} {oom}");
    assert_eq!(
        prints(&group(&program, &["show", "/tenants/a", "memory.events"])),
        format!("low {low}\nhigh {high}\nmax {max}\noom {oom}\n")
    );
    // Without a limit of its own, that of its parent holds.
    prints(&set(&program, &["/tenants/a", "memory.max=max", "memory.high=max"]));
    program.tell(b'f');
    assert!(of(&mut program, "/tenants/a")[0] > 50 << 20);
    assert!(of(&mut program, "/tenants")[0] <= 64 << 20);

    let before = said(&mut program);
    refused(&set(&program, &["/", "memory.max=1M"]), 4, "operation not permitted");
    refused(&set(&program, &["/tenants/c", "memory.max=1M"]), 3, "has no group /tenants/c");
    refused(&set(&program, &["/tenants/a", "memory.max=lots"]), 2, "\"lots\" is not a size");
    refused(&set(&program, &["/tenants/a", "memory.peak=0"]), 2, "can be read, not written");
    refused(&set(&program, &["/tenants/a"]), 2, "FILE=SIZE");
    assert_eq!(said(&mut program), before);
    let gone = ["group", "set", "-p", "2147483632", "/tenants/a", "memory.max=1"];
    let output = Command::new(KMEM).args(gone).output().unwrap();
    refused(&output, 3, "no process 2147483632");
    // A deleted group has no path.
    program.tell(b'd');
    refused(&set(&program, &["/tenants/b", "memory.max=1M"]), 3, "has no group /tenants/b");
}

/// Runs the command while the program allocates now and then.
fn group_while_it_allocates(program: &mut Program, args: &[&str]) -> Output {
    let pid = program.pid().to_string();
    let mut command = Command::new(KMEM);
    let command = command.args(["group"]).args(args).args(["-p", &pid]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        program.tell(b'm');
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_group_that_is_made_from_outside_is_found_by_its_path_and_has_its_limits() {
    let mut program = tenants::start();
    let create = ["create", "/tenants/made", "memory.max=1M", "memory.low=4K"];
    // A process that allocates nothing stays as it is.
    let before = said(&mut program);
    let idle = group(&program, &[&create[..], &["--wait", "20ms"]].concat());
    refused(&idle, 2, "allocated nothing for 20ms, so nothing has changed");
    program.tell(b'm');
    assert_eq!(said(&mut program).len(), before.len());

    assert_eq!(prints(&group_while_it_allocates(&mut program, &create)), "");
    let said_of = |program: &mut Program, path: &str| {
        said(program).into_iter().find(|(other, _)| other == path).map(|(_, numbers)| numbers)
    };
    let [current, _, _, _, _, max, high, ..] = said_of(&mut program, "/tenants/made").unwrap();
    assert_eq!((current, max, high), (0, 1 << 20, u64::MAX));
    let shown = prints(&group(&program, &["show", "/tenants/made", "memory.low"]));
    assert_eq!(shown, "4096\n");
    // The program finds it, and the limit holds.
    let granted: u64 = program.tell(b'o')[0].parse().unwrap();
    assert_eq!(granted, (1 << 20) / 1028);
    let shown = prints(&group(&program, &["show", "/tenants/made", "memory.current"]));
    assert_eq!(shown, format!("{}\n", granted * 1028));

    let mut refuses = |args: &[&str], code, what| {
        refused(&group_while_it_allocates(&mut program, args), code, what);
    };
    refuses(&create, 2, "/tenants/made: there is a group of that name");
    refuses(&["create", "/nowhere/a"], 3, "has no group /nowhere");
    refuses(&["create", "/tenants/.."], 2, "not a name for a group");
    refuses(&["create", "/"], 2, "has no name");
    refuses(&["create", "/a", "memory.peak=1"], 2, "can be read, not written");
    refuses(&["rm", "/"], 4, "operation not permitted");
    refuses(&["rm", "/nowhere"], 3, "has no group /nowhere");
    refuses(&["rm", "/tenants"], 2, "/tenants: there are groups below it");

    // The parent pays for memory of a deleted group.
    let of_parent = said_of(&mut program, "/tenants").unwrap()[0];
    assert_eq!(prints(&group_while_it_allocates(&mut program, &["rm", "/tenants/made"])), "");
    assert_eq!(said_of(&mut program, "/tenants/made"), None);
    assert_eq!(said_of(&mut program, "/tenants").unwrap()[0], of_parent);
}

#[test]
fn the_first_group_of_a_process_can_be_made_from_outside() {
    let mut program = Program::start("steady", &[], &[], "");
    let create = ["create", "/first", "memory.max=1M"];
    assert_eq!(prints(&group_while_it_allocates(&mut program, &create)), "");
    assert_eq!(prints(&group(&program, &["show", "/first", "memory.max"])), "1048576\n");
}

#[test]
fn writers_that_make_groups_at_once_take_turns() {
    let mut program = tenants::start();
    let pid = program.pid().to_string();
    let mut writers: Vec<_> = (0..8)
        .map(|i| {
            let path = format!("/batch/{i}");
            Command::new(KMEM).args(["group", "create", "-p", &pid, &path]).spawn().unwrap()
        })
        .collect();
    while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
        program.tell(b'm');
    }
    assert!(writers.iter_mut().all(|writer| writer.wait().unwrap().success()));
    let made = said(&mut program).into_iter().filter(|(path, _)| {
        path.strip_prefix("/batch/").is_some_and(|name| name.parse::<u32>().is_ok())
    });
    assert_eq!(made.count(), 8);
}

#[test]
fn a_black_box_says_the_same_of_a_process_that_was_killed() {
    let mut program = tenants::start_with("blackbox:box");
    let groups = |json: Value| json["copies"][0]["groups"].clone();
    let mut alive = Value::Null;
    // Of several records, written into both slots, the last one counts.
    for command in [b'r', b'r', b'd', b'r'] {
        program.tell(command);
        alive = groups(program.json(&["group", "ls", "--json"]));
    }
    let files = prints(&group(&program, &["show", "/tenants"]));
    program.kill();
    let dead = |args: &[&str]| {
        let path = program.dir.path().join("box");
        Command::new(KMEM).args(["group"]).args(args).arg("--blackbox").arg(path).output().unwrap()
    };
    let output = dead(&["ls", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(groups(serde_json::from_slice(&output.stdout).unwrap()), alive);
    assert_eq!(alive.as_array().unwrap().len(), 6);
    assert!(text(&output.stderr).contains("exit of process"), "{}", text(&output.stderr));
    assert_eq!(text(&dead(&["show", "/tenants"]).stdout), files);
    refused(&dead(&["set", "/tenants", "memory.max=1M"]), 2, "--blackbox");
}

#[test]
fn a_core_says_the_same_and_cannot_be_written() {
    let mut program = tenants::start();
    program.tell(b'd');
    let views = [
        &["group", "ls"][..],
        &["group", "ls", "--json"],
        &["group", "show", "/tenants"],
        &["slabinfo"],
        &["slabinfo", "--group", "/tenants"],
        &["dump", "--group", "/tenants"],
        &["dump", "--by", "group,site"],
        &["dump", "--by", "group,site", "--format", "folded"],
    ];
    let before = views.map(|args| text(&program.kmem(args).stdout));
    let Some(core) = program.die(b'a') else { return };
    let run = |args: &[&str], core: &Path| {
        Command::new(KMEM).args(args).arg("--core").arg(core).output().unwrap()
    };
    for (args, before) in views.iter().zip(before) {
        let output = run(args, &core);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), before, "{args:?}");
    }
    let output = run(&["group", "set", "/tenants", "memory.max=1M"], &core);
    refused(&output, 2, "a core file cannot be written");
}
