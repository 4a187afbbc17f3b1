//! Reports written when the program asks for them: `malloc_stats`, `malloc_info`.

use core::ffi::{c_int, c_void};

use kmem_core::os::Console;

use crate::{KMEM, errno};

/// A text in a buffer on the stack.
struct Text {
    bytes: [u8; 1024],
    len: usize,
}

impl core::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

impl Text {
    /// Formats without allocating; stops at the first part that does not fit.
    fn of(args: core::fmt::Arguments<'_>) -> Self {
        let mut text = Self { bytes: [0; 1024], len: 0 };
        let _ = core::fmt::write(&mut text, args);
        text
    }
}

/// `malloc_stats(3)`: prints the lines of glibc to standard error, and one more. The arena is the
/// slabs; page allocations are what glibc calls mmap regions, of this moment.
#[unsafe(no_mangle)]
extern "C" fn malloc_stats() {
    let stats = KMEM.stats();
    let text = Text::of(format_args!(
        "Arena 0:\nsystem bytes     = {:10}\nin use bytes     = {:10}\n\
         Total (incl. mmap):\nsystem bytes     = {:10}\nin use bytes     = {:10}\n\
         max mmap regions = {:10}\nmax mmap bytes   = {:10}\n",
        stats.used.saturating_sub(stats.large),
        stats.tracked.saturating_sub(stats.large),
        stats.used,
        stats.tracked,
        stats.large_blocks,
        stats.large
    ));
    KMEM.platform().print(&text.bytes[..text.len]);
    let text = Text::of(format_args!(
        "kmem: {} bytes in {} allocations (of which {} bytes in {} page allocations); \
         {} bytes of slabs and pages in use, {} bytes of heap\n",
        stats.tracked, stats.objects, stats.large, stats.large_blocks, stats.used, stats.committed
    ));
    KMEM.platform().print(&text.bytes[..text.len]);
}

unsafe extern "C" {
    fn fwrite(from: *const c_void, size: usize, count: usize, file: *mut libc::FILE) -> usize;
}

/// # Safety
/// As for `malloc_info(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_info(options: c_int, file: *mut libc::FILE) -> c_int {
    if options != 0 || file.is_null() {
        errno::set(libc::EINVAL);
        return if options != 0 { libc::EINVAL } else { -1 };
    }
    let stats = KMEM.stats();
    let text = Text::of(format_args!(
        "<malloc version=\"kmem-1\">\n<total type=\"tracked\" count=\"{}\" size=\"{}\"/>\n\
         <total type=\"large\" count=\"{}\" size=\"{}\"/>\n<system type=\"used\" size=\"{}\"/>\n\
         <system type=\"committed\" size=\"{}\"/>\n</malloc>\n",
        stats.objects, stats.tracked, stats.large_blocks, stats.large, stats.used, stats.committed
    ));
    // SAFETY: by the contract an open stream; `text` has `len` bytes.
    let written = unsafe { fwrite(text.bytes.as_ptr().cast(), 1, text.len, file) };
    if written == text.len { 0 } else { -1 }
}
