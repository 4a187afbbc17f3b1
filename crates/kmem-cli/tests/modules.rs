//! `kmem modinfo`, `modload`, `lsmod` and `modstats`, with modules compiled here.

mod program;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kmem_testing::{Compiler, Coprocess};
use program::{KMEM, directory, for_another_user, json, text};

/// Compiles a module.
fn module(dir: &Path, name: &str, source: &str) -> PathBuf {
    let file = dir.join(format!("{name}.c"));
    std::fs::write(
        &file,
        format!("#include \"kmem_module.h\"\nMODULE_LICENSE(\"GPL\");\n{source}\n"),
    )
    .unwrap();
    let compiler = Compiler::c().strict().args(["-O2", "-c", "-fPIC"]).include();
    compiler.arg(file).compile(dir.join(format!("{name}.ko")))
}

const KEEPS: &str = "static void *kept; static int size = 500;
module_param(size, int, 0); MODULE_PARM_DESC(size, \"bytes to keep\");
static unsigned int bare[2]; module_param_array(bare, uint, 0, 0);
MODULE_AUTHOR(\"A. Nonymous\"); MODULE_ALIAS(\"keeps-*\");
int keeps_value = 1; EXPORT_SYMBOL(keeps_value);
static int __init start(void) { kept = kmalloc(size, GFP_KERNEL); return kept ? 0 : -12; }
module_init(start);
static void __exit stop(void) { kfree(kept); } module_exit(stop);";

fn kmem(args: &[&str]) -> Output {
    Command::new(KMEM).args(args).output().unwrap()
}

/// A host whose modules stay; it ends when its input does.
struct Host(Coprocess);

impl Host {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(KMEM);
        command.args(["modload", "--stay"]).args(args);
        let mut host = Coprocess::start(&mut command);
        // It prints when it has loaded everything.
        let first = host.line().expect("statistics");
        assert!(first.contains("Mods ever loaded"), "{first:?}");
        Self(host)
    }

    fn pid(&self) -> String {
        self.0.pid().to_string()
    }

    fn end(mut self) {
        assert!(self.0.wait().success());
    }
}

#[test]
fn modinfo_prints_fields_in_order_and_parameters_with_their_types() {
    let dir = directory();
    let path = module(dir.path(), "keeps", KEEPS);
    let file = path.to_str().unwrap();
    let output = kmem(&["modinfo", file]);
    let out = text(&output.stdout);
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.remove(0), format!("filename:       {file}"));
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "alias:          keeps-*",
            "author:         A. Nonymous",
            &format!("kmem_source:    {}", path.with_extension("c").display()),
            "license:        GPL",
            "parm:           bare:array of uint",
            "parm:           size:bytes to keep (int)",
            "vermagic:       kmem 1 x86_64",
        ]
    );
    assert_eq!(text(&kmem(&["modinfo", "-F", "author", file]).stdout), "A. Nonymous\n");
    assert_eq!(text(&kmem(&["modinfo", "-0", "-F", "license", file]).stdout), "GPL\0");
    let all = json(Command::new(KMEM).args(["modinfo", "--json", file]));
    assert_eq!(all["alias"], serde_json::json!(["keeps-*"]));
    // A file that is no module is named.
    let output = kmem(&["modinfo", KMEM]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("e_type is 3, not relocatable"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(kmem(&["modinfo", "/nonexistent.ko"]).status.code(), Some(3));
}

#[test]
fn a_bad_file_does_not_hide_the_good_ones() {
    let dir = directory();
    let keeps = module(dir.path(), "keeps", KEEPS);
    let user = module(dir.path(), "user", "extern int keeps_value; int *user_p = &keeps_value;");
    let (keeps, user) = (keeps.to_str().unwrap(), user.to_str().unwrap());
    let files = [KMEM, keeps, "/nonexistent.ko", user];
    for args in [&["modinfo", "-F", "license"][..], &["modinfo", "--json"]] {
        let output = kmem(&[args, &files[..]].concat());
        // The first failure gives the exit code.
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output.stdout).lines().count(), 2, "{}", text(&output.stdout));
        let said = text(&output.stderr);
        assert!(said.contains("e_type is 3, not relocatable"), "{said}");
        assert!(said.contains("/nonexistent.ko: "), "{said}");
    }
    let output = kmem(&["modinfo", "/nonexistent.ko", KMEM, keeps]);
    assert_eq!(output.status.code(), Some(3));
    // Each bad file is told once, however many threads load it.
    let args = ["modload", "--json", "-t", "4", KMEM, keeps, "/nonexistent.ko", user];
    let output = kmem(&args);
    assert_eq!(output.status.code(), Some(2));
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stats["loaded"], 2);
    let said = text(&output.stderr);
    assert_eq!(said.matches("e_type is 3, not relocatable").count(), 1, "{said}");
    assert_eq!(said.matches("/nonexistent.ko: ").count(), 2, "{said}");
}

#[test]
fn a_file_with_a_sparse_tail_is_refused_before_it_is_read() {
    let dir = directory();
    let keeps = module(dir.path(), "keeps", KEEPS);
    let good = module(dir.path(), "good", "");
    let file = std::fs::File::options().write(true).open(&keeps).unwrap();
    file.set_len(5 << 30).unwrap();
    let (keeps, good) = (keeps.to_str().unwrap(), good.to_str().unwrap());
    let what = format!("{keeps}: ");
    let limit = "5368709120 bytes, above 268435456, the greatest length of a module (EFBIG)";
    for (args, shown) in [(&["modinfo"][..], "good.ko"), (&["modload"], "Mods ever loaded\t1\n")] {
        let start = std::time::Instant::now();
        let output = kmem(&[args, &[keeps, good]].concat());
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&what) && said.contains(limit), "{said}");
        assert!(text(&output.stdout).contains(shown), "{}", text(&output.stdout));
    }
    // A module of the greatest length is read.
    file.set_len(256 << 20).unwrap();
    assert!(kmem(&["modinfo", keeps]).status.success());
}

#[test]
fn a_host_shows_its_modules_statistics_and_what_they_hold() {
    let dir = directory();
    let keeps = module(dir.path(), "keeps", KEEPS);
    let user = module(dir.path(), "user", "extern int keeps_value; int *user_p = &keeps_value;");
    let (keeps, user) = (keeps.to_str().unwrap(), user.to_str().unwrap());
    let host = Host::start(&["--threads", "4", keeps, user, keeps]);
    let pid = host.pid();

    let list = json(Command::new(KMEM).args(["lsmod", "--json", "-p", &pid]));
    let modules = list["modules"].as_array().unwrap();
    assert_eq!(modules.len(), 2);
    assert_eq!((&modules[0]["name"], &modules[0]["refcount"]), (&"keeps".into(), &1.into()));
    assert_eq!(modules[0]["used_by"], serde_json::json!(["user"]));
    assert!(modules[0].get("address").is_none());
    let shown = text(&kmem(&["lsmod", "-p", &pid]).stdout);
    let size = modules[0]["bytes"].as_u64().unwrap();
    assert_eq!(shown.lines().next(), Some("Module                  Size  Used by"));
    assert_eq!(shown.lines().nth(1), Some(&*format!("keeps               {size:>8}  1 user")));
    let addresses = text(&kmem(&["lsmod", "-a", "-p", &pid]).stdout);
    assert!(addresses.lines().nth(1).unwrap().contains(" 0x00007"), "{addresses}");

    let stats = json(Command::new(KMEM).args(["modstats", "--json", "-p", &pid]));
    let stats = &stats["loaders"][0];
    assert_eq!((&stats["loaded"], &stats["wasted_bytes"]), (&2.into(), &0.into()));
    let held: u64 = modules.iter().map(|module| module["bytes"].as_u64().unwrap()).sum();
    assert_eq!((&stats["held_bytes"], &stats["total_bytes"]), (&held.into(), &held.into()));
    let shown = text(&kmem(&["modstats", "-p", &pid]).stdout);
    assert!(shown.starts_with("         Mods ever loaded\t2\n"), "{shown}");
    assert!(shown.contains("Duplicate failed modules:\n"), "{shown}");

    // The module's allocation is in the host's books, under its name.
    let rows = json(Command::new(KMEM).args(["dump", "--json", "--module", "keeps", "-p", &pid]));
    let rows = rows["rows"].as_array().unwrap();
    let of = |function: &str| {
        let row = rows.iter().find(|row| row["function"] == function);
        row.map(|row| (row["bytes"].as_u64().unwrap(), row["calls"].as_u64().unwrap()))
    };
    assert_eq!(of("start"), Some((512, 1)), "{rows:#?}");
    // And so is the module's own memory.
    assert_eq!(of("module_memory_alloc"), Some((size, 1)), "{rows:#?}");
    assert_eq!(rows.len(), 2, "{rows:#?}");
    host.end();
}

#[test]
fn the_account_of_a_host_has_the_memory_of_modules_as_tracked() {
    let dir = directory();
    // 4 MiB of data that is in memory, and 32 KiB of per-CPU variables.
    let source = "static char data[4 << 20] = { 1 };
        static DEFINE_PER_CPU(char[32 << 10], all) = { 1 };
        char *large_data = data; EXPORT_SYMBOL(large_data); void *large_all = &all;";
    let (small, large) = (module(dir.path(), "small", ""), module(dir.path(), "large", source));
    let account = |args: &[&str]| {
        let host = Host::start(args);
        let dump = json(Command::new(KMEM).args(["dump", "--json", "-p", &host.pid()]));
        host.end();
        let account = &dump["accounting"];
        let term = |name: &str| account[name].as_i64().unwrap_or_else(|| panic!("{account:#?}"));
        let sum = term("tracked") + term("cached") + term("overhead") + term("unaccounted");
        assert_eq!(sum - term("untouched") - term("swapped"), term("resident"), "{account:#?}");
        let rows = dump["rows"].as_array().unwrap();
        let row = |function: &str| rows.iter().any(|row| row["function"] == function);
        (term("tracked"), term("unaccounted"), row("percpu_modalloc"))
    };
    let (small, large) = (small.to_str().unwrap(), large.to_str().unwrap());
    let (before, after) = (account(&[small]), account(&[small, large]));
    assert!(!before.2 && after.2);
    let more = after.0 - before.0;
    assert!((4 << 20..5 << 20).contains(&more), "{more} bytes tracked more");
    let more = after.1 - before.1;
    assert!(more.abs() < 1 << 20, "{more} bytes unaccounted more");
}

#[test]
fn an_unknown_parameter_is_ignored_with_a_warning() {
    let dir = directory();
    let keeps = module(dir.path(), "keeps", KEEPS);
    let args = ["modload", "--args", "nope=1 size=100 -- later=2", keeps.to_str().unwrap()];
    let output = kmem(&args);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("kmem: keeps: unknown parameter \"nope\" ignored\n"), "{said}");
    let after = "kmem: keeps: parameters after `--' ignored, from \"later=2\" on\n";
    assert!(said.contains(after), "{said}");
}

#[test]
fn a_plain_malloc_in_a_module_is_named_by_its_function_and_module() {
    let dir = directory();
    let source = |name: &str, bytes: u32| {
        format!(
            "#include <stdlib.h>
             static void *volatile first, *volatile second;
             __attribute__((noinline)) static void {name}_later(void) {{ first = malloc({bytes}); }}
             static int __init {name}_start(void) {{ {name}_later(); second = malloc({bytes} + 7);
                return first && second ? 0 : -12; }}
             static void __exit stop(void) {{ free(first); free(second); }}
             module_init({name}_start); module_exit(stop);"
        )
    };
    let one = module(dir.path(), "one", &source("one", 5000));
    let two = module(dir.path(), "two", &source("two", 9000));
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    // Two processes, whose modules may lie at the same addresses, are told apart.
    let hosts = [Host::start(&[one, two]), Host::start(&[two])];
    for (host, names) in hosts.iter().zip([&["one", "two"][..], &["two"]]) {
        for &name in names {
            let args = ["dump", "--json", "--module", name, "-p", &host.pid()];
            let rows = json(Command::new(KMEM).args(args));
            let rows = rows["rows"].as_array().unwrap().clone();
            for function in ["later", "start"] {
                let function = format!("{name}_{function}");
                let row = rows.iter().find(|row| row["function"] == *function);
                let row = row.unwrap_or_else(|| panic!("no {function}: {rows:#?}"));
                assert_eq!((&row["module"], &row["calls"]), (&name.into(), &1.into()));
                assert_eq!(row["kind"], "caller");
            }
        }
    }
    // Without debug information, the place is the module and the offset in it.
    let shown = text(&kmem(&["dump", "--module", "two", "-p", &hosts[1].pid()]).stdout);
    let row = shown.lines().find(|line| line.ends_with(" func:two_later "));
    assert!(row.is_some_and(|row| row.contains(" two+0x")), "{shown}");
    for host in hosts {
        host.end();
    }
}

#[test]
fn modload_passes_arguments_repeats_and_finds_modules_by_alias() {
    let dir = directory();
    let keeps = module(dir.path(), "keeps", KEEPS);
    let file = keeps.to_str().unwrap();
    let stats = json(Command::new(KMEM).args(["modload", "--json", "-t", "8", "-r", "5", file]));
    assert_eq!((&stats["loaded"], &stats["wasted_bytes"]), (&5.into(), &0.into()));
    let output = kmem(&["modload", "--args", "size=x", file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("keeps.ko: parameter size: \"x\" is no number"),
        "{}",
        text(&output.stderr)
    );
    let search = dir.path().to_str().unwrap();
    let stats = json(Command::new(KMEM).args(["modload", "--json", "--search", search, "keeps-7"]));
    assert_eq!(stats["loaded"], 1);
    let output = kmem(&["modload", "--search", search, "nothing"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn live_allocations_are_a_warning_with_their_sites_or_refuse_the_unload() {
    let dir = directory();
    let leaks = module(
        dir.path(),
        "leaks",
        "static void *p; static int __init start(void) {
            p = kmalloc(500, GFP_KERNEL); return p ? 0 : -12; } module_init(start);
         static void __exit stop(void) { } module_exit(stop);",
    );
    let file = leaks.to_str().unwrap();
    let output = kmem(&["modload", file]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("leaks is unloaded, and memory it allocated is in use:"), "{said}");
    assert!(said.contains("leaks.c:"), "{said}");
    let output = kmem(&["modload", "--refuse-live", file]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("leaks has run its exit; 512 bytes are live:"), "{said}");
    assert!(said.contains("leaks.c:"), "{said}");
    assert!(!said.contains("is unloaded"), "{said}");
    // A module that frees in its exit leaves nothing.
    let keeps = module(dir.path(), "keeps", KEEPS);
    let output = kmem(&["modload", "--refuse-live", keeps.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_process_without_a_loader_and_no_process_are_absent() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    for command in ["lsmod", "modstats"] {
        let output = kmem(&[command, "-p", &sleeper.id().to_string()]);
        assert_eq!(output.status.code(), Some(3));
        assert!(text(&output.stderr).contains("has no loader of modules"));
        assert_eq!(kmem(&[command, "-p", "2147483632"]).status.code(), Some(3));
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn another_user_sees_no_addresses() {
    use std::os::unix::process::CommandExt as _;
    let Some((_copy, kmem)) = for_another_user() else { return };
    let dir = directory();
    let keeps = module(dir.path(), "keeps", KEEPS);
    let host = Host::start(&[keeps.to_str().unwrap()]);
    let mut command = Command::new(kmem);
    command.args(["lsmod", "-a", "-p", &host.pid()]).uid(65534).gid(65534);
    let output = command.output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(4), 0),
        "{}",
        text(&output.stderr)
    );
    host.end();
}
