//! From the machine's start to Rust code in 64-bit mode, on both CPUs. The first CPU starts by PVH:
//! `qemu -kernel` boots an ELF file that has the note below. The second starts by INIT and SIPI.

use core::arch::global_asm;

global_asm!(
    ".pushsection .note.pvh, \"a\", @note",
    ".balign 4",
    ".long 4, 8, 18", // name, descriptor, XEN_ELFNOTE_PHYS32_ENTRY
    ".asciz \"Xen\"",
    ".quad boot32",
    ".popsection",
    ".pushsection .text.boot, \"ax\"",
    ".weak second_cpu",
    // 32 bits, no paging; ebx: the start information.
    ".code32",
    ".globl boot32",
    "boot32:",
    "cli",
    "cld",
    "mov esp, offset boot_stack_top",
    // The first 4 GiB at their own addresses, in pages of 2 MiB.
    "mov eax, offset pdpt",
    "or eax, 3",
    "mov dword ptr [pml4], eax",
    "mov dword ptr [pml4 + 256 * 8], eax", // and at HIGH
    "mov ecx, 0",
    "2: mov eax, ecx",
    "shl eax, 12",
    "add eax, offset pd",
    "or eax, 3",
    "mov dword ptr [pdpt + ecx * 8], eax",
    "inc ecx",
    "cmp ecx, 4",
    "jne 2b",
    "mov ecx, 0",
    "3: mov eax, ecx",
    "shl eax, 21",
    "or eax, 0x83",
    "mov dword ptr [pd + ecx * 8], eax",
    "inc ecx",
    "cmp ecx, 2048",
    "jne 3b",
    "call enable64",
    "push 8",
    "mov eax, offset boot64",
    "push eax",
    "retf",
    "enable64:",
    "mov eax, offset pml4",
    "mov cr3, eax",
    "mov eax, cr4",
    "or eax, 0x20",
    "mov cr4, eax",
    "mov ecx, 0xC0000080",
    "rdmsr",
    "or eax, 0x100",
    "wrmsr",
    "mov eax, cr0",
    "or eax, 0x80000001",
    "mov cr0, eax",
    "lgdt [gdt_pointer]",
    "ret",
    // The second CPU, in 32 bits.
    "ap32:",
    "mov ax, 0x10",
    "mov ds, ax",
    "mov ss, ax",
    "mov esp, offset ap_stack_top",
    "call enable64",
    "push 8",
    "mov eax, offset ap64",
    "push eax",
    "retf",
    ".code64",
    "boot64:",
    "mov ax, 0x10",
    "mov ds, ax",
    "mov es, ax",
    "mov ss, ax",
    "lea rsp, [rip + boot_stack_top]",
    "mov edi, ebx",
    "call {main}",
    "4: hlt",
    "jmp 4b",
    "ap64:",
    "mov ax, 0x10",
    "mov ds, ax",
    "mov es, ax",
    "mov ss, ax",
    "lea rsp, [rip + ap_stack_top]",
    "call {second}",
    "5: hlt",
    "jmp 5b",
    // Copied to 0x8000: 16 bits, real mode.
    ".code16",
    ".globl trampoline",
    "trampoline:",
    "cli",
    "xor ax, ax",
    "mov ds, ax",
    ".byte 0x66, 0x0f, 0x01, 0x16", // lgdt of 32 bits, at a 16-bit address
    ".word 0x8000 + trampoline_gdt - trampoline",
    "mov eax, cr0",
    "or eax, 1",
    "mov cr0, eax",
    ".byte 0x66, 0xea", // far jump, 32-bit offset
    ".long ap32",
    ".word 0x18",
    ".balign 4",
    "trampoline_gdt: .word gdt_end - gdt - 1",
    ".long gdt",
    ".globl trampoline_end",
    "trampoline_end:",
    ".code64",
    ".popsection",
    ".pushsection .data.boot, \"aw\"",
    ".balign 16",
    "gdt: .quad 0",
    ".quad 0x00af9a000000ffff", // 0x08: code, 64 bits
    ".quad 0x00cf92000000ffff", // 0x10: data
    ".quad 0x00cf9a000000ffff", // 0x18: code, 32 bits
    "gdt_end:",
    "gdt_pointer: .word gdt_end - gdt - 1",
    ".long gdt",
    ".popsection",
    ".pushsection .bss.boot, \"aw\", @nobits",
    ".balign 4096",
    "pml4: .zero 4096",
    "pdpt: .zero 4096",
    "pd: .zero 4 * 4096",
    ".zero 8 << 20",
    "boot_stack_top:",
    ".zero 256 << 10",
    "ap_stack_top:",
    ".popsection",
    main = sym kernel_main,
    second = sym second_cpu,
);

// Which program defines them, and where the second CPU goes.
unsafe extern "C" {
    fn kernel_main(info: usize) -> !;
    fn second_cpu() -> !;
    static trampoline: u8;
    static trampoline_end: u8;
    static image_end: u8;
}

/// The first address behind the program.
fn end() -> usize {
    &raw const image_end as usize
}

/// Where all memory is a second time, as kernels have it: the upper half of the address space.
pub const HIGH: usize = 0xffff_8000_0000_0000;

/// The CPU's number: that of its APIC.
pub fn cpu() -> u32 {
    core::arch::x86_64::__cpuid(1).ebx >> 24
}

/// Cycles of the CPU.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Milliseconds, if the CPU has a cycle in a nanosecond. Nothing here needs them to be exact.
pub fn now_ms() -> u64 {
    ticks() / 1_000_000
}

/// A random number of the CPU.
pub fn entropy() -> u64 {
    let (mut number, mut done) = (0u64, 0u8);
    while done == 0 {
        // SAFETY: the emulated CPU has the instruction.
        unsafe {
            core::arch::asm!("rdrand {}", "setc {}", out(reg) number, out(reg_byte) done,
                options(nomem, nostack));
        }
    }
    number
}

/// Writes a register of the CPU's local APIC.
pub(crate) fn apic(offset: usize, value: u32) {
    const APIC: usize = 0xFEE0_0000;
    // SAFETY: the local APIC's registers, mapped at their own address.
    unsafe { ((APIC + offset) as *mut u32).write_volatile(value) }
}

/// Starts the second CPU, which goes to `second_cpu` of the program.
pub fn start_second() {
    // SAFETY: memory below 1 MiB that no other code uses; the code lies between the two symbols.
    unsafe {
        let from = &raw const trampoline;
        let length = (&raw const trampoline_end).offset_from_unsigned(from);
        core::ptr::copy_nonoverlapping(from, 0x8000 as *mut u8, length);
    }
    // To all but this CPU: INIT, then twice "start at 0x8000".
    apic(0xF0, 0x1FF);
    for command in [0xC_4500, 0xC_4608, 0xC_4608] {
        apic(0x300, command);
        crate::serial::pause(10_000_000);
    }
}

/// The ranges of memory behind the program and below 4 GiB: address and bytes, filled with zeroes.
///
/// # Safety
/// `info` is what PVH passes on. No other code uses this memory, and the function is called once.
pub unsafe fn memory(info: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    // SAFETY: the layout of `hvm_start_info` and its memory map.
    let (map, count) = unsafe {
        (((info + 40) as *const u64).read() as usize, ((info + 48) as *const u32).read())
    };
    (0..count as usize).filter_map(move |entry| {
        let at = map + entry * 24;
        // SAFETY: an entry of the map.
        let (start, length, kind) = unsafe {
            (
                (at as *const u64).read() as usize,
                ((at + 8) as *const u64).read() as usize,
                ((at + 16) as *const u32).read(),
            )
        };
        let end = (start + length).min(4 << 30) & !0xfff;
        let start = start.max(end_of_image());
        if kind != 1 || end <= start {
            return None;
        }
        let at = start as *mut u8;
        // SAFETY: memory that no other code uses, by the contract.
        unsafe { at.write_bytes(0, end - start) };
        Some((at, end - start))
    })
}

fn end_of_image() -> usize {
    end().next_multiple_of(2 << 20)
}
