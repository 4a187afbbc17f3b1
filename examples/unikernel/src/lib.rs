//! The machine below the programs of this package: its start, memory, CPUs, interrupts, clock and
//! serial line. A kernel has all this already.
#![no_std]

pub mod boot;
pub mod interrupts;
pub mod paging;
pub mod serial;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    line!("panic: {info}");
    serial::exit(2)
}
