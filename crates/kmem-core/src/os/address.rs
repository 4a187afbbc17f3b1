//! Addresses in a program, and the words of its stack that hold one.

use crate::units::PAGE_SIZE;

/// Bits of an address in a program: the kernel has the addresses above.
pub(crate) const ADDRESS_BITS: u32 = if cfg!(target_arch = "aarch64") { 48 } else { 47 };

/// Returns whether a number may be an address in a program. The first page is never mapped.
#[inline(always)]
pub(crate) const fn is_address(number: usize) -> bool {
    number >= PAGE_SIZE && number >> ADDRESS_BITS == 0
}

/// Return addresses are multiples of this.
pub(crate) const RETURN_UNIT: usize = if cfg!(target_arch = "aarch64") { 4 } else { 1 };

/// The return address in a word of a stack. On AArch64 a function may have signed it: the bits
/// above the address hold a code (Arm Architecture Reference Manual, `XPACLRI`).
#[inline(always)]
pub(crate) fn return_address(word: usize) -> usize {
    #[cfg(target_arch = "aarch64")]
    {
        let ret: usize;
        // SAFETY: clears the code of a number. CPUs without such codes do nothing.
        unsafe {
            core::arch::asm!(
                "hint #7",
                inlateout("x30") word => ret,
                options(nostack, pure, nomem, preserves_flags)
            );
        }
        ret
    }
    #[cfg(not(target_arch = "aarch64"))]
    word
}
