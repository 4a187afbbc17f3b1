//! The example of a cache for many tenants, under a small load: a tenant that floods its cache is held at
//! its limit by its own shrinker, and its neighbours lose nothing.
#![cfg(all(target_os = "linux", not(miri)))]

#[path = "../examples/tenant_cache/cache.rs"]
mod cache;
#[path = "../examples/tenant_cache/driver.rs"]
mod driver;
#[path = "../examples/tenant_cache/server.rs"]
mod server;

use driver::{Client, Other, phase};
use kmem_core::Kmem;
use server::Server;
use std::net::TcpListener;
use std::time::Duration;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

#[test]
fn a_flooding_tenant_is_held_at_its_limit_and_its_neighbours_keep_what_they_have() {
    const MAX: u64 = 2 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || Server::new(MAX).run(listener));
    let alone = phase(address, Other::Idle, Duration::from_millis(200)).expect("connections");
    let mut client = Client::connect(address, "other").expect("a connection");
    let mut stat = |name: &str| client.stat(name).expect("a connection");
    assert_eq!((alone.missed, stat("evicted")), (0, 0));
    // Keys that are stored again take the place of what they had.
    let busy = phase(address, Other::Busy, Duration::from_millis(50)).expect("connections");
    assert_eq!((busy.missed, busy.full), (0, 0));
    let beside = phase(address, Other::Flood, Duration::from_millis(500)).expect("connections");
    // More than fits was stored, all of it, and the limit held. (Tables that grow under the lock are
    // refused now and then, which is answered by an eviction.)
    assert!(beside.requests * 4096 > MAX, "{} requests", beside.requests);
    assert!(stat("evicted") > 0);
    assert_eq!(beside.full, 0);
    assert!(beside.other <= MAX && stat("peak") <= MAX);
    assert!(beside.other > MAX / 2, "{} bytes", beside.other);
    // Neighbours found everything; what they hold did not change by more than its tables.
    assert_eq!(beside.missed, 0);
    assert!(beside.latency(500) > 0 && alone.latency(500) > 0);
    assert!(beside.neighbours.1 < alone.neighbours.1 * 2, "{:?}", beside.neighbours);
    for n in 0..3 {
        let mut client = Client::connect(address, &format!("neighbour{n}")).expect("a connection");
        assert_eq!(client.stat("evicted").expect("a connection"), 0);
    }
    assert_eq!(KMEM.group_dying(), 0);
}
