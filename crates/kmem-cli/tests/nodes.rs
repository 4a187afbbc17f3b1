//! The memory of a program by node of the machine, which is simulated.

mod program;

use std::process::Command;

use kmem_testing::{directory, topology};
use program::{Program, compile, preload, text};
use serde_json::Value;

/// Bytes and calls of the rows of a function on a node.
fn held(rows: &[Value], function: &str, node: u64) -> (u64, u64) {
    let of = |row: &&Value| row["function"] == function && row["node"] == node;
    let sum = |key: &str| rows.iter().filter(of).map(|row| row[key].as_u64().unwrap()).sum();
    (sum("bytes"), sum("calls"))
}

#[test]
fn memory_and_free_blocks_are_told_apart_by_node() {
    if topology::cannot_be_simulated() {
        return;
    }
    let dir = directory();
    let path = compile("nodes", &[], dir.path());
    let command = topology::with_nodes(2);
    let mut run = Command::new(&command[0]);
    run.args(&command[1..]).arg("env").arg(path);
    preload(&mut run, "", dir.path());
    let program = Program::run(run, dir);

    let json = program.json(&["dump", "--no-mmap", "--by", "node", "--json"]);
    let rows = json["rows"].as_array().unwrap();
    // The first object of a CPU may come from the array, from before the program.
    let ((_, near), (_, far)) = (held(rows, "near", 0), held(rows, "near", 1));
    assert_eq!((near, far), (100, 0), "{json}");
    let (bytes, calls) = held(rows, "far", 1);
    assert_eq!(calls, 301, "{json}");
    assert!(bytes >= 300 * 1000 + (1 << 20), "{json}");

    let whole = program.json(&["dump", "--no-mmap", "--json"]);
    for key in ["bytes", "calls"] {
        let sum = |json: &Value| -> u64 {
            let rows = json["rows"].as_array().unwrap();
            rows.iter().map(|row| row[key].as_u64().unwrap()).sum()
        };
        assert_eq!(sum(&json), sum(&whole), "{key} of all nodes");
    }

    let lines = text(&program.kmem(&["dump", "--no-mmap", "--by", "node"]).stdout);
    assert!(
        lines.lines().any(|line| line.contains("func:far") && line.contains("node:1")),
        "{lines}"
    );
    let buddyinfo = text(&program.kmem(&["buddyinfo"]).stdout);
    for node in 0..2 {
        assert!(buddyinfo.contains(&format!("Node {node}, zone   Normal")), "{buddyinfo}");
    }
    let refused = program.kmem(&["dump", "--no-mmap", "--by", "node", "--group", "/"]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("not known by node"), "{}", text(&refused.stderr));
    let refused = program.kmem(&["dump", "--no-mmap", "--by", "node", "--format", "1.0"]);
    assert!(
        text(&refused.stderr).contains("--by node cannot be combined with --format"),
        "{}",
        text(&refused.stderr)
    );
}
