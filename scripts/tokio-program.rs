//! A server of sessions on tokio, for scripts/tokio-program.sh. It holds memory in the usual ways
//! until its input ends. Comments say what a line holds: the number of objects, and bytes at least.

use std::collections::HashMap;
#[cfg(feature = "kmem")]
use std::ffi::c_char;
use std::io::Read;
#[cfg(feature = "kmem")]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "kmem")]
#[global_allocator]
static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();

/// With link time optimisation, this is in one object file with kmem's reference to it.
#[cfg(feature = "kmem")]
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static kmem_conf: AtomicPtr<c_char> = AtomicPtr::new(c"decay_ms:1000".as_ptr().cast_mut());

/// Tells where the program lies in memory.
#[unsafe(no_mangle)]
static ANCHOR: u8 = 1;

const SESSIONS: u64 = 500;
/// Sessions that wait for their end.
static WAITING: AtomicU64 = AtomicU64::new(0);

struct Session {
    id: u64,
    name: String,
    pages: Vec<Vec<u8>>,
    index: HashMap<u64, Box<[u64; 16]>>,
}

#[inline(never)]
fn name_of(id: u64) -> String {
    let mut name = String::new();
    for part in 0..20 {
        let header = if (id + part) % 2 == 0 { "user-agent " } else { "accept-all " };
        name.push_str(header); // holds 500 110000
    }
    name
}

#[inline(never)]
fn read_pages(id: u64) -> Vec<Vec<u8>> {
    (0..4).map(|page| vec![(id + page) as u8; 1000]).collect() // holds 2500 2048000
}

#[inline(never)]
fn build_index(id: u64) -> HashMap<u64, Box<[u64; 16]>> {
    let mut index = HashMap::new();
    for key in 0..10 {
        index.insert(key, Box::new([id + key; 16])); // holds 5500 640000
    }
    index
}

async fn open_session(id: u64) -> Session {
    tokio::task::yield_now().await;
    Session { id, name: name_of(id), pages: read_pages(id), index: build_index(id) }
}

/// Keeps a buffer while it waits.
async fn wait_for_end(id: u64, end: oneshot::Receiver<()>) -> u64 {
    let buffer = vec![id; 300]; // holds 500 1200000
    WAITING.fetch_add(1, Ordering::Relaxed);
    let _ = end.await;
    buffer[0]
}

async fn serve(results: mpsc::Sender<Session>) -> Vec<oneshot::Sender<()>> {
    let mut ends = Vec::new();
    for id in 0..SESSIONS {
        let results = results.clone();
        tokio::spawn(async move {
            let session = open_session(id).await;
            let _ = results.send(session).await;
        });
        let (end, ended) = oneshot::channel();
        tokio::spawn(wait_for_end(id, ended));
        ends.push(end);
    }
    ends
}

async fn run() -> u64 {
    let (results, mut incoming) = mpsc::channel(16);
    let (events, mut log) = mpsc::unbounded_channel::<Box<[u8]>>();
    let server = tokio::spawn(serve(results));
    let mut sessions = HashMap::new();
    while let Some(session) = incoming.recv().await {
        let text = vec![b'x'; 128]; // holds 500 64000
        let _ = events.send(text.into());
        sessions.insert(session.id, session);
    }
    let ends = server.await.expect("the server ends");
    while WAITING.load(Ordering::Relaxed) < SESSIONS {
        tokio::task::yield_now().await;
    }
    let _ = tokio::task::spawn_blocking(wait_for_input).await;
    let mut sum = ends.len() as u64;
    for end in ends {
        let _ = end.send(());
    }
    drop(events);
    while let Some(event) = log.recv().await {
        sum += event.len() as u64;
    }
    let parts = |session: &Session| session.name.len() + session.pages.len() + session.index.len();
    sum + sessions.values().map(|session| parts(session) as u64).sum::<u64>()
}

fn wait_for_input() {
    println!("anchor {}", &raw const ANCHOR as usize);
    #[cfg(feature = "kmem")]
    KMEM.census(|tag, bytes, _| println!("site {bytes} {}", KMEM.site_address(tag)));
    println!("ready {}", std::process::id());
    let _ = std::io::stdin().read(&mut [0]);
}

fn main() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(3).enable_time().build().expect("a runtime");
    println!("{}", runtime.block_on(run()));
}
