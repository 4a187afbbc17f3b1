//! The timer's interrupt of the first CPU, and its page faults.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::boot;

global_asm!(
    ".pushsection .text.timer, \"ax\"",
    "timer_entry:",
    // The registers that a function may change. There are no others without floating point.
    "push rax; push rcx; push rdx; push rsi; push rdi; push r8; push r9; push r10; push r11",
    "cld",
    "call {timer}",
    "pop r11; pop r10; pop r9; pop r8; pop rdi; pop rsi; pop rdx; pop rcx; pop rax",
    "iretq",
    // A page fault: error code and address of the instruction are on the stack.
    "fault_entry:",
    "push rax",
    "lea rax, [rip + probe]",
    "cmp [rsp + 16], rax",
    "jne 2f",
    "lea rax, [rip + 3f]",
    "mov [rsp + 16], rax",
    "pop rax",
    "add rsp, 8",
    "iretq",
    "2: mov rdi, [rsp + 16]",
    "mov rsi, cr2",
    "and rsp, -16",
    "call {fault}",
    ".globl probe",
    "probe: movzx eax, byte ptr [rdi]",
    "ret",
    "3: mov eax, -1",
    "ret",
    ".popsection",
    timer = sym timer,
    fault = sym fault,
);

unsafe extern "C" {
    fn timer_entry();
    fn fault_entry();
    /// Reads a byte; -1 where the page is inaccessible.
    pub safe fn probe(at: usize) -> i32;
}

const TIMER: usize = 32;
const PAGE_FAULT: usize = 14;

#[repr(C, align(16))]
struct Gates(UnsafeCell<[[u64; 2]; 256]>);
// SAFETY: written before interrupts are on.
unsafe impl Sync for Gates {}
static GATES: Gates = Gates(UnsafeCell::new([[0; 2]; 256]));

/// Address of the handler, and true while it runs.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
static RUNS: AtomicBool = AtomicBool::new(false);

extern "C" fn timer() {
    RUNS.store(true, Ordering::Relaxed);
    let handler = HANDLER.load(Ordering::Acquire);
    // SAFETY: `start` wrote a function's address before interrupts were on.
    unsafe { core::mem::transmute::<usize, fn()>(handler)() };
    RUNS.store(false, Ordering::Relaxed);
    boot::apic(0xB0, 0); // end of the interrupt
}

extern "C" fn fault(instruction: usize, address: usize) -> ! {
    crate::line!("fault: {instruction:#x} reached for {address:#x}");
    crate::serial::exit(7)
}

/// An interrupt gate of the code segment: other interrupts are off in the handler.
fn gate(entry: unsafe extern "C" fn()) -> [u64; 2] {
    let entry = entry as usize as u64;
    [entry & 0xffff | 8 << 16 | 0x8E00 << 32 | (entry >> 16 & 0xffff) << 48, entry >> 32]
}

/// Returns whether the calling CPU runs an interrupt handler.
pub fn is_in_one() -> bool {
    RUNS.load(Ordering::Relaxed) && boot::cpu() == 0
}

/// Has the first CPU call `handler` some thousand times a second.
pub fn start(handler: fn()) {
    HANDLER.store(handler as usize, Ordering::Release);
    #[repr(C, packed)]
    struct Pointer(u16, u64);
    let pointer = Pointer(0xfff, GATES.0.get() as u64);
    // SAFETY: one CPU, with interrupts off; the table stays.
    unsafe {
        (*GATES.0.get())[TIMER] = gate(timer_entry);
        (*GATES.0.get())[PAGE_FAULT] = gate(fault_entry);
        asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack));
    }
    // The old controllers have nothing to say.
    crate::serial::out(0x21, 0xff);
    crate::serial::out(0xA1, 0xff);
    boot::apic(0xF0, 0x1FF);
    boot::apic(0x3E0, 0x3);
    boot::apic(0x320, 1 << 17 | TIMER as u32);
    boot::apic(0x380, 20_000);
    // SAFETY: the handler is there.
    unsafe { asm!("sti", options(nomem, nostack)) };
}

/// Stops the calling CPU until the next interrupt, if it gets any.
pub fn wait() {
    if boot::cpu() == 0 && HANDLER.load(Ordering::Relaxed) != 0 {
        // SAFETY: the timer goes on.
        unsafe { asm!("hlt", options(nomem, nostack)) };
    }
}

/// Ends interrupts on the calling CPU.
pub fn stop() {
    // SAFETY: no code waits for an interrupt after this.
    unsafe { asm!("cli", options(nomem, nostack)) };
}
