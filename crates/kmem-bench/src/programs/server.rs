//! redis-server under the load of redis-benchmark. Only the server is measured.

use super::program::which;
use super::tracer::{self, Traced};
use crate::preload::untuned;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Configuration of the server: all data in memory, a socket in its own directory.
pub(super) const CONFIGURATION: &str = "\
port 0
unixsocket redis.sock
save \"\"
appendonly no
daemonize no
";

/// Arguments of the client: 40,000 keys of 300 bytes. Pipelines make the server, not the socket,
/// the bottleneck.
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

/// Time limit for the start of the server and for the client.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `command` as the server, with the load against it. Returns the server's end and the seconds
/// of the load.
pub(super) fn run(mut command: Command, directory: &Path) -> Result<(Traced, f64), String> {
    let socket = directory.join("redis.sock");
    // A killed server leaves its socket. Without a socket the removal fails, which is ignored.
    let _ = std::fs::remove_file(&socket);
    command.arg("redis.conf").stdout(Stdio::null());
    // Only the thread that starts a process can trace it.
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

/// Asks the server to end. A server that does not answer ends at the tracer's limit.
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
