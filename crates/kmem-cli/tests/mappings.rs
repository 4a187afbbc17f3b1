//! Memory outside of the heap, such as that which a program maps itself, in the reports of the
//! command.

mod program;

use std::path::Path;
use std::process::Command;

use kmem_testing::{Coprocess, is_missing, not_run, this_test};
use program::{KMEM, Program, compile, directory, json, preload, text};
use serde_json::Value;
use tempfile::TempDir;

const SOURCE: &str = include_str!("programs/mappings.c");
const PAGE: i64 = 4096;

fn line_of(mark: &str) -> i64 {
    line_in(SOURCE, mark)
}

fn line_in(source: &str, mark: &str) -> i64 {
    let mark = format!("/* {mark} */");
    source.lines().position(|line| line.contains(&mark)).unwrap() as i64 + 1
}

/// Starts a program under the library, and waits until it is ready. Also returns its answers.
fn start(mut command: Command, dir: &Path) -> (Coprocess, Vec<String>) {
    preload(&mut command, "", dir);
    let mut process = Coprocess::start(&mut command);
    let answers = process.wait_for("ready");
    (process, answers)
}

/// Starts the program that maps memory in every way. Also returns the pid of its child.
fn mappings() -> (TempDir, Coprocess, u32) {
    let dir = directory();
    let mut command = Command::new(compile("mappings", &[], dir.path()));
    command.arg(dir.path().join("file"));
    let (process, answers) = start(command, dir.path());
    let child = answers[0].parse().unwrap();
    (dir, process, child)
}

fn dump(pid: u32, args: &[&str]) -> Value {
    json(Command::new(KMEM).args(["dump", "--json", "-p", &pid.to_string()]).args(args))
}

fn number(row: &Value, field: &str) -> i64 {
    row[field].as_i64().unwrap_or_else(|| panic!("{field}: {row}"))
}

/// Rows of mapped memory.
fn mapped(dump: &Value) -> Vec<&Value> {
    dump["rows"].as_array().unwrap().iter().filter(|row| row["mapped"].is_i64()).collect()
}

/// Resident and mapped pages, and ranges, of the rows that are chosen.
fn pages(dump: &Value, chosen: impl Fn(&Value) -> bool) -> [i64; 3] {
    let rows = mapped(dump).into_iter().filter(|row| chosen(row));
    rows.fold([0; 3], |[resident, mapped, ranges], row| {
        let more = [number(row, "bytes") / PAGE, number(row, "mapped") / PAGE];
        [resident + more[0], mapped + more[1], ranges + number(row, "calls")]
    })
}

/// The same, of the call on the line with a mark.
fn call(dump: &Value, mark: &str) -> [i64; 3] {
    let line = line_of(mark);
    pages(dump, |row| row["kind"] == "mapping" && row["line"] == line)
}

fn of_kind(dump: &Value, kind: &str, function: &str) -> [i64; 3] {
    pages(dump, |row| row["kind"] == kind && row["function"] == function)
}

/// Checks that the equation and its parts are exact, and that little has no name.
fn balances(dump: &Value) {
    let accounting = &dump["accounting"];
    let of = |name: &str| accounting[name].as_i64().unwrap_or(0);
    let part = |name: &str| number(&accounting["parts"], name);
    let heap = of("tracked") + of("cached") + of("overhead") - of("untouched") - of("swapped");
    assert_eq!(heap + of("unaccounted"), of("resident"), "{accounting}");
    let named = part("mappings") + part("stacks") + part("code") + part("files");
    assert_eq!(named + part("other"), of("unaccounted"), "{accounting}");
    assert!((0..=64 << 10).contains(&part("other")), "{accounting}");
    assert!(of("page_tables") > 0, "{accounting}");
    let rows: i64 = mapped(dump).iter().map(|row| number(row, "bytes")).sum();
    assert_eq!(rows, named, "{accounting}");
}

#[test]
fn memory_that_the_program_maps_is_a_row_of_the_caller() {
    let (_dir, process, child) = mappings();
    let dump = dump(process.pid(), &[]);
    // Two calls over parts of an older mapping, merged by the kernel.
    assert_eq!(call(&dump, "reserve"), [0, 940, 2]);
    assert_eq!(call(&dump, "left"), [30, 40, 1]);
    assert_eq!(call(&dump, "right"), [7, 20, 1]);
    assert_eq!(call(&dump, "holes"), [65, 65, 2]);
    assert_eq!(call(&dump, "small"), [0; 3]);
    assert_eq!(call(&dump, "grow"), [50, 64, 1]);
    assert_eq!(call(&dump, "kept"), [11, 11, 1]);
    assert_eq!(call(&dump, "shared"), [9, 12, 1]);
    assert_eq!(call(&dump, "segment"), [5, 16, 1]);
    assert_eq!(call(&dump, "data_segment"), [20, 20, 1]);
    let calls = pages(&dump, |row| row["kind"] == "mapping");
    assert_eq!(calls[..2], [197, 1188]);

    let file = |row: &Value| {
        row["kind"] == "file" && row["file"].as_str().unwrap_or_default().ends_with("/file")
    };
    assert_eq!(pages(&dump, file), [6, 24, 1]);
    // Anonymous memory of the system call that kmem does not see, and of the loader.
    let [resident, size, _] = of_kind(&dump, "anonymous", "anonymous_mappings");
    assert!((0..8).contains(&resident) && (50..70).contains(&size), "{dump}");
    let [resident, _, stacks] = of_kind(&dump, "stack", "thread_stacks");
    assert!(stacks == 3 && resident >= 3 * 64, "{dump}");
    assert!(of_kind(&dump, "stack", "stack")[0] > 0);
    let code = |name: &'static str| {
        move |row: &Value| {
            row["kind"] == "code" && row["file"].as_str().unwrap_or_default().contains(name)
        }
    };
    for name in ["/libc.so", "/libkmem.so", "/mappings"] {
        assert!(pages(&dump, code(name))[0] > 0, "{name}: {dump}");
    }
    balances(&dump);

    // The child inherits the table of its parent.
    let dump = self::dump(child, &[]);
    assert_eq!(call(&dump, "left"), [60, 80, 2]);
    assert_eq!(call(&dump, "reserve"), [0, 900, 3]);
    assert_eq!(call(&dump, "holes"), [65, 65, 2]);
    balances(&dump);
}

#[test]
fn mapped_memory_is_shown_beside_the_resident_part_and_can_be_left_out() {
    let (_dir, process, _) = mappings();
    let pid = process.pid().to_string();
    let run = |args: &[&str]| {
        let output = Command::new(KMEM).args(args).args(["-p", &pid]).output().unwrap();
        (text(&output.stdout), text(&output.stderr))
    };
    let (rows, account) = run(&["dump"]);
    let line = format!("{:12} {:8} ", 30 * PAGE, 1);
    let end = format!("mappings.c:{} func:left mapped:{} ", line_of("left"), 40 * PAGE);
    assert!(rows.lines().any(|l| l.starts_with(&line) && l.ends_with(&end)), "{rows}");
    assert!(rows.contains(" kmem:0 func:stack mapped:"), "{rows}");
    // The loader maps memory of its own, of a length that depends on the machine.
    assert!(account.contains("\n  unaccounted: mappings ") && account.contains(" + stacks "));
    assert!(account.contains("\n  page tables "), "{account}");
    let one = dump(process.pid(), &["--function", "left"]);
    assert_eq!(mapped(&one).len(), 1);
    assert!(!run(&["dump", "--format", "1.0"]).0.contains("mapped:"));
    assert!(run(&["dump", "--format", "folded"]).0.lines().any(|l| l.ends_with("left 122880")));

    let (rows, account) = run(&["dump", "--no-mmap"]);
    assert!(!rows.contains("mapped:") && !rows.contains("func:left"), "{rows}");
    assert!(!account.contains("mappings"), "{account}");
    let dump = dump(process.pid(), &["--no-mmap"]);
    assert!(mapped(&dump).is_empty() && dump["accounting"]["parts"].is_null());
}

#[test]
fn top_of_a_live_process_has_the_rows_of_mapped_memory_that_a_dump_has() {
    let (_dir, process, _) = mappings();
    let pid = process.pid().to_string();
    let top = |args: &[&str]| {
        let mut command = Command::new(KMEM);
        command.args(["top", "--once", "-n", "1000", "-p", &pid]).args(args);
        command
    };
    let sorted = |dump: &Value| {
        let mut rows: Vec<_> = mapped(dump).into_iter().map(Value::to_string).collect();
        rows.sort();
        rows
    };
    let all = json(top(&[]).arg("--json"));
    balances(&all);
    assert_eq!(sorted(&all), sorted(&dump(process.pid(), &[])));
    for mark in ["left", "grow", "shared", "segment", "data_segment"] {
        assert!(call(&all, mark)[0] > 0, "{mark}: {all}");
    }
    assert!(of_kind(&all, "stack", "thread_stacks")[0] > 0, "{all}");

    let table = |args: &[&str]| text(&top(args).output().unwrap().stdout);
    let rows = table(&[]);
    let row = format!(" 120.0 KiB    mapped  left      {:>9}", "");
    assert!(rows.lines().any(|line| line.starts_with(row.trim_end())), "{rows}");
    assert!(rows.lines().next().unwrap().ends_with(", and 788.0 KiB mapped by the program"));
    assert!(table(&["--tree"]).contains(" left "), "{}", table(&["--tree"]));
    for args in [&["--no-mmap"][..], &["--by", "group"], &["--by", "pinned"]] {
        let rows = table(args);
        assert!(!rows.contains(" mapped") && !rows.contains(" left "), "{rows}");
    }
    assert!(!table(&["--no-mmap"]).contains("unaccounted: mappings"));
}

#[test]
fn the_report_of_a_command_has_the_memory_outside_of_the_heap() {
    let dir = directory();
    let program = compile("mappings", &[], dir.path());
    let run = |options: &[&str]| {
        let mut command = Command::new(KMEM);
        command.arg("run").args(options).args(["-n", "40", "--"]).arg(&program);
        command.arg(dir.path().join("file")).env_remove("LD_PRELOAD").env_remove("KMEM_CONF");
        // Without input, the program ends at once.
        text(&command.stdin(std::process::Stdio::null()).output().unwrap().stderr)
    };
    let report = run(&[]);
    let row = |name: &str| {
        let (_, outside) = report.split_once("\nOutside of the heap").unwrap();
        let found = outside.lines().find(|l| l.contains(&format!("  {name} ")));
        let fields = found.unwrap_or_else(|| panic!("{name}: {report}")).split_whitespace();
        fields.take(5).collect::<Vec<_>>().join(" ")
    };
    assert!(report.contains("\nOutside of the heap at exit: "), "{report}");
    assert!(report.contains("\n  RESIDENT     MAPPED  RANGES  FUNCTION"), "{report}");
    assert_eq!(row("left"), "120.0 KiB 160.0 KiB 1");
    assert_eq!(row("grow"), "200.0 KiB 256.0 KiB 1");
    assert!(report.contains(" = resident ") && report.contains("  unaccounted: mappings "));
    // The box of the report itself, and pages of the kernel.
    assert!(!report.contains(".box") && !report.contains("  [vvar]"), "{report}");
    assert!(!report.contains("unaccounted -") && !report.contains("other -"), "{report}");
    let report = run(&["--no-mmap"]);
    assert!(!report.contains("Outside of the heap") && !report.contains("mappings 7"), "{report}");
}

#[test]
fn the_black_box_counts_as_overhead() {
    let overhead = |conf: &str| {
        let program = Program::start("callers", &[], &[], conf);
        let dump = program.json(&["dump", "--json"]);
        let is_box = |row: &&Value| row["file"].as_str().is_some_and(|file| file.ends_with("/box"));
        assert_eq!(mapped(&dump).into_iter().find(is_box), None);
        balances(&dump);
        number(&dump["accounting"], "overhead")
    };
    let (without, with) = (overhead(""), overhead("blackbox:DIR/box,cumulative:1"));
    assert!(with > without, "{with} {without}");
}

#[test]
fn python_shows_its_arenas_and_what_a_script_maps() {
    if is_missing("python3") {
        not_run(&this_test(), "there is no python3");
        return;
    }
    let dir = directory();
    let script = "import mmap, sys\n\
        big = mmap.mmap(-1, 50 << 20)\n\
        for at in range(0, 50 << 20, 4096): big[at] = 1\n\
        small = [{str(i): i} for i in range(50000)]\n\
        print('ready', flush=True)\n\
        sys.stdin.read(1)\n";
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    let (process, _) = start(command, dir.path());
    let dump = dump(process.pid(), &[]);
    balances(&dump);
    let rows = mapped(&dump);
    let calls: Vec<_> = rows.iter().filter(|row| row["kind"] == "mapping").collect();
    assert!(calls.iter().any(|row| number(row, "bytes") == 50 << 20), "{dump}");
    // The arenas: by mmap, or with the setting of another python by malloc.
    let arenas: i64 = calls.iter().map(|row| number(row, "bytes")).sum();
    let heap = number(&dump["totals"], "bytes");
    assert!(arenas - (50 << 20) + heap > 8 << 20, "{dump}");
    assert!(number(&dump["accounting"], "resident") > 60 << 20);
}

/// Runs a program of another language until it says that it is ready. Its heap of 64 MiB is mapped
/// memory of calls that `is_heap` accepts by module, function and file. Its threads have stacks.
fn shows_its_heap(command: Command, dir: &Path, is_heap: impl Fn([&str; 3]) -> bool) {
    let (process, _) = start(command, dir);
    let dump = dump(process.pid(), &[]);
    let accounting = &dump["accounting"];
    let of = |name: &str| accounting[name].as_i64().unwrap_or(0);
    let heap = of("tracked") + of("cached") + of("overhead") - of("untouched") - of("swapped");
    assert_eq!(heap + of("unaccounted"), of("resident"), "{accounting}");
    let [resident, size, _] = pages(&dump, |row| {
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        row["kind"] == "mapping" && is_heap([text("module"), text("function"), text("file")])
    });
    assert!(resident * PAGE >= 64 << 20 && size >= resident, "{dump}");
    assert!(of_kind(&dump, "stack", "thread_stacks")[2] > 1, "{dump}");
    assert!(of_kind(&dump, "stack", "stack")[0] > 0, "{dump}");
}

#[test]
fn node_shows_the_heap_of_v8() {
    if is_missing("node") {
        return;
    }
    let dir = directory();
    let script = "const keep = [];\n\
        for (let i = 0; i < 90; i++) keep.push(new Array(100000).fill(i));\n\
        console.log('ready'); process.stdin.resume();\n";
    let mut command = Command::new("node");
    command.args(["-e", script]);
    shows_its_heap(command, dir.path(), |[module, function, _]| {
        module.contains("node") && function.starts_with("(V8 heap) v8::")
    });
}

#[test]
fn java_shows_the_heap_of_its_machine() {
    if is_missing("java") || is_missing("javac") {
        return;
    }
    let dir = directory();
    let source = dir.path().join("Heap.java");
    let text = "public class Heap {\n\
        static byte[][] keep = new byte[70][];\n\
        public static void main(String[] args) throws Exception {\n\
          for (int i = 0; i < keep.length; i++) {\n\
            keep[i] = new byte[1 << 20];\n\
            java.util.Arrays.fill(keep[i], (byte) 1);\n\
          }\n\
          System.out.println(\"ready\");\n\
          System.in.read();\n\
        }\n\
      }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("javac").arg("-d").arg(dir.path()).arg(&source).status().unwrap();
    assert!(built.success());
    let mut command = Command::new("java");
    command.args(["-Xmx300m", "-cp"]).arg(dir.path()).arg("Heap");
    shows_its_heap(command, dir.path(), |[module, function, _]| {
        module == "libjvm.so" && function.starts_with("(JVM heap)")
    });
}

#[test]
fn go_shows_the_heap_of_its_runtime() {
    // A program of Go alone is static. With a call into C it is not.
    if Command::new("go").arg("version").output().is_err() {
        not_run(&this_test(), "there is no go");
        return;
    }
    let dir = directory();
    let (source, program) = (dir.path().join("heap.go"), dir.path().join("heap"));
    let text = "package main\n\
        // #include <stdlib.h>\n\
        import \"C\"\n\
        import (\"fmt\"; \"os\")\n\
        var keep [][]byte\n\
        func main() {\n\
          C.free(C.malloc(10))\n\
          for i := 0; i < 70; i++ {\n\
            one := make([]byte, 1<<20)\n\
            for j := range one { one[j] = 1 }\n\
            keep = append(keep, one)\n\
          }\n\
          fmt.Println(\"ready\")\n\
          os.Stdin.Read(make([]byte, 1))\n\
          fmt.Println(len(keep))\n\
        }\n";
    std::fs::write(&source, text).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).current_dir(dir.path());
    // The cache stays, since it takes long to fill.
    build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    build.env("GO111MODULE", "off").env("CGO_ENABLED", "1").env("HOME", dir.path());
    let built = build.output().unwrap();
    if !built.status.success() {
        not_run(
            &this_test(),
            &format!("go builds no program with C: {}", self::text(&built.stderr)),
        );
        return;
    }
    shows_its_heap(Command::new(&program), dir.path(), |[_, function, file]| {
        function == "(Go heap) x_cgo_mmap" && file.contains("runtime/cgo")
    });
}

const PEAK_SOURCE: &str = include_str!("programs/mapped_peak.c");

/// The report of `kmem run` on the program that maps memory and unmaps it again.
fn report_of(options: &[&str], end: &str) -> String {
    let dir = directory();
    let program = compile("mapped_peak", &[], dir.path());
    let mut command = Command::new(KMEM);
    command.arg("run").args(options).arg("--").arg(program).arg(end);
    command.env_remove("LD_PRELOAD").env_remove("KMEM_CONF");
    text(&command.output().unwrap().stderr)
}

/// Size of the row of mapped memory in the first table behind `title`, which is that of the call on
/// the line with a mark.
fn size_in(report: &str, title: &str, mark: &str) -> Option<String> {
    let (_, behind) = report.split_once(title).unwrap_or_else(|| panic!("{title}: {report}"));
    let table = behind.split("\n\n").next().unwrap();
    let end = format!("mapped_peak.c:{}", line_in(PEAK_SOURCE, mark));
    let row = table.lines().find(|line| line.ends_with(&end))?;
    let fields: Vec<_> = row.split_whitespace().collect();
    assert_eq!(fields[2], "mapped", "{report}");
    Some(fields[..2].join(" "))
}

/// Line after the one that begins with `title`.
fn line_after<'a>(report: &'a str, title: &str) -> &'a str {
    let (_, behind) = report.split_once(title).unwrap_or_else(|| panic!("{title}: {report}"));
    behind.lines().nth(1).unwrap_or_default()
}

#[test]
fn a_peak_of_mapped_memory_is_in_the_report_after_the_program_has_unmapped_it() {
    for end in ["exit", "kill"] {
        let report = report_of(&[], end);
        let title = if end == "exit" { "\nAt the peak: " } else { "\nAt the last record" };
        assert_eq!(size_in(&report, title, "large").as_deref(), Some("64.0 MiB"), "{report}");
        assert!(report.contains(" objects, and 64.0 MiB mapped by the program"), "{report}");
        // It is the first row of the first table.
        let (_, rows) = report.split_once("FUNCTION  WHERE\n").unwrap();
        assert!(rows.starts_with("  64.0 MiB    mapped  large     "), "{report}");
        let highest = line_after(&report, title);
        let bound = if end == "exit" { "within 4 %" } else { "within 13 %" };
        assert!(highest.starts_with("  highest: ") && highest.ends_with(bound), "{report}");
        assert!(highest.contains(" and 64.0 MiB mapped at "), "{report}");
        let without = report_of(&["--no-mmap"], end);
        assert!(!without.contains("    mapped  ") && !without.contains(" large "), "{without}");
        assert_eq!(without.contains("sites as of that record, without a bound: "), end == "kill");
    }
}

#[test]
fn mapped_memory_of_the_peak_is_not_counted_at_the_exit() {
    let report = report_of(&[], "exit");
    assert_eq!(size_in(&report, "\nAt exit (not freed): ", "large"), None, "{report}");
    let parts = report.lines().find(|line| line.starts_with("  unaccounted: ")).unwrap();
    assert!(!parts.contains("MiB +") || !parts.contains("mappings 6"), "{report}");
    assert!(report.contains(" = resident "), "{report}");
}

#[test]
fn a_child_that_is_killed_at_its_peak_has_its_own_mapped_memory_in_the_report() {
    let report = report_of(&["--all"], "fork");
    let child = "(pid ";
    let sections: Vec<_> =
        report.split("\n\n").filter(|part| part.starts_with("mapped_peak ")).collect();
    let section = sections.iter().find(|part| part.contains("at its peak")).expect(&report);
    assert!(section.contains(child), "{report}");
    let size = size_in(section, " at its peak", "arenas").expect(&report);
    // While the program maps memory, the last record of a peak is within an eighth.
    let mebibytes: f64 = size.strip_suffix(" MiB").expect(&size).parse().unwrap();
    assert!((55.0..=64.0).contains(&mebibytes), "{report}");
    assert!(!section.contains(&format!(":{}", line_in(PEAK_SOURCE, "inherited"))), "{report}");
    assert!(section.contains(" inherited by fork"), "{report}");
}

#[test]
fn little_tracked_memory_is_told_of_a_killed_program_and_of_another_process() {
    let told = |report: &str| {
        let line = report.lines().find(|line| line.contains(" resident are tracked; "));
        line.unwrap_or_else(|| panic!("no warning: {report}")).to_owned()
    };
    let killed = told(&report_of(&[], "kill"));
    assert!(killed.starts_with("kmem: 0 B of 6"), "{killed}");
    let end = "; 64.0 MiB are mapped by the program itself. -n shows more rows of it";
    assert!(killed.ends_with(end), "{killed}");
    let killed = told(&report_of(&["--no-mmap"], "kill"));
    assert!(killed.ends_with(". Without --no-mmap it has rows"), "{killed}");
    let report = report_of(&["--all"], "fork");
    let mut sections = report.split("\n\n");
    let child = sections.find(|part| part.starts_with("mapped_peak ") && part.contains("at its"));
    let child = told(child.expect(&report));
    assert!(child.contains(" are mapped by the program itself. -n "), "{child}");
}

#[test]
fn little_tracked_memory_is_told_of_a_live_process() {
    let program = Program::start("mapped_peak", &[], &["hold"], "");
    let top = program.kmem(&["top", "--once"]);
    let dump = program.kmem(&["dump"]);
    for (said, begin) in [(text(&top.stdout), ""), (text(&dump.stderr), "kmem: ")] {
        let line = said.lines().find(|line| line.contains(" resident are tracked; "));
        let line = line.unwrap_or_else(|| panic!("no warning: {said}"));
        let tracked = line.strip_prefix(begin).expect(line).split_once(" KiB of 3").expect(line).0;
        assert!(tracked.parse::<f64>().expect(line) < 16.0, "{line}");
        assert!(line.contains("; 32.0 MiB are mapped by the program itself. Rows "), "{line}");
    }
}

#[test]
fn memory_at_an_address_that_was_unmapped_by_a_system_call_counts_once() {
    let report = report_of(&[], "twice");
    let size = size_in(&report, "\nAt exit (not freed)", "twice");
    assert_eq!(size.as_deref(), Some("32.0 MiB"), "{report}");
    assert!(report.contains(" objects, and 32.0 MiB mapped by the program"), "{report}");
    let highest = line_after(&report, "\nAt exit (not freed), which was the peak: ");
    let end = " and 32.0 MiB mapped at the exit; sites as of the exit, within 4 %";
    assert!(highest.starts_with("  highest: ") && highest.ends_with(end), "{report}");
}

#[test]
fn a_mapping_of_a_file_that_was_moved_is_not_memory_of_the_program() {
    let report = report_of(&[], "file");
    assert!(report.contains(" objects, and 64.0 MiB mapped by the program"), "{report}");
}

#[test]
fn memory_that_a_wrapper_maps_is_a_row_of_its_caller() {
    let report = report_of(&[], "wrapper");
    let size = size_in(&report, "\nAt the peak: ", "wrapper");
    assert_eq!(size.as_deref(), Some("24.0 MiB"), "{report}");
}

#[test]
fn a_black_box_has_the_memory_that_was_mapped_at_the_peak() {
    let mut program = Program::start("mapped_peak", &[], &["wait"], "blackbox:DIR/box,depth:2");
    program.kill();
    let file = program.dir.path().join("box");
    let run = |args: &[&str]| {
        let mut command = Command::new(KMEM);
        let output = command.args(args).arg("--blackbox").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (out, _) = run(&["dump", "--peak", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    let [resident, size, ranges] = pages(&json, |row| row["line"] == line_in(PEAK_SOURCE, "large"));
    assert_eq!([resident, size, ranges], [16384, 16384, 1], "{json}");
    assert_eq!(json["moment"]["mapped_resident"], 64 << 20);
    let (rows, notes) = run(&["dump", "--peak", "-s", "s"]);
    let row = rows.lines().nth(2).unwrap();
    assert!(row.contains(" func:large ") && row.ends_with(" mapped:67108864 "), "{rows}");
    assert!(notes.contains("; the program mapped 64.0 MiB, 64.0 MiB of it in memory"), "{notes}");
    assert!(notes.contains("but none of stacks, code and files"), "{notes}");
    assert!(run(&["dump", "--peak", "--format", "folded"]).0.contains("large 67108864"));
    let (rows, _) = run(&["top", "--peak"]);
    assert!(rows.contains("64.0 MiB    mapped  large "), "{rows}");
    assert!(rows.contains(", and 64.0 MiB mapped by the program\n"), "{rows}");
    for args in [&["dump", "--peak", "--no-mmap"][..], &["top", "--peak", "--no-mmap"]] {
        assert!(!run(args).0.contains("large"));
    }
}
