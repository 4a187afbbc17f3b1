//! `kmem symbolize`: names from debug files, after the programs are gone.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::program::{KMEM, Program, compile, directory, json, preload, text};

/// A row of 3 MiB at one call.
const FUNCTION: &str = "large";

/// JSON and a recording of a stripped program, which no longer exists.
struct Files {
    dir: TempDir,
    /// The program with all names, in the place of no search path.
    whole: PathBuf,
    /// Its build id.
    id: String,
}

impl Files {
    fn of_program_with(id: &str) -> Self {
        let dir = directory();
        let id_flag = format!("-Wl,--build-id=0x{id}");
        let mut program = Program::start("books", &["-s", &id_flag], &["wait"], "");
        let pid = program.pid().to_string();
        let json = dir.path().join("rows.json");
        let dumped = Command::new(KMEM)
            .args(["dump", "--json", "-p", &pid, "-o"])
            .arg(&json)
            .output()
            .unwrap();
        assert!(dumped.status.success(), "{}", text(&dumped.stderr));
        let recorder = Command::new(KMEM)
            .args(["record", "--for", "20ms", "-p", &pid, "-o"])
            .arg(dir.path().join("rec"))
            .output()
            .unwrap();
        assert!(recorder.status.success(), "{}", text(&recorder.stderr));
        program.kill();
        drop(program);
        let names = dir.path().join("names");
        std::fs::create_dir(&names).unwrap();
        let whole = compile("books", &[&id_flag], &names);
        Self { dir, whole, id: id.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `kmem symbolize SOURCE`, which asks no server.
    fn symbolize(&self, source: &str) -> Command {
        let mut command = Command::new(KMEM);
        command.arg("symbolize").arg(self.path(source)).env_remove("DEBUGINFOD_URLS");
        command
    }
}

fn rows(json: &Value) -> &Vec<Value> {
    json["rows"].as_array().unwrap()
}

fn row(json: &Value) -> &Value {
    let found = rows(json).iter().find(|row| row["function"] == FUNCTION);
    found.unwrap_or_else(|| panic!("{json:#}"))
}

fn is_named(json: &Value) -> bool {
    rows(json).iter().any(|row| row["function"] == FUNCTION)
}

#[test]
fn debug_files_name_json_and_recordings_of_a_program_that_is_gone() {
    let files = Files::of_program_with("fd0123456789abcdef");
    let before = json(&mut files.symbolize("rows.json"));
    assert!(!is_named(&before), "{before:#}");
    let note = "/usr/lib/debug/.build-id/fd/0123456789abcdef.debug would name these";
    let notes = before["notes"].as_array().unwrap();
    assert!(notes.iter().any(|text| text.as_str().unwrap().contains(note)), "{before:#}");

    // The two layouts of a directory of debug files.
    let by_id = files.path("debug/.build-id/fd");
    let cache = files.path("cache").join(&files.id);
    for (dir, file) in [(&by_id, "0123456789abcdef.debug"), (&cache, "debuginfo")] {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::copy(&files.whole, dir.join(file)).unwrap();
    }
    for (source, dir) in [("rows.json", "debug"), ("rows.json", "cache"), ("rec@last", "debug")] {
        let after = json(files.symbolize(source).arg("--debug-dir").arg(files.path(dir)));
        let row = row(&after);
        assert_eq!(row["bytes"], 3 << 20, "{source}: {row:#}");
        assert!(row["file"].as_str().unwrap().ends_with("books.c"), "{source}: {row:#}");
        assert_eq!(after["totals"], before["totals"], "{source}");
    }

    // The output is a source again, whose rows have the same sums.
    let named = files.path("named.json");
    let mut write = files.symbolize("rows.json");
    let write = write.arg("--debug-dir").arg(files.path("debug")).arg("-o").arg(&named);
    assert!(write.output().unwrap().status.success());
    let again = json(Command::new(KMEM).args(["dump", "--json", "--allocinfo"]).arg(&named));
    assert_eq!(row(&again)["bytes"], 3 << 20);
    assert_eq!(again["totals"], before["totals"]);
    assert_eq!(again["build_ids"], before["build_ids"]);
}

#[test]
fn debug_files_name_the_core_of_a_program_that_is_gone() {
    let dir = directory();
    // The text lies at other addresses in the program than in its file.
    let id = ["-Wl,--build-id=0xfb0123456789abcdef", "-Wl,-Ttext=0x105000"];
    let flags = [&["-s"], &id[..]].concat();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1000000; ulimit -c 1000000; exec \"$0\" abort"]);
    command.arg(compile("dies", &flags, dir.path())).current_dir(dir.path());
    preload(&mut command, "", dir.path());
    let mut program = Program::run(command, dir);
    let Some(core) = program.die(b'x') else { return };
    let dir = program.dir.path();
    std::fs::remove_file(dir.join("dies")).unwrap();
    let symbolize = || {
        let mut command = Command::new(KMEM);
        command.arg("symbolize").arg(&core).env_remove("DEBUGINFOD_URLS");
        command
    };
    let has = |json: &Value, name: &str| rows(json).iter().any(|row| row["function"] == name);
    let before = json(&mut symbolize());
    assert!(!has(&before, "touched"), "{before:#}");
    let names = dir.join("debug/.build-id/fb");
    std::fs::create_dir_all(&names).unwrap();
    let whole = compile("dies", &id, &names);
    std::fs::rename(whole, names.join("0123456789abcdef.debug")).unwrap();
    let after = json(symbolize().arg("--debug-dir").arg(dir.join("debug")));
    for name in ["small", "touched", "untouched", "freed"] {
        assert!(has(&after, name), "{name}: {after:#}");
    }
    assert_eq!(after["totals"], before["totals"]);
}

#[test]
fn debug_files_name_the_black_box_of_a_program_that_is_gone() {
    let (dir, id) = (directory(), "-Wl,--build-id=0xfa0123456789abcdef");
    let of = dir.path().join("box");
    let mut program =
        Program::start("books", &["-s", id], &["wait"], &format!("blackbox:{}", of.display()));
    program.kill();
    let symbolize = || {
        let mut command = Command::new(KMEM);
        command.arg("symbolize").arg(&of).env_remove("DEBUGINFOD_URLS");
        command
    };
    let path = program.dir.path().join("books");
    let notes = |json: &Value| {
        let texts = json["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
        texts.filter(|text| text.contains("books:")).map(ToOwned::to_owned).collect::<Vec<_>>()
    };

    // A copy of the program is as good as itself.
    let copy = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, copy).unwrap();
    let before = json(&mut symbolize());
    assert_eq!(notes(&before), [""; 0], "{before:#}");
    assert!(!is_named(&before), "{before:#}");
    assert_eq!(before["build_ids"][path.to_str().unwrap()], "fa0123456789abcdef");

    // Another program there gives no names, though all of its own are in it.
    let other = compile("books", &[], program.dir.path());
    let after = json(&mut symbolize());
    let told = notes(&after);
    assert!(told[0].contains("not the file that the process ran (build-id "), "{told:?}");
    assert!(told[0].contains(", then fa0123456789abcdef); no names from it"), "{told:?}");
    assert!(!is_named(&after), "{after:#}");

    std::fs::remove_file(other).unwrap();
    let names = dir.path().join("debug/.build-id/fa");
    std::fs::create_dir_all(&names).unwrap();
    let whole = compile("books", &[id], &names);
    std::fs::rename(whole, names.join("0123456789abcdef.debug")).unwrap();
    let after = json(symbolize().arg("--debug-dir").arg(dir.path().join("debug")));
    let row = row(&after);
    assert!(row["file"].as_str().unwrap().ends_with("books.c"), "{row:#}");
    assert_eq!(after["totals"], before["totals"]);
}

#[test]
fn a_program_without_a_build_id_is_named_by_its_twin_with_names() {
    let (dir, none) = (directory(), "-Wl,--build-id=none");
    let of = dir.path().join("box");
    let mut program =
        Program::start("books", &["-s", none], &["wait"], &format!("blackbox:{}", of.display()));
    program.kill();
    let names = |exe: &Path| {
        let mut dump = Command::new(KMEM);
        dump.args(["dump", "--json", "--blackbox"]).arg(&of).arg("--exe").arg(exe);
        is_named(&json(&mut dump))
    };
    assert!(names(&compile("books", &[none], dir.path())));
    assert!(!names(&compile("books", &[none, "-DOTHER", "-Wl,-z,norelro"], dir.path())));
}

#[test]
fn a_file_of_another_build_names_nothing() {
    let files = Files::of_program_with("fc0123456789abcdef");
    let dir = files.path("debug/.build-id/fc");
    std::fs::create_dir_all(&dir).unwrap();
    let other = compile("books", &["-Wl,--build-id=0xfc00"], &dir);
    std::fs::rename(other, dir.join("0123456789abcdef.debug")).unwrap();
    let after = json(files.symbolize("rows.json").arg("--debug-dir").arg(files.path("debug")));
    assert!(!is_named(&after), "{after:#}");
}

/// A server of debug files. It ends with the value.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(files: &Path, database: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("debuginfod")
            .arg(format!("--port={port}"))
            .arg(format!("--database={}", database.display()))
            .args(["--disable-source-scan", "-F"])
            .arg(files)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("debuginfod is one of the tools that scripts/install-test-tools.sh installs");
        Self { child, port }
    }

    /// The status of a request for the debug file of a build id.
    fn answer(&self, id: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET /buildid/{id}/debuginfo HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        text(&answer).lines().next().map(ToOwned::to_owned)
    }

    fn wait_for(&self, id: &str) {
        let begun = Instant::now();
        while !self.answer(id).is_some_and(|status| status.contains(" 200 ")) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", self.answer(id));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_debuginfod_server_names_rows() {
    let files = Files::of_program_with("fb0123456789abcdef0123456789abcdef012345");
    let server = Server::start(&files.path("names"), &files.path("database"));
    server.wait_for(&files.id);
    let url = format!("http://127.0.0.1:{}", server.port);
    let mut command = files.symbolize("rows.json");
    command.env("DEBUGINFOD_URLS", url).env("DEBUGINFOD_CACHE_PATH", files.path("cached"));
    let after = json(&mut command);
    assert_eq!(row(&after)["bytes"], 3 << 20);
    // The cache of the client is a directory of debug files.
    let offline = json(files.symbolize("rows.json").arg("--debug-dir").arg(files.path("cached")));
    assert_eq!(row(&offline), row(&after));
}
