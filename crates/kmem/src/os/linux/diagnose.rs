//! Last words: messages to stderr and an end of the program that a debugger can see.

use super::syscall::sys;

/// Writes to stderr if that neither blocks nor fails; a full pipe loses the message.
pub fn print(text: &[u8]) {
    let mut poll = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: poll fills `revents`; write reads `text`. SIGPIPE cannot be raised for a pipe
    // that poll reported as broken (POLLERR), which is tested.
    unsafe {
        let ready = sys!(libc::SYS_ppoll, &raw mut poll, 1, &raw const now, 0, 8);
        if ready == 1 && poll.revents & libc::POLLOUT != 0 && poll.revents & libc::POLLERR == 0 {
            sys!(libc::SYS_write, 2, text.as_ptr(), text.len());
        }
    }
}

/// `abort()` without the C library's locks: SIGABRT, and if that is blocked or caught and
/// returned from, the default action by force.
pub fn fatal() -> ! {
    // SAFETY: signals to the calling thread only; then an undefined instruction.
    unsafe {
        let pid = sys!(libc::SYS_getpid);
        let tid = sys!(libc::SYS_gettid);
        let unblock: u64 = 1 << (libc::SIGABRT - 1);
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const unblock, 0, 8);
        sys!(libc::SYS_tgkill, pid, tid, libc::SIGABRT);
        let default = [0usize; 4];
        sys!(libc::SYS_rt_sigaction, libc::SIGABRT, default.as_ptr(), 0, 8);
        sys!(libc::SYS_tgkill, pid, tid, libc::SIGABRT);
        loop {
            sys!(libc::SYS_exit_group, 134);
        }
    }
}
