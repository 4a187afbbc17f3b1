//! Machines with several NUMA nodes, simulated for programs under Linux: files in a mount namespace
//! lie over those of the kernel. CPU `n` is of node `n`; nodes beyond have no CPU.

use std::process::Command;

use crate::not_run::{not_run, this_test};

/// Mounts the files for `$1` nodes, and becomes the program in the other arguments.
const SCRIPT: &str = r#"
nodes=$1 at=/sys/devices/system/node
shift
mount -t tmpfs none $at && echo "0-$((nodes - 1))" > $at/online || exit 99
from=0
while [ $from -lt $nodes ]; do
	mkdir $at/node$from && echo $from > $at/node$from/cpulist || exit 99
	to=0 line=
	while [ $to -lt $nodes ]; do
		far=$((to > from ? to - from : from - to))
		line="$line $((10 + 10 * far))" to=$((to + 1))
	done
	echo $line > $at/node$from/distance
	from=$((from + 1))
done
exec "$@"
"#;

/// The program and the arguments in front of a program that is to see this number of nodes.
pub fn with_nodes(nodes: u32) -> Vec<String> {
    let parts = ["unshare", "-rm", "/bin/sh", "-c", SCRIPT, "sh"].map(String::from);
    parts.into_iter().chain([nodes.to_string()]).collect()
}

/// Returns whether a topology can be simulated here, with a CPU for each of two nodes.
pub fn can_be_simulated() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let command = with_nodes(2);
    let status = Command::new(&command[0]).args(&command[1..]).arg("true").output();
    cpus > 1 && status.is_ok_and(|done| done.status.success())
}

/// Returns whether no topology can be simulated. If so, records that the calling test did not run.
pub fn cannot_be_simulated() -> bool {
    let cannot = !can_be_simulated();
    if cannot {
        not_run(&this_test(), "there is one CPU, or no mount namespace can be made");
    }
    cannot
}
