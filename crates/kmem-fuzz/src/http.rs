//! Requests to `kmem export`, over a real socket to the server of the command.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread;

use kmem_snapshot::export::{Exporter, Selection};

use crate::Answer;

#[path = "../../kmem-cli/src/export/server.rs"]
mod server;

/// Sends the bytes, and reads the answer to its end.
pub(crate) fn read(bytes: &[u8], answer: &mut Answer) {
    let mut stream = TcpStream::connect(address()).expect("the server listens");
    // The server may close the connection before it has all.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    let text = String::from_utf8_lossy(&received);
    assert!(received.is_empty() || text.starts_with("HTTP/1."), "{text}");
    // The answer to a reading that panicked.
    assert!(!text.contains("the reading failed"), "{text}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    answer.show(head.replace('\r', "").as_bytes());
    answer.show(body.as_bytes());
}

/// Address of the server, which runs until the program ends.
fn address() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        // No process has this number, so answers do not depend on the machine.
        let selection = Selection { pids: vec![u32::MAX], ..Selection::default() };
        thread::spawn(move || server::run(listener, Exporter::new(selection)));
        address
    })
}
