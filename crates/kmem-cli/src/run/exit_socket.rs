//! The socket at which processes report that they are about to exit.
//!
//! A process under libkmem connects, sends `KMEM` and its pid, and waits for one byte. Until it
//! gets the byte it is alive, and its books can be read from outside. Its pid is taken from the
//! kernel (`SO_PEERCRED`), not from the packet.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use super::sys;

/// Time that a connected process has to send its packet, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The listening socket.
pub(crate) struct ExitSocket {
    name: String,
    socket: OwnedFd,
}

/// A process that waits for the reply. Dropping it closes the connection, and the process exits.
pub(crate) struct Exiting {
    pub(crate) pid: u32,
    connection: OwnedFd,
}

impl ExitSocket {
    /// Listens at a random name, which other users cannot guess.
    ///
    /// # Errors
    ///
    /// The errors of `socket`, `bind`, `listen`, and of reading `/dev/urandom`.
    pub(crate) fn open() -> io::Result<Self> {
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let random = u64::from_ne_bytes(random);
        let name = format!("kmem-run-{}-{random:016x}", std::process::id());
        let socket = sys::listen(&name)?;
        Ok(Self { name, socket })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Accepts the next process. None when no process waits, or it does not follow the protocol.
    ///
    /// # Errors
    ///
    /// The errors of `accept`.
    pub(crate) fn next(&self) -> io::Result<Option<Exiting>> {
        let Some(connection) = sys::accept(&self.socket)? else {
            return Ok(None);
        };
        // All users can see the name in /proc/net/unix. Processes of other users are refused.
        let own = sys::effective_ids().0;
        let Some((pid, _)) = sys::peer(&connection)
            .ok()
            .filter(|&(pid, user)| pid != 0 && (own == 0 || user == own))
        else {
            return Ok(None);
        };
        let mut packet = [0; 16];
        let spoke = sys::receive(&connection, &mut packet, PATIENCE).is_ok_and(|len| len == 8);
        Ok((spoke && packet.starts_with(b"KMEM")).then_some(Exiting { pid, connection }))
    }
}

impl Exiting {
    /// Lets the process exit.
    pub(crate) fn release(self) {
        sys::send(&self.connection, &[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use tempfile::TempDir;

    /// Connects as the library does, sends a text and a pid, and prints the result of `recv`.
    const CLIENT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sockaddr_un addr = { AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), pid = argc > 3 ? atoi(argv[3]) : getpid();
	memcpy(addr.sun_path + 1, argv[1], strlen(argv[1]));
	connect(fd, (void *)&addr, sizeof addr.sun_family + 1 + strlen(argv[1]));
	char packet[200];
	size_t len = strlen(argv[2]);
	memcpy(packet, argv[2], len);
	memcpy(packet + len, &pid, sizeof pid);
	send(fd, packet, len + sizeof pid, 0);
	char reply;
	printf("%zd\n", recv(fd, &reply, 1, 0));
}
"#;

    struct Client {
        program: PathBuf,
        _dir: TempDir,
    }

    impl Client {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (source, program) = (dir.path().join("client.c"), dir.path().join("client"));
            std::fs::write(&source, CLIENT).unwrap();
            let built = Command::new("cc").arg(&source).arg("-o").arg(&program).status();
            assert!(built.unwrap().success());
            Self { program, _dir: dir }
        }

        fn start(&self, socket: &ExitSocket, packet: &[&str]) -> Child {
            let mut command = Command::new(&self.program);
            command.arg(socket.name()).args(packet).stdout(Stdio::piped()).spawn().unwrap()
        }
    }

    fn wait(socket: &ExitSocket) -> Option<Exiting> {
        sys::poll(&[socket.fd()], Duration::from_secs(60)).unwrap();
        socket.next().unwrap()
    }

    /// Count of bytes that the client got, as it prints it.
    fn got(child: Child) -> String {
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    #[test]
    fn handshake() {
        let socket = ExitSocket::open().unwrap();
        assert!(socket.next().unwrap().is_none());
        let child = Client::new().start(&socket, &["KMEM"]);
        let exiting = wait(&socket).unwrap();
        assert_eq!(exiting.pid, child.id());
        exiting.release();
        assert_eq!(got(child), "1\n");
    }

    #[test]
    fn the_kernel_says_who_it_is_and_garbage_is_let_go() {
        let socket = ExitSocket::open().unwrap();
        let client = Client::new();
        let child = client.start(&socket, &["KMEM", "1"]);
        let exiting = wait(&socket).unwrap();
        assert_eq!(exiting.pid, child.id());
        drop(exiting);
        assert_eq!(got(child), "0\n");
        for packet in ["KMEN", "", &"KMEM".repeat(40)] {
            let child = client.start(&socket, &[packet]);
            assert!(wait(&socket).is_none());
            assert_eq!(got(child), "0\n");
        }
    }
}
