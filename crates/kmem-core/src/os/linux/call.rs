//! The call at exit: a program that `kmem run` started waits until `kmem run` has read its books.
//!
//! Context: any, signal handlers included.

use super::owner::is_stopped;
use super::syscall::sys;

/// Longest wait for the reader, as a count of looks. The reader reads one process after the
/// other, on a machine that may be busy. If it has exited, the wait ends at once by a hang-up.
const LOOKS: u32 = 240;
/// Time between two looks, in microseconds: a quarter of a second.
const LOOK: libc::suseconds_t = 250_000;

/// Connects to the abstract socket `name`, sends this process's number, and waits for a byte or a
/// hang-up. Does not wait for a reader that is stopped, because it could stay so for ever. Raises
/// no signal, and returns silently on any error.
pub fn report(name: &[u8]) {
    let mut addr = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    if name.len() >= addr.sun_path.len() {
        return;
    }
    // An abstract name begins with a NUL.
    for (to, from) in addr.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    let patience = libc::timeval { tv_sec: 0, tv_usec: LOOK };
    // SAFETY: all pointers are valid for the lengths given; this function made the descriptor.
    unsafe {
        let fd =
            sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return;
        }
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            sys!(
                libc::SYS_setsockopt,
                fd,
                libc::SOL_SOCKET,
                option,
                &raw const patience,
                size_of_val(&patience)
            );
        }
        if sys!(libc::SYS_connect, fd, &raw const addr, len) == 0 {
            let pid = sys!(libc::SYS_getpid) as u32;
            let mut packet = *b"KMEM\0\0\0\0";
            packet[4..].copy_from_slice(&pid.to_le_bytes());
            sys!(libc::SYS_sendto, fd, packet.as_ptr(), packet.len(), libc::MSG_NOSIGNAL, 0, 0);
            let mut reader = libc::ucred { pid: 0, uid: 0, gid: 0 };
            let mut len = size_of_val(&reader) as libc::socklen_t;
            sys!(
                libc::SYS_getsockopt,
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                &raw mut reader,
                &raw mut len
            );
            let mut reply = [0u8; 1];
            for _ in 0..LOOKS {
                if is_stopped(reader.pid.unsigned_abs()) {
                    break;
                }
                let read = sys!(libc::SYS_read, fd, reply.as_mut_ptr(), 1);
                if read != -(libc::EAGAIN as isize) && read != -(libc::EINTR as isize) {
                    break;
                }
            }
        }
        sys!(libc::SYS_close, fd);
    }
}

/// Ends the process with an exit status.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: touches no memory, and does not return.
        unsafe { sys!(libc::SYS_exit_group, status) };
    }
}
