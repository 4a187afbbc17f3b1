//! Diagnostics: messages to stderr, and an end of the program that a debugger catches.
//!
//! Context: any, signal handlers included.

use super::syscall::sys;

/// Writes `text` to stderr if that does not block. A full or broken pipe loses the text.
pub fn print(text: &[u8]) {
    let mut poll = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // A write to a broken pipe would raise SIGPIPE; ppoll reports such a pipe as POLLERR.
    // SAFETY: ppoll fills `revents`; write reads `text`.
    unsafe {
        let ready = sys!(libc::SYS_ppoll, &raw mut poll, 1, &raw const now, 0, 8);
        if ready == 1 && poll.revents & libc::POLLOUT != 0 && poll.revents & libc::POLLERR == 0 {
            write(text);
        }
    }
}

/// Writes `text` to stderr, and waits for a reader if need be.
pub fn write(text: &[u8]) {
    // SAFETY: the kernel reads `text`.
    unsafe { sys!(libc::SYS_write, 2, text.as_ptr(), text.len()) };
}

/// Ends the program as `abort()` does, but takes no lock of the C library. Raises SIGABRT; if a
/// handler returns, restores the default action and raises it again.
pub fn fatal() -> ! {
    // SAFETY: the kernel reads `unblock` and `default`; the signals go to the calling thread.
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
