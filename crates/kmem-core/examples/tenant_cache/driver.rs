//! Load: neighbours that read and write their entries, and one tenant that floods the cache.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Keys of a neighbour.
const KEYS: usize = 1000;
/// Bytes of a neighbour's value.
const VALUE: usize = 512;
/// Bytes of a flooding tenant's value.
const FLOOD: usize = 4096;
/// Least number of requests of the other tenant in a phase, on slow machines too.
const LEAST: u64 = 1000;

/// A connection of a tenant.
pub(crate) struct Client {
    input: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Client {
    /// Connects for a tenant.
    ///
    /// # Errors
    /// There is no such server, or it does not take that tenant.
    pub(crate) fn connect(server: SocketAddr, tenant: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        let mut client =
            Self { input: BufReader::new(stream), line: String::new(), body: Vec::new() };
        match client.ask(format!("TENANT {tenant}\n").as_bytes())? {
            "OK" => Ok(client),
            other => Err(io::Error::other(other.to_string())),
        }
    }

    /// Sends a request. Returns the line that answers it.
    fn ask(&mut self, request: &[u8]) -> io::Result<&str> {
        self.input.get_mut().write_all(request)?;
        self.line.clear();
        self.input.read_line(&mut self.line)?;
        Ok(self.line.trim_end())
    }

    /// Stores a value of `len` bytes. False: there was no room.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn set(&mut self, key: &str, len: usize) -> io::Result<bool> {
        let mut request = format!("SET {key} {len}\n").into_bytes();
        request.resize(request.len() + len, b'x');
        Ok(self.ask(&request)? == "STORED")
    }

    /// Fetches a value. False: there was none.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn get(&mut self, key: &str) -> io::Result<bool> {
        let answer = self.ask(format!("GET {key}\n").as_bytes())?;
        let Some(len) = answer.strip_prefix("VALUE ").and_then(|len| len.parse().ok()) else {
            return Ok(false);
        };
        let mut body = std::mem::take(&mut self.body);
        body.resize(len, 0);
        self.input.read_exact(&mut body)?;
        self.body = body;
        Ok(true)
    }

    /// One of the counts of `STATS`.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn stat(&mut self, name: &str) -> io::Result<u64> {
        let answer = self.ask(b"STATS\n")?;
        let mut words = answer.split([' ', '=']).skip_while(|&word| word != name);
        let value = words.nth(1).and_then(|value| value.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("no {name}")))
    }
}

/// Load of the other tenant in a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    /// Nothing.
    Idle,
    /// It stores the same 1000 keys over and over.
    Busy,
    /// It stores keys that were never seen.
    Flood,
}

/// Figures of one phase.
pub(crate) struct Seen {
    /// Microseconds that requests of neighbours took, sorted.
    latencies: Vec<u64>,
    /// Requests of neighbours for what they had stored that found nothing.
    pub(crate) missed: u64,
    /// The least and the most that a neighbour held.
    pub(crate) neighbours: (u64, u64),
    /// The most that the other tenant held.
    pub(crate) other: u64,
    /// Requests of the other tenant.
    pub(crate) requests: u64,
    /// Of these, those that were not stored.
    pub(crate) full: u64,
}

impl Seen {
    /// Neighbours' requests that took no longer, of a thousand.
    pub(crate) fn latency(&self, per_mille: usize) -> u64 {
        self.latencies.get(self.latencies.len() * per_mille / 1000).copied().unwrap_or(0)
    }
}

/// Runs three neighbours and the other tenant, for at least `time`.
///
/// # Errors
/// A connection is lost.
pub(crate) fn phase(server: SocketAddr, other: Other, time: Duration) -> io::Result<Seen> {
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let stopped = || stop.load(Ordering::Relaxed);
    let mut seen = Seen {
        latencies: Vec::new(),
        missed: 0,
        neighbours: (u64::MAX, 0),
        other: 0,
        requests: 0,
        full: 0,
    };
    thread::scope(|scope| {
        let neighbours: Vec<_> = (0..3)
            .map(|n| scope.spawn(move || neighbour(server, &format!("neighbour{n}"), time)))
            .collect();
        let load = scope.spawn(|| -> io::Result<_> {
            let mut client = Client::connect(server, "other")?;
            let (mut requests, mut full) = (0u64, 0);
            while other != Other::Idle && (!stopped() || requests < LEAST) {
                let key = match other {
                    Other::Flood => format!("new-{:?}-{requests}", Instant::now()).replace(' ', ""),
                    _ => format!("{}", requests % KEYS as u64),
                };
                full += u64::from(!client.set(&key, FLOOD)?);
                requests += 1;
            }
            Ok((requests, full))
        });
        let watch = scope.spawn(|| -> io::Result<_> {
            let mut client = Client::connect(server, "other")?;
            let mut most = 0;
            loop {
                // One more look when all is over.
                let last = done.load(Ordering::Relaxed);
                most = most.max(client.stat("current")?);
                if last {
                    return Ok(most);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let neighbours: Vec<_> =
            neighbours.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let load = load.join();
        done.store(true, Ordering::Relaxed);
        for neighbour in neighbours {
            let (latencies, missed, holds) = neighbour.map_err(|_| io::Error::other("panic"))??;
            seen.latencies.extend(latencies);
            seen.missed += missed;
            seen.neighbours = (seen.neighbours.0.min(holds), seen.neighbours.1.max(holds));
        }
        (seen.requests, seen.full) = load.map_err(|_| io::Error::other("panic"))??;
        seen.other = watch.join().map_err(|_| io::Error::other("panic"))??;
        seen.latencies.sort_unstable();
        Ok(seen)
    })
}

/// Stores the keys of a neighbour, then reads nine times as often as it writes, with a request each
/// half millisecond. Returns the microseconds of requests, the number of values not found, and the
/// bytes held at the end.
fn neighbour(server: SocketAddr, name: &str, time: Duration) -> io::Result<(Vec<u64>, u64, u64)> {
    let mut client = Client::connect(server, name)?;
    for key in 0..KEYS {
        client.set(&key.to_string(), VALUE)?;
    }
    let (mut latencies, mut missed) = (Vec::new(), 0);
    let end = Instant::now() + time;
    for turn in 0.. {
        let began = Instant::now();
        if began >= end && turn >= 10 {
            break;
        }
        let key = (turn * 7 % KEYS).to_string();
        if turn % 10 == 0 {
            client.set(&key, VALUE)?;
        } else {
            missed += u64::from(!client.get(&key)?);
        }
        latencies.push(began.elapsed().as_micros() as u64);
        thread::sleep(Duration::from_micros(500));
    }
    Ok((latencies, missed, client.stat("current")?))
}
