//! The socket at which processes report that they are about to exit.
//!
//! A process under libkmem connects, sends `KMEM` and its pid, and waits for one byte: until
//! then it is alive, and its books are read from outside. Who it is is taken from the kernel,
//! not from the packet.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use super::sys;

/// How long a process that has connected may take to say so.
const PATIENCE: Duration = Duration::from_secs(1);

/// The listening socket.
pub(crate) struct ExitSocket {
    name: String,
    socket: OwnedFd,
}

/// A process that waits for our reply; dropping it lets the process go.
pub(crate) struct Exiting {
    pub(crate) pid: u32,
    connection: OwnedFd,
}

impl ExitSocket {
    /// Listens at a name nobody can guess.
    ///
    /// # Errors
    ///
    /// Fails when the system has no socket or randomness for us.
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

    /// The next process that waits. None when there is none, or it did not speak as it should.
    ///
    /// # Errors
    ///
    /// Fails when no connection can be taken any more.
    pub(crate) fn next(&self) -> io::Result<Option<Exiting>> {
        let Some(connection) = sys::accept(&self.socket)? else {
            return Ok(None);
        };
        let mut packet = [0; 16];
        let (Ok((pid, user)), Ok(8)) =
            (sys::peer(&connection), sys::receive(&connection, &mut packet, PATIENCE))
        else {
            return Ok(None);
        };
        // The name is visible to all users of the machine.
        let own = sys::effective_ids().0;
        let trusted = own == 0 || user == own;
        Ok((pid != 0 && trusted && packet.starts_with(b"KMEM"))
            .then_some(Exiting { pid, connection }))
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
    use std::process::{Command, Stdio};

    /// Connects as the library does; prints what it got.
    const CLIENT: &str = "
import os, socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect('\\0' + sys.argv[1])
s.send(eval(sys.argv[2]))
print(s.recv(1))
";

    fn client(name: &str, packet: &str) -> std::process::Child {
        let mut command = Command::new("python3");
        command.args(["-c", CLIENT, name, packet]).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    fn wait(socket: &ExitSocket) -> Option<Exiting> {
        sys::poll(&[socket.fd()], Duration::from_secs(20)).unwrap();
        socket.next().unwrap()
    }

    #[test]
    fn handshake() {
        let socket = ExitSocket::open().unwrap();
        assert!(socket.next().unwrap().is_none());
        let child = client(socket.name(), "b'KMEM' + struct.pack('<I', os.getpid())");
        let exiting = wait(&socket).unwrap();
        assert_eq!(exiting.pid, child.id());
        exiting.release();
        assert_eq!(child.wait_with_output().unwrap().stdout, b"b'\\x01'\n");
    }

    #[test]
    fn the_kernel_says_who_it_is_and_garbage_is_let_go() {
        let socket = ExitSocket::open().unwrap();
        let child = client(socket.name(), "b'KMEM' + struct.pack('<I', 1)");
        let exiting = wait(&socket).unwrap();
        assert_eq!(exiting.pid, child.id());
        drop(exiting);
        child.wait_with_output().unwrap();
        for packet in ["b'KMEN0000'", "b'KMEM'", "b'KMEM' + b'0' * 100"] {
            let child = client(socket.name(), packet);
            assert!(wait(&socket).is_none());
            assert_eq!(child.wait_with_output().unwrap().stdout, b"b''\n");
        }
    }
}
