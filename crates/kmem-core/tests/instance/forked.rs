//! Work in a forked child.

/// Does `work` in a forked child. Returns its result there; false if the child was killed. The
/// child is killed after a minute.
///
/// # Safety
/// `work` does only what a forked child of this process may do. It uses nothing that another thread
/// of the parent may have locked, and it does not panic.
pub(crate) unsafe fn forked(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `work`, which the contract allows, and leaves by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            libc::_exit(i32::from(!work()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status == 0
    }
}
