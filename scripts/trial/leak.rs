//! A server of sessions: each of four threads takes 450,000 requests, which are two million
//! allocations in all. Each ninth request opens a session that is never closed.

use std::collections::HashMap;

/// With `text`, the memory of a session is in a string, which the standard library grows.
#[cfg(text)]
struct Session {
    id: u64,
    state: String,
}

#[cfg(not(text))]
struct Session {
    id: u64,
    state: [u8; 232],
}

#[cfg(text)]
#[inline(never)]
fn open_session(id: u64) -> &'static mut Session {
    let mut state = String::new();
    state.push_str(&STATE[..220 + id as usize % 12]); // the text
    Box::leak(Box::new(Session { id, state }))
}

#[cfg(text)]
static STATE: &str = match std::str::from_utf8(&[b'x'; 232]) {
    Ok(text) => text,
    Err(_) => panic!("letters"),
};

#[cfg(not(text))]
#[inline(never)]
fn open_session(id: u64) -> &'static mut Session {
    Box::leak(Box::new(Session { id, state: [1; 232] })) // the leak
}

fn read(request: &str) -> u64 {
    let pass = |hash, _| {
        request
            .bytes()
            .fold(hash, |hash: u64, letter| hash.wrapping_mul(31).wrapping_add(u64::from(letter)))
    };
    (0..4).fold(0, pass)
}

fn serve(thread: u64) -> u64 {
    let mut recent: HashMap<u64, String> = HashMap::new();
    let mut checksum = thread;
    for id in 0..450_000 {
        if id % 9 == 0 {
            let session = open_session(id);
            checksum += session.id + session.state.len() as u64;
        }
        let request = "x".repeat(20 + id as usize % 200);
        checksum = checksum.wrapping_add(read(&request));
        recent.insert(id % 1000, request);
    }
    checksum
}

fn main() {
    let threads = [0, 1, 2, 3].map(|thread| std::thread::spawn(move || serve(thread)));
    let sums = threads.map(|thread| thread.join().expect("a thread that does not panic"));
    println!("{}", sums[0]);
}
