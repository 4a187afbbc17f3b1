//! `kmem doctor` on this machine.

mod program;

use std::process::Command;

use program::{KMEM, text};
use serde_json::Value;

/// The checks, and the exit code.
fn doctor(set: &[(&str, &str)]) -> (Vec<Value>, i32) {
    let mut command = Command::new(KMEM);
    let output = command.args(["doctor", "--json"]).envs(set.iter().copied()).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    (json["checks"].as_array().unwrap().clone(), output.status.code().unwrap())
}

fn check<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    checks.iter().find(|check| check["name"] == name).expect(name)
}

#[test]
fn what_is_not_well_has_an_effect_and_a_remedy() {
    let (checks, code) = doctor(&[]);
    let counts = |check: &&Value| !["ok", "note"].contains(&check["state"].as_str().unwrap());
    assert_eq!(code, i32::from(checks.iter().any(|check| counts(&check))));
    for check in &checks {
        let said = |key: &str| !check[key].as_str().unwrap().is_empty();
        let well = check["state"] == "ok";
        assert!(said("found") && said("effect") != well && said("remedy") != well, "{check}");
    }
    let page = Command::new(KMEM).arg("doctor").output().unwrap();
    let page = text(&page.stdout);
    for check in &checks {
        let line = format!(" {}: ", check["name"].as_str().unwrap());
        assert!(page.contains(&line), "{page}");
    }
    assert_eq!(check(&checks, "pages")["state"], "ok");
}

#[test]
fn what_makes_programs_slower_or_stops_them_is_found() {
    let (checks, code) = doctor(&[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]);
    assert_eq!((&check(&checks, "restartable sequences")["state"], code), (&"slower".into(), 1));
    let (checks, code) = doctor(&[("KMEM_LIBRARY", "/nosuch/libkmem.so")]);
    assert_eq!((&check(&checks, "library")["state"], code), (&"broken".into(), 1));
}
