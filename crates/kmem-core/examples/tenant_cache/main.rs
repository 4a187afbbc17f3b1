//! A cache for many tenants over TCP, on kmem: a group per tenant, with a limit and a shrinker that
//! evicts the tenant's oldest entries.
//!
//! ```sh
//! cargo run --release -p kmem-core --example tenant_cache -- serve 127.0.0.1:7070
//! cargo run --release -p kmem-core --example tenant_cache -- flood
//! ```
//!
//! `flood` runs a server and three tenants that read and write their entries. They run alone, then
//! beside a tenant that is busy within its limit, then beside one that floods its cache. It prints
//! the latencies of each phase.

mod cache;
mod driver;
mod server;

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use driver::{Client, Other, phase};
use kmem_core::Kmem;
use server::Server;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

/// Most bytes of each tenant.
const MAX: u64 = 16 << 20;

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            Server::new(MAX).run(TcpListener::bind(address)?);
            Ok(())
        }
        ["flood"] => flood(Duration::from_secs(5)),
        _ => Err(io::Error::other("usage: tenant_cache serve ADDRESS | tenant_cache flood")),
    }
}

fn flood(time: Duration) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || Server::new(MAX).run(listener));
    println!(
        "{:<24} {:>8} {:>8} {:>8}  {:>15}  {:>9} {:>9}",
        "", "p50", "p99", "p99.9", "neighbours hold", "the other", "its SETs"
    );
    for (other, name) in [
        (Other::Idle, "alone"),
        (Other::Busy, "beside a busy tenant"),
        (Other::Flood, "beside a flooding tenant"),
    ] {
        let seen = phase(address, other, time)?;
        let (least, most) = seen.neighbours;
        println!(
            "{name:<24} {:>5} us {:>5} us {:>5} us  {:>4}..{:>4} KiB    {:>5} KiB {:>9}",
            seen.latency(500),
            seen.latency(990),
            seen.latency(999),
            least >> 10,
            most >> 10,
            seen.other >> 10,
            seen.requests,
        );
        assert_eq!(
            (seen.missed, seen.full),
            (0, 0),
            "a neighbour lost an entry, or a SET was refused"
        );
        assert!(seen.other <= MAX);
    }
    let mut client = Client::connect(address, "other")?;
    println!(
        "the flooding tenant: max {} KiB, peak {} KiB, {} entries evicted, {} requests refused",
        client.stat("max")? >> 10,
        client.stat("peak")? >> 10,
        client.stat("evicted")?,
        client.stat("refused")?,
    );
    for n in 0..3 {
        let mut client = Client::connect(address, &format!("neighbour{n}"))?;
        println!("neighbour{n}: {} entries evicted", client.stat("evicted")?);
    }
    Ok(())
}
