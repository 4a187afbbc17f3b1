//! Sections for AArch64.

/// One section: `$body` uses `{at}`, the address of the CPU's copy, and its own operands. If there
/// is no copy, `{at}` is zero, and the section jumps to `$leave`. An abort does the same.
macro_rules! section {
    ($units:expr, $handle:expr, $leave:literal, [$($body:literal),*], $($operands:tt)*) => {
        asm!(
            begin_section!("at", concat!("mov {at}, xzr\nb ", $leave)),
            "add {at}, {units}, {at}, lsl 3",
            "ldr {at}, [{at}, {table}]",
            concat!("cbz {at}, ", $leave),
            "add {at}, {at}, {handle}",
            $($body,)*
            "4:",
            rseq = out(reg) _,
            units = in(reg) $units,
            handle = in(reg) $handle,
            table = const TABLE,
            $($operands)*
            options(nostack),
        )
    };
}

/// See [`add`].
macro_rules! add {
    (8, $units:expr, $handle:expr, $by:expr) => {
        section!($units, $handle, "{slow}",
            ["ldr {sum}, [{at}]", "add {sum}, {sum}, {by}", "str {sum}, [{at}]"],
            at = out(reg) _, sum = out(reg) _, by = in(reg) $by, slow = label { return false },)
    };
    (4, $units:expr, $handle:expr, $by:expr) => {
        section!($units, $handle, "{slow}",
            ["ldr {sum:w}, [{at}]", "add {sum:w}, {sum:w}, {by:w}", "str {sum:w}, [{at}]"],
            at = out(reg) _, sum = out(reg) _, by = in(reg) $by, slow = label { return false },)
    };
}

/// See [`swap`].
macro_rules! swap {
    (8, $units:expr, $handle:expr, $new:expr, $at:expr, $old:expr) => {
        section!($units, $handle, "4f",
            ["ldr {old}, [{at}]", "str {new}, [{at}]"],
            at = out(reg) $at, old = out(reg) $old, new = in(reg) $new,)
    };
    (4, $units:expr, $handle:expr, $new:expr, $at:expr, $old:expr) => {
        section!($units, $handle, "4f",
            ["ldr {old:w}, [{at}]", "str {new:w}, [{at}]"],
            at = out(reg) $at, old = out(reg) $old, new = in(reg) $new,)
    };
}

/// See [`add_return`].
macro_rules! add_return {
    (8, $units:expr, $handle:expr, $by:expr, $at:expr, $new:expr) => {
        section!($units, $handle, "4f",
            ["ldr {new}, [{at}]", "add {new}, {new}, {by}", "str {new}, [{at}]"],
            at = out(reg) $at, new = out(reg) $new, by = in(reg) $by,)
    };
    (4, $units:expr, $handle:expr, $by:expr, $at:expr, $new:expr) => {
        section!($units, $handle, "4f",
            ["ldr {new:w}, [{at}]", "add {new:w}, {new:w}, {by:w}", "str {new:w}, [{at}]"],
            at = out(reg) $at, new = out(reg) $new, by = in(reg) $by,)
    };
}

/// See [`read`].
macro_rules! read {
    (8, $units:expr, $handle:expr, $at:expr, $value:expr) => {
        section!($units, $handle, "4f",
            ["ldr {value}, [{at}]"],
            at = out(reg) $at, value = out(reg) $value,)
    };
    (4, $units:expr, $handle:expr, $at:expr, $value:expr) => {
        section!($units, $handle, "4f",
            ["ldr {value:w}, [{at}]"],
            at = out(reg) $at, value = out(reg) $value,)
    };
}

/// See [`replace`].
macro_rules! replace {
    (8, $units:expr, $handle:expr, $old:expr, $new:expr, $at:expr, $seen:expr) => {
        section!($units, $handle, "4f",
            ["ldr {seen}, [{at}]", "cmp {seen}, {old}", "b.ne 4f", "str {new}, [{at}]"],
            at = out(reg) $at, seen = out(reg) $seen, old = in(reg) $old, new = in(reg) $new,)
    };
    (4, $units:expr, $handle:expr, $old:expr, $new:expr, $at:expr, $seen:expr) => {
        section!($units, $handle, "4f",
            ["ldr {seen:w}, [{at}]", "cmp {seen:w}, {old:w}", "b.ne 4f", "str {new:w}, [{at}]"],
            at = out(reg) $at, seen = out(reg) $seen, old = in(reg) $old, new = in(reg) $new,)
    };
}
