//! `kmem export`, asked by Prometheus, promtool, pprof, and by clients that behave badly.

#[path = "formats/readers.rs"]
mod readers;

mod program;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kmem_snapshot::export::Metric;
use kmem_testing::{Coprocess, is_missing};
use program::{KMEM, Program, check_unit, directory, text};
use readers::{pprof, pprof_total};
use serde_json::Value;

const TOTAL: &str = "kmem_callsite_live_bytes{";

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

/// A running `kmem export`.
struct Export {
    process: Coprocess,
    port: u16,
}

/// An answer over HTTP.
struct Got {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Got {
    fn text(&self) -> String {
        text(&self.body)
    }
}

impl Export {
    fn start(args: &[&str]) -> Self {
        // Messages come on standard error.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 2>&1", "sh", KMEM, "export", "--listen", "127.0.0.1:0"]);
        let mut process = Coprocess::start(command.args(args));
        let line = process.line().expect("it listens");
        let port = line.strip_prefix("kmem: listening on http://127.0.0.1:").expect(&line);
        let port = port.strip_suffix("/metrics").expect(&line).parse().expect(&line);
        Self { process, port }
    }

    fn of(program: &Program, args: &[&str]) -> Self {
        Self::start(&[&["-p", &program.pid().to_string()], args].concat())
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    fn send(&self, request: &str) -> Got {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = text(&answer[..end]);
        let status = head.split(' ').nth(1).expect(&head).parse().expect(&head);
        Got { status, head, body: answer[end + 4..].to_vec() }
    }

    fn get(&self, path: &str, accept: &str) -> Got {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"))
    }

    fn metrics(&self) -> String {
        let got = self.get("/metrics", "*/*");
        assert_eq!(got.status, 200, "{}", got.text());
        assert!(got.head.contains("content-type: text/plain; version=0.0.4"), "{}", got.head);
        got.text()
    }
}

/// Sum of the samples that begin so.
fn sum(page: &str, begin: &str) -> i64 {
    let samples = page.lines().filter(|line| line.starts_with(begin));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).sum()
}

/// Live bytes of a process, by `kmem dump`.
fn live(program: &Program) -> i64 {
    let json = program.json(&["dump", "--json", "--no-mmap"]);
    json["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_i64().unwrap()).sum()
}

fn started() -> Program {
    Program::start("books", &[], &["wait"], "")
}

#[test]
fn sites_add_up_whatever_their_bound_and_promtool_finds_no_fault() {
    let program = started();
    let all = live(&program);
    for (args, rows) in [(&[][..], None), (&["--sites", "1"], Some(2)), (&["--by-group"], None)] {
        let page = Export::of(&program, args).metrics();
        assert_eq!(sum(&page, TOTAL), all, "{page}");
        let count = page.lines().filter(|line| line.starts_with(TOTAL)).count();
        assert!(rows.is_none_or(|rows| rows == count), "{page}");
        assert_eq!(page.contains("func=\"leak\""), rows.is_none(), "{page}");
        assert!(page.contains(",site=\"other\"} "), "{page}");
        assert_eq!(page.contains("group=\"/\",site="), args == ["--by-group"], "{page}");
        assert!(page.contains("\nkmem_processes 1\n"), "{page}");
        let [tracked, cached, overhead, untouched, swapped, unaccounted, resident] =
            ["tracked", "cached", "overhead", "untouched", "swapped", "unaccounted", "resident"]
                .map(|term| sum(&page, &format!("kmem_{term}_bytes{{")));
        assert_eq!(tracked + cached + overhead - untouched - swapped + unaccounted, resident);
        if is_missing("promtool") {
            continue;
        }
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = promtool.stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
    }
}

#[test]
fn groups_have_their_memory_limits_and_events() {
    let include = kmem_testing::include();
    let program = Program::start("grouped", &["-I", include.to_str().unwrap()], &[], "");
    let page = Export::of(&program, &[]).metrics();
    let of = |family: &str, more: &str| {
        let labels =
            format!("{{pid=\"{}\",name=\"grouped\",group=\"/a\\\"b\"{more}}} ", program.pid());
        sum(&page, &format!("{family}{labels}"))
    };
    let own = of("kmem_group_own_bytes", "");
    assert!((100_000..130_000).contains(&own), "{page}");
    assert_eq!(of("kmem_group_own_objects", ""), 1);
    assert_eq!(of("kmem_group_current_bytes", ""), own);
    assert!(of("kmem_group_peak_bytes", "") >= own);
    assert_eq!(of("kmem_group_limit_bytes", ",limit=\"max\""), 1 << 20);
    assert!(!page.contains("limit=\"high\"") && !page.contains("limit=\"low\""), "{page}");
    assert_eq!(of("kmem_group_events_total", ",event=\"oom\""), 1);
    let groups = sum(&page, "kmem_group_own_bytes{");
    assert_eq!(groups, of_root(&page), "{page}");
}

/// Memory that is charged to the root and to all groups below it.
fn of_root(page: &str) -> i64 {
    let line = page.lines().find(|line| {
        line.starts_with("kmem_group_current_bytes{") && line.contains("group=\"/\"}")
    });
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_format_is_negotiated() {
    let program = started();
    let export = Export::of(&program, &[]);
    let open = export.get("/metrics", "application/openmetrics-text; version=1.0.0");
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(open.text().ends_with("\n# EOF\n"));
    assert!(!export.metrics().contains("# EOF"));
    assert!(export.get("/", "*/*").text().contains("/metrics"));
}

#[test]
fn processes_are_selected_by_name_and_by_control_group() {
    let program = started();
    let pid = format!("{{pid=\"{}\",name=\"books\"}} ", program.pid());
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = cgroup.lines().next().unwrap().splitn(3, ':').nth(2).unwrap().to_owned();
    let many = ["--processes", "1000"];
    for args in [&["--name", "books"][..], &["--cgroup", &cgroup], &["--all"]] {
        let page = Export::start(&[args, &many].concat()).metrics();
        assert!(page.contains(&format!("kmem_resident_bytes{pid}")), "{args:?} {page}");
    }
    let page = Export::start(&["--name", "no-such-name"]).metrics();
    assert!(page.contains("\nkmem_processes 0\n") && !page.contains(TOTAL), "{page}");
    let other = started();
    let both = ["-p", &program.pid().to_string(), "-p", &other.pid().to_string()];
    let page = Export::start(&[&both[..], &["--processes", "1"]].concat()).metrics();
    assert!(page.contains("\nkmem_processes_left_out 1\n"), "{page}");
    assert_eq!(Command::new(KMEM).arg("export").output().unwrap().status.code(), Some(2));
}

#[test]
fn a_process_that_ends_is_an_error_in_the_metrics_and_a_message() {
    let mut program = started();
    let mut export = Export::of(&program, &[]);
    assert!(export.metrics().contains("kmem_scrape_errors_total{reason=\"absent\"} 0\n"));
    program.end(b'q');
    for errors in 1..=2 {
        let page = export.metrics();
        assert!(page.contains(&format!("{{reason=\"absent\"}} {errors}\n")), "{page}");
        assert!(page.contains("\nkmem_processes 0\n") && !page.contains(TOTAL), "{page}");
    }
    let said = export.process.line().unwrap();
    assert!(said.contains(&format!("no process {}", program.pid())), "{said}");
    assert_eq!(export.get("/debug/pprof/heap", "*/*").status, 404);
}

#[test]
fn the_kernel_is_exported_or_the_reason_is_told() {
    let mut export = Export::start(&["--kernel"]);
    let page = export.metrics();
    if page.contains("kernel_allocinfo_bytes{") {
        assert!(page.contains(",name=\"kernel\"}") && page.contains("site=\"other\""), "{page}");
    } else {
        let said = export.process.line().unwrap();
        assert!(said.contains("/proc/allocinfo: "), "{said}");
        let errors = page.lines().filter(|line| line.starts_with("kmem_scrape_errors_total"));
        assert_eq!(errors.filter(|line| line.ends_with(" 1")).count(), 1, "{page}");
    }
}

#[test]
fn slow_and_hostile_clients_do_not_delay_others() {
    let program = started();
    let export = Export::of(&program, &[]);
    // More than are served at once: some say nothing, some half a head, some do not read.
    let slow: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = export.connect();
            let said = ["", "GET /metrics HTT", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"];
            // The oldest ones are closed meanwhile.
            let _ = stream.write_all(said[number % 3].as_bytes());
            stream
        })
        .collect();
    let start = Instant::now();
    assert!(export.metrics().contains(TOTAL));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    drop(slow);
    let long = "x".repeat(100_000);
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".to_owned(), 405),
        ("GET /nosuch HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 404),
        ("GET /debug/pprof/heap?seconds=1e9 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 400),
        ("\x01\x02\r\n\r\n".to_owned(), 400),
    ] {
        assert_eq!(export.send(&request).status, status, "{request}");
    }
    // Too long a head is refused. The rest of it may meet a closed socket.
    let mut stream = export.connect();
    let _ = stream.write_all(format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!text(&answer).contains(" 200 "), "{}", text(&answer));
    assert!(export.metrics().contains(TOTAL));
}

#[test]
fn pprof_fetches_profiles() {
    let dir = directory();
    let conf = format!("cumulative:1,blackbox:{}/box", dir.path().display());
    let program = Program::start("books", &[], &["wait"], &conf);
    let export = Export::of(&program, &[]);
    let all = live(&program);
    let table = export.get("/debug/pprof/heap?debug=1", "*/*").text();
    assert!(table.contains("leak"), "{table}");
    let heap = format!("http://127.0.0.1:{}/debug/pprof/heap", export.port);
    let allocs = PathBuf::from(heap.replace("heap", "allocs"));
    // pprof keeps what it fetches in a directory of the test.
    let fetched = dir.path().join("profile");
    fs::write(&fetched, export.get("/debug/pprof/heap", "*/*").body).unwrap();
    assert!(pprof_total("inuse_space", &[], &fetched).is_none_or(|total| total == all));
    let body = export.get("/debug/pprof/allocs", "*/*").body;
    fs::write(&fetched, body).unwrap();
    let args = ["-top", "-sample_index=alloc_objects"];
    let Some(top) = pprof(&args, &fetched) else { return };
    let leak = top.lines().find(|line| line.ends_with(" leak")).expect(&top);
    assert!(leak.trim_start().starts_with("1000"), "{leak}");
    let mut go = Command::new("go");
    go.env("GOTOOLCHAIN", "local").env("PPROF_TMPDIR", dir.path());
    let output = go.args(["tool", "pprof", "-top", "-sample_index=alloc_space"]).arg(allocs);
    let output = output.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(" large\n"), "{}", text(&output.stdout));
}

/// A Prometheus that scrapes an exporter every second.
struct Prometheus {
    _process: Coprocess,
    port: u16,
}

impl Prometheus {
    fn start(export: &Export, dir: &Path) -> Self {
        // No server is told its port by the kernel before it says so. This one does not say.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{}]\n\
             scrape_configs:\n  - job_name: kmem\n    static_configs:\n      \
             - targets: ['127.0.0.1:{}']\n",
            packaging("prometheus/kmem.rules.yml").display(),
            export.port
        );
        let file = dir.join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Coprocess::start(command.current_dir(dir).stderr(Stdio::null()));
        Self { _process: process, port }
    }

    /// The result of a query; none before it can be asked.
    fn ask(&self, query: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query?query={query}");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Waits until a query has a result, and returns its first value.
    fn wait_for(&self, query: &str) -> f64 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.ask(query).unwrap_or_default();
            if let Some(value) = answer["data"]["result"][0]["value"][1].as_str() {
                return value.parse().expect(value);
            }
            assert!(Instant::now() < deadline, "{query}: {answer}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Takes seconds: Prometheus starts, scrapes and evaluates rules every second.
#[test]
fn prometheus_scrapes_it_evaluates_the_rules_and_parses_the_dashboard() {
    if is_missing("prometheus") {
        return;
    }
    let (program, dir) = (started(), directory());
    let export = Export::of(&program, &[]);
    let all = live(&program);
    let prometheus = Prometheus::start(&export, dir.path());
    let sum = prometheus.wait_for("sum(kmem_callsite_live_bytes) and on() (up == 1)");
    assert_eq!(sum, all as f64);
    assert_eq!(prometheus.wait_for("kmem:process_live_bytes"), all as f64);
    assert_eq!(prometheus.wait_for("kmem_build_info"), 1.0);
    for query in dashboard() {
        let query = query.replace("$__rate_interval", "5m").replace("$__", "");
        let answer = prometheus.ask(&query).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
    }
}

/// Queries of the dashboard.
fn dashboard() -> Vec<String> {
    let file = fs::read_to_string(packaging("grafana/kmem.json")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    let panels = file["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn rules_and_dashboard_name_families_that_there_are() {
    let rules = fs::read_to_string(packaging("prometheus/kmem.rules.yml")).unwrap();
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let ours = |word: &&str| word.starts_with("kmem_") || word.starts_with("kernel_");
        words.filter(ours).map(str::to_owned).collect()
    };
    let known: BTreeSet<String> = Metric::ALL.iter().map(|of| of.name().to_owned()).collect();
    let shown = words(&dashboard().join(" "));
    assert!(shown.len() > 10, "{shown:?}");
    let unknown: Vec<_> =
        words(&rules).union(&shown).filter(|of| !known.contains(*of)).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    if !is_missing("promtool") {
        for (what, file) in [("check", "kmem.rules.yml"), ("test", "kmem.test.yml")] {
            let mut promtool = Command::new("promtool");
            let file = packaging("prometheus").join(file);
            let output = promtool.args([what, "rules"]).arg(file).output().unwrap();
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
    }
}

#[test]
fn the_unit_is_understood_and_hardened() {
    check_unit("kmem-export", &["export", "--all"]);
}
