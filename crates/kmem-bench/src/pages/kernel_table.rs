//! The kernel's own table of page refill, as published with the patch that moved the checks out of
//! the lock: nanoseconds per allocation, by CPUs.

/// A line of the table: order, CPUs, and the variants default, patched, no checks.
pub(super) struct Line {
    pub(super) order: u8,
    pub(super) cpus: u32,
    pub(super) default: f64,
    pub(super) patched: f64,
    pub(super) nocheck: f64,
}

pub(super) const LINES: [Line; 4] = [
    Line { order: 9, cpus: 1, default: 2790.0, patched: 2767.0, nocheck: 171.0 },
    Line { order: 9, cpus: 24, default: 90_226.0, patched: 8712.0, nocheck: 7061.0 },
    Line { order: 0, cpus: 1, default: 127.0, patched: 124.0, nocheck: 118.0 },
    Line { order: 0, cpus: 24, default: 1105.0, patched: 992.0, nocheck: 982.0 },
];
