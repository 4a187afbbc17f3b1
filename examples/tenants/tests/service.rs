//! HTTP load from two tenants. One is held at its limit with 503, the other is served, and `kmem`
//! reads exact bytes of both from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const MAX: u64 = 1 << 20;
/// Bytes of a value.
const VALUE: usize = 10_000;
/// Values of the tenant that is not refused: many times what the other one may hold.
const VALUES: usize = 600;

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tenants"))
            .args(["127.0.0.1:0", &format!("small={MAX}"), "large=64000000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says its address");
        let address = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Self { process, address }
    }

    /// A file of a group, read from outside by `kmem`.
    fn file(&self, group: &str, file: &str) -> String {
        let kmem = std::env::var_os("KMEM").map_or("kmem".into(), PathBuf::from);
        let pid = self.process.id().to_string();
        let output = Command::new(&kmem).args(["group", "show", "-p", &pid, group, file]).output();
        let output = output.unwrap_or_else(|error| panic!("KMEM={}: {error}", kmem.display()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    fn current(&self, group: &str) -> u64 {
        self.file(group, "memory.current").parse().expect("bytes")
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).expect("the service listens");
        Client { stream: BufReader::new(stream) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection that serves one request after the other.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Status and body of the answer to a request.
    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(&[head.as_bytes(), body].concat()).expect("the request is sent");
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("an answer");
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_ascii_lowercase());
        }
        let status = lines[0].split(' ').nth(1).expect("a status").parse().expect("a number");
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        self.stream.read_exact(&mut body).expect("the body");
        (status, String::from_utf8(body).expect("text"))
    }

    /// Refusals that the service was told of. When this returns, the answers before it on this
    /// connection are freed.
    fn refusals(&mut self) -> usize {
        let (status, text) = self.ask("GET", "/", b"");
        assert_eq!(status, 200);
        text.trim().parse().expect("a number")
    }

    /// Values of a tenant, the bytes they cost, and requests that were refused, as the service
    /// counts them.
    fn count(&mut self, path: &str) -> [u64; 3] {
        let (status, text) = self.ask("GET", path, b"");
        assert_eq!(status, 200);
        let mut words = text.split_whitespace().map(|word| word.parse().expect("a number"));
        [(); 3].map(|()| words.next().expect("three words"))
    }
}

#[test]
fn a_tenant_at_its_limit_gets_503_and_the_other_is_served_and_both_are_counted_to_the_byte() {
    let server = Server::start();
    let (stored, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let value = vec![b'x'; VALUE];
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.connect();
                for _ in 0..VALUES / 2 {
                    let (status, text) = client.ask("PUT", "/large", &value);
                    assert_eq!(status, 201, "{text}");
                }
                client.refusals();
            });
            scope.spawn(|| {
                let mut client = server.connect();
                for _ in 0..VALUES / 2 {
                    match client.ask("PUT", "/small", &value) {
                        (201, _) => stored.fetch_add(1, Ordering::Relaxed),
                        (503, text) => {
                            assert_eq!(text, "the tenant is at its limit\n");
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                        (status, text) => panic!("{status}: {text}"),
                    };
                }
                client.refusals();
            });
        }
    });
    let (stored, refused) = (stored.into_inner(), refused.into_inner());
    // The limit is used to the last value that fits.
    assert!(stored * VALUE > MAX as usize * 9 / 10, "{stored} values");
    assert!(stored * VALUE < MAX as usize && refused == VALUES - stored, "{refused} refused");

    let mut client = server.connect();
    let [count, small, answers] = client.count("/small");
    assert_eq!((count, answers), (stored as u64, refused as u64));
    let [count, large, answers] = client.count("/large");
    assert_eq!((count, answers), (VALUES as u64, 0));
    // The function that is told of refusals counted each.
    assert_eq!(client.refusals(), refused);

    // From outside: exactly what the service's values cost.
    assert_eq!(server.current("/small"), small);
    assert_eq!(server.current("/large"), large);
    let events = server.file("/small", "memory.events");
    assert!(events.lines().any(|line| line == format!("oom {refused}")), "{events}");
    assert!(small <= MAX && large > 5 * MAX, "{small} and {large} bytes");

    // At rest both hold nothing, and the small tenant is served again.
    for path in ["/small", "/large"] {
        assert_eq!(client.ask("DELETE", path, b"").0, 200);
        client.refusals();
        assert_eq!(server.current(path), 0);
    }
    assert_eq!(client.ask("PUT", "/small", &value).0, 201);
    assert_eq!(client.ask("PUT", "/nobody", &value).0, 404);
}
