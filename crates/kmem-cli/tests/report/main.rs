//! `kmem report`, opened and clicked through in headless Chromium by `browser.py`.
//!
//! `KMEM_PICTURES=DIRECTORY` keeps pictures of the page there; `scripts/pictures.sh` makes those of
//! the documentation so.

#[path = "../program/mod.rs"]
mod program;

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kmem_snapshot::recording::Recording;
use kmem_testing::{Coprocess, is_missing};
use program::{KMEM, compile, directory, text};

fn browse(arguments: &[&str], page: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report/browser.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(page)
        .arg("draw_page")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}

fn write_report(source: &str, page: &Path) {
    let output = Command::new(KMEM).args(["report", source, "-o"]).arg(page).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Waits until a recording has more moments than before. Returns their count.
fn more_than(before: usize, file: &Path) -> usize {
    let begun = Instant::now();
    loop {
        let now = Recording::open(file).map_or(0, |of| of.times().len());
        if now > before {
            return now;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no more than {before} moments");
        sleep(Duration::from_millis(5));
    }
}

/// Takes some 15 s: three browsers start.
#[test]
fn a_report_can_be_clicked_through_at_a_desk_and_on_a_phone() {
    if is_missing("chromedriver") || is_missing("python3") {
        return;
    }
    let pictures = env::var("KMEM_PICTURES").ok();
    // Pictures show the path of the program.
    let dir = match &pictures {
        Some(_) => tempfile::Builder::new().prefix("server").tempdir_in("/tmp").unwrap(),
        None => directory(),
    };
    let file = dir.path().join("server.kmrec");
    let page = dir.path().join("report.html");
    let mut command = Command::new(KMEM);
    command.args(["record", "--depth", "8", "--every", "20ms", "-o"]).arg(&file).arg("--");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
    let sources = &format!("-ffile-prefix-map={sources}=/src/server");
    command.arg(compile("stages", &["-fno-omit-frame-pointer", sources], dir.path()));
    let mut process = Coprocess::start(&mut command);
    process.wait_for("ready");
    let mut moments = more_than(1, &file);
    for stage in b"aaaaaafffaaaaffff" {
        process.write(&[*stage]);
        process.wait_for("ready");
        moments = more_than(moments + 2, &file);
    }
    process.write(b"q");
    assert!(process.wait().success());
    write_report(file.to_str().unwrap(), &page);
    browse(pictures.as_deref().as_slice(), &page);

    // One moment, and other sources, have no time axis.
    let one = dir.path().join("one.html");
    write_report(&format!("{}@peak", file.display()), &one);
    browse(&["--plain"], &one);
}

#[test]
fn run_writes_a_report_in_one_step() {
    let dir = directory();
    let page = dir.path().join("run.html");
    let output = Command::new(KMEM)
        .args(["run", "--report"])
        .arg(&page)
        .arg("--")
        .arg(compile("stages", &[], dir.path()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the report is in"), "{said}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("draw_pages") && html.contains("exited with 0"), "{said}");
}
