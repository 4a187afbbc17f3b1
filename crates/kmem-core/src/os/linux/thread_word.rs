//! Words of which each thread has its own: static thread-local storage, without a call to find it.

/// Defines `get` and `set` of a word that each thread has, zero at first. No other module reads or
/// writes it. `$symbol` is its name for the linker.
///
/// Reading it costs two instructions on x86-64.
macro_rules! define {
    ($symbol:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ", \"awT\", %nobits"),
            ".balign 8",
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ", %object"),
            concat!(".size ", $symbol, ", 8"),
            concat!($symbol, ": .zero 8"),
            ".popsection",
        );

        /// The word's address.
        #[inline(always)]
        fn place() -> *mut usize {
            let at: *mut usize;
            // SAFETY: computes an address from the thread pointer.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                core::arch::asm!("mov {0}, fs:[0]",
                    concat!("add {0}, [rip + ", $symbol, "@GOTTPOFF]"),
                    out(reg) at, options(nostack, readonly));
                #[cfg(target_arch = "aarch64")]
                core::arch::asm!("mrs {0}, tpidr_el0", concat!("adrp {1}, :gottprel:", $symbol),
                    concat!("ldr {1}, [{1}, :gottprel_lo12:", $symbol, "]"), "add {0}, {0}, {1}",
                    out(reg) at, out(reg) _, options(nostack, readonly, preserves_flags));
            }
            at
        }

        #[inline(always)]
        pub(super) fn get() -> usize {
            #[cfg(target_arch = "x86_64")]
            {
                let word: usize;
                // SAFETY: reads the calling thread's own word.
                unsafe {
                    core::arch::asm!(concat!("mov {0}, [rip + ", $symbol, "@GOTTPOFF]"),
                        "mov {0}, fs:[{0}]", out(reg) word,
                        options(nostack, readonly, preserves_flags));
                }
                word
            }
            #[cfg(not(target_arch = "x86_64"))]
            // SAFETY: the calling thread's own word, aligned, which only this module uses.
            unsafe {
                *place()
            }
        }

        pub(super) fn set(word: usize) {
            // SAFETY: the calling thread's own word, aligned, which only this module uses.
            unsafe { *place() = word }
        }
    };
}

pub(crate) use define;
