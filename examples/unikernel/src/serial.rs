//! The serial line, and the end of the machine.

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn out(port: u16, byte: u8) {
    // SAFETY: ports of the serial line and of the device that ends the machine.
    unsafe { asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack)) };
}

/// Writes bytes.
pub fn write(bytes: &[u8]) {
    for &byte in bytes {
        out(0x3F8, byte);
    }
}

/// Waits about `cycles` cycles of the CPU.
pub fn pause(cycles: u64) {
    let start = crate::boot::ticks();
    while crate::boot::ticks() - start < cycles {
        core::hint::spin_loop();
    }
}

/// Ends the machine; the emulator's exit code is `code * 2 + 1`.
pub fn exit(code: u8) -> ! {
    out(0xF4, code);
    loop {
        core::hint::spin_loop();
    }
}

/// For `write!`: one CPU at a time.
pub struct Line;

static BUSY: AtomicBool = AtomicBool::new(false);

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        while BUSY.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        write(text.as_bytes());
        BUSY.store(false, Ordering::Release);
        Ok(())
    }
}

/// Prints a line on the serial line.
#[macro_export]
macro_rules! line {
    ($($what:tt)*) => {{
        use core::fmt::Write;
        let _ = writeln!($crate::serial::Line, $($what)*);
    }};
}
