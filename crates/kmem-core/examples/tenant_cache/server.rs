//! The protocol: lines of text over TCP, a thread per connection.
//!
//! ```text
//! TENANT name          OK | ERROR why      selects the cache of the connection
//! SET key bytes        STORED | FULL       followed by that many bytes
//! GET key              VALUE bytes | NONE  followed by that many bytes
//! STATS                STAT current=.. max=.. peak=.. evicted=.. refused=..
//! ```

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;

use kmem_layout::group::group_event;

use crate::cache::Tenant;

/// Longest line.
const MAX_LINE: u64 = 300;
/// Longest value.
const MAX_VALUE: usize = 1 << 20;

/// The tenants, and the limit of each.
pub(crate) struct Server {
    max: u64,
    tenants: Mutex<BTreeMap<String, &'static Tenant>>,
}

impl Server {
    /// A server whose tenants may hold `max` bytes each.
    pub(crate) fn new(max: u64) -> &'static Self {
        Box::leak(Box::new(Self { max, tenants: Mutex::default() }))
    }

    /// Serves connections until the program ends.
    pub(crate) fn run(&'static self, listener: TcpListener) {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                // An error ends the connection.
                let _ = self.serve(&stream);
            });
        }
    }

    fn tenant(&self, name: &str) -> Result<&'static Tenant, kmem_core::memcg::GroupError> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&tenant) = tenants.get(name) {
            return Ok(tenant);
        }
        let tenant = Tenant::create(name, self.max)?;
        tenants.insert(name.to_string(), tenant);
        Ok(tenant)
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut input, mut output) = (BufReader::new(stream), stream);
        let (mut line, mut reply) = (Vec::new(), Vec::new());
        let mut tenant = None;
        loop {
            line.clear();
            reply.clear();
            input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
            if line.pop() != Some(b'\n') {
                return Ok(());
            }
            let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
            match (&words[..], tenant) {
                ([b"TENANT", name], _) => {
                    let name = String::from_utf8_lossy(name);
                    match self.tenant(&name) {
                        Ok(found) => {
                            tenant = Some(found);
                            reply.extend(b"OK\n");
                        }
                        Err(error) => writeln!(reply, "ERROR {error}")?,
                    }
                }
                ([b"SET", key, len], Some(tenant)) => {
                    let len = core::str::from_utf8(len).ok().and_then(|len| len.parse().ok());
                    let Some(len) = len.filter(|&len| len <= MAX_VALUE) else {
                        // The value that follows cannot be told from requests.
                        return output.write_all(b"ERROR not a length\n");
                    };
                    let stored = match tenant.prepare(key, len) {
                        Some((keys, mut value)) => {
                            value.resize(len, 0);
                            input.read_exact(&mut value)?;
                            tenant.set(keys, value)
                        }
                        None => {
                            io::copy(&mut input.by_ref().take(len as u64), &mut io::sink())?;
                            false
                        }
                    };
                    reply.extend(if stored { &b"STORED\n"[..] } else { b"FULL\n" });
                }
                ([b"GET", key], Some(tenant)) => {
                    let found = tenant.get(key, |value| {
                        reply.extend(format!("VALUE {}\n", value.len()).bytes());
                        reply.extend(value);
                    });
                    if !found {
                        reply.extend(b"NONE\n");
                    }
                }
                ([b"STATS"], Some(tenant)) => {
                    let stat = tenant.stat();
                    writeln!(
                        reply,
                        "STAT current={} max={} peak={} evicted={} refused={}",
                        stat.current,
                        stat.max,
                        stat.peak,
                        tenant.evicted(),
                        stat.events[group_event::OOM],
                    )?;
                }
                _ => reply.extend(b"ERROR not a request\n"),
            }
            output.write_all(&reply)?;
        }
    }
}
