//! redis-server under redis-benchmark: the server is measured, the client is not.

use super::program::which;
use super::tracer::{self, Traced};
use crate::preload::untuned;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Everything in memory, reached by a socket in its own directory.
pub(super) const CONFIGURATION: &str = "\
port 0
unixsocket redis.sock
save \"\"
appendonly no
daemonize no
";

/// Forty thousand keys of 300 bytes, with pipelines, so that the server
/// rather than the socket is what is measured.
const LOAD: [&str; 13] = [
    "-q",
    "-n",
    "80000",
    "-r",
    "40000",
    "-d",
    "300",
    "-P",
    "32",
    "-c",
    "16",
    "-t",
    "set,get,lpush,sadd,hset,zadd",
];

/// How long a server may take to start or a client to finish.
const PATIENCE: Duration = Duration::from_secs(10);

/// Run `command` as the server, and the load against it; its end, and the
/// seconds that the load took.
pub(super) fn run(mut command: Command, directory: &Path) -> Result<(Traced, f64), String> {
    let socket = directory.join("redis.sock");
    // A server that was killed leaves its socket; without one there is nothing to remove.
    let _ = std::fs::remove_file(&socket);
    command.arg("redis.conf").stdout(Stdio::null());
    // Tracing belongs to the thread that starts the process.
    let server = spawn(move || tracer::run(&mut command));
    let measured = wait_for(&socket).and_then(|()| load(&socket));
    let stopped = stop(&socket);
    let traced = match server.join() {
        Ok(traced) => traced.map_err(|error| error.to_string())?,
        Err(_) => return Err("the thread of the server panicked".to_owned()),
    };
    let seconds = measured?;
    stopped?;
    Ok((traced, seconds))
}

fn wait_for(socket: &Path) -> Result<(), String> {
    let start = Instant::now();
    while UnixStream::connect(socket).is_err() {
        if start.elapsed() > PATIENCE {
            return Err("redis-server does not answer".to_owned());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn load(socket: &Path) -> Result<f64, String> {
    let start = Instant::now();
    client("redis-benchmark", socket, &LOAD)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Ask the server to end; what cannot be asked ends at the tracer's limit.
fn stop(socket: &Path) -> Result<(), String> {
    client("redis-cli", socket, &["shutdown", "nosave"])
}

fn client(name: &str, socket: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(which(name)?);
    untuned(&mut command).arg("-s").arg(socket).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}
