//! The example of a cache for many tenants, under a small load. A shrinker holds the tenant that
//! floods its cache at the limit, and the neighbours lose nothing.
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
    // A key that is stored again replaces its entry.
    let busy = phase(address, Other::Busy, Duration::from_millis(50)).expect("connections");
    assert_eq!((busy.missed, busy.full), (0, 0));
    let beside = phase(address, Other::Flood, Duration::from_millis(500)).expect("connections");
    // The tenant stored more than its limit holds, and no request was refused. (Tables that grow
    // under the lock are refused now and then. The cache then evicts entries.)
    assert!(beside.requests * 4096 > MAX, "{} requests", beside.requests);
    assert!(stat("evicted") > 0);
    assert_eq!(beside.full, 0);
    assert!(beside.other <= MAX && stat("peak") <= MAX);
    assert!(beside.other > MAX / 2, "{} bytes", beside.other);
    // Neighbours found everything. Only their tables may have grown.
    assert_eq!(beside.missed, 0);
    assert!(beside.latency(500) > 0 && alone.latency(500) > 0);
    assert!(beside.neighbours.1 < alone.neighbours.1 * 2, "{:?}", beside.neighbours);
    for n in 0..3 {
        let mut client = Client::connect(address, &format!("neighbour{n}")).expect("a connection");
        assert_eq!(client.stat("evicted").expect("a connection"), 0);
    }
    assert_eq!(KMEM.group_dying(), 0);
}
