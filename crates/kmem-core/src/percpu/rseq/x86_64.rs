//! Sections for x86-64.

/// One section: `$body` uses `{at}`, the address of the CPU's copy, and its own operands. If there
/// is no copy, `{at}` is zero, and the section jumps by `$leave`. An abort does the same.
macro_rules! section {
    ($units:expr, $handle:expr, $leave:literal, [$($body:literal),*], $($operands:tt)*) => {
        asm!(
            begin_section!("at", concat!("xor {at:e}, {at:e}\n", $leave)),
            "mov {at}, [{units} + {at} * 8 + {table}]",
            "test {at}, {at}",
            $leave,
            "add {at}, {handle}",
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
        section!($units, $handle, "jz {slow}",
            ["add qword ptr [{at}], {by}"],
            at = out(reg) _, by = in(reg) $by, slow = label { return false },)
    };
    (4, $units:expr, $handle:expr, $by:expr) => {
        section!($units, $handle, "jz {slow}",
            ["add dword ptr [{at}], {by:e}"],
            at = out(reg) _, by = in(reg) $by, slow = label { return false },)
    };
}

/// See [`swap`].
macro_rules! swap {
    (8, $units:expr, $handle:expr, $new:expr, $at:expr, $old:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {old}, [{at}]", "mov [{at}], {new}"],
            at = out(reg) $at, old = out(reg) $old, new = in(reg) $new,)
    };
    (4, $units:expr, $handle:expr, $new:expr, $at:expr, $old:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {old:e}, [{at}]", "mov [{at}], {new:e}"],
            at = out(reg) $at, old = out(reg) $old, new = in(reg) $new,)
    };
}

/// See [`add_return`].
macro_rules! add_return {
    (8, $units:expr, $handle:expr, $by:expr, $at:expr, $new:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {new}, [{at}]", "add {new}, {by}", "mov [{at}], {new}"],
            at = out(reg) $at, new = out(reg) $new, by = in(reg) $by,)
    };
    (4, $units:expr, $handle:expr, $by:expr, $at:expr, $new:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {new:e}, [{at}]", "add {new:e}, {by:e}", "mov [{at}], {new:e}"],
            at = out(reg) $at, new = out(reg) $new, by = in(reg) $by,)
    };
}

/// See [`read`].
macro_rules! read {
    (8, $units:expr, $handle:expr, $at:expr, $value:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {value}, [{at}]"],
            at = out(reg) $at, value = out(reg) $value,)
    };
    (4, $units:expr, $handle:expr, $at:expr, $value:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {value:e}, [{at}]"],
            at = out(reg) $at, value = out(reg) $value,)
    };
}

/// See [`replace`].
macro_rules! replace {
    (8, $units:expr, $handle:expr, $old:expr, $new:expr, $at:expr, $seen:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {seen}, [{at}]", "cmp {seen}, {old}", "jne 4f", "mov [{at}], {new}"],
            at = out(reg) $at, seen = out(reg) $seen, old = in(reg) $old, new = in(reg) $new,)
    };
    (4, $units:expr, $handle:expr, $old:expr, $new:expr, $at:expr, $seen:expr) => {
        section!($units, $handle, "jz 4f",
            ["mov {seen:e}, [{at}]", "cmp {seen:e}, {old:e}", "jne 4f", "mov [{at}], {new:e}"],
            at = out(reg) $at, seen = out(reg) $seen, old = in(reg) $old, new = in(reg) $new,)
    };
}
