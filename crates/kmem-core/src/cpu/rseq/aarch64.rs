//! Sections for AArch64.
//!
//! A conditional branch reaches 1 MiB, and a section's abort lies elsewhere. So code there branches
//! to the section without a condition.

/// Begins a section: `2:` is the restart point, `3:` its first instruction, and `4:` (which the
/// section must define) its end. An abort runs `$abort`. Leaves the CPU's number in the operand
/// `$cpu`, and uses `{rseq}`.
macro_rules! begin_section {
    ($cpu:literal, $abort:expr) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\", %progbits\n",
            ".balign 32\n",
            "77: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 78f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\", %progbits\n",
            // brk with glibc's RSEQ_SIG.
            ".inst 0xd428bc00\n",
            "78: ",
            $abort,
            "\n.popsection\n",
            "2: adrp {rseq}, kmem_rseq_offset\n",
            "ldr {rseq}, [{rseq}, :lo12:kmem_rseq_offset]\n",
            "mrs {",
            $cpu,
            "}, tpidr_el0\n",
            "add {rseq}, {rseq}, {",
            $cpu,
            "}\n",
            "adrp {",
            $cpu,
            "}, 77b\n",
            "add {",
            $cpu,
            "}, {",
            $cpu,
            "}, :lo12:77b\n",
            "str {",
            $cpu,
            "}, [{rseq}, 8]\n",
            "3: ldrsw {",
            $cpu,
            "}, [{rseq}, 4]\n",
        )
    };
}
pub(crate) use begin_section;

/// Begins a section of slots, and leaves the CPU's area in `{area}`. An abort runs `$abort`.
macro_rules! enter {
    ($abort:expr) => {
        concat!(
            begin_section!("area", $abort),
            "add {area}, {slots}, {area}, lsl #3\n",
            "ldr {area}, [{area}, {table}]\n",
            "add {area}, {slots}, {area}\n",
            "add {area}, {area}, {empty}\n",
        )
    };
}

/// The code at which an abort of a slow path lands. It starts over while `{tries}` lasts, then runs
/// `$fail`.
macro_rules! restart_or {
    ($fail:literal) => {
        concat!("subs {tries:w}, {tries:w}, 1\nb.eq 76f\nb 2f\n76: ", $fail)
    };
}

/// The code at which an abort of a section lands that clears an extension word. It branches to
/// `{unpaid}` if the word is clear, else to `{no}`.
macro_rules! look_at_word {
    () => {
        concat!(
            "ldr {word_now:w}, [{ext}]\n",
            "tst {word_now:w}, {live}\n",
            "b.ne 76f\n",
            "b {unpaid}\n",
            "76: b {no}",
        )
    };
}

/// Clears the extension word at `{ext}` if it is `{word}`; else jumps to `{no}`.
macro_rules! clear_word {
    () => {
        concat!(
            "ldr {word_now:w}, [{ext}]\n",
            "cmp {word_now:w}, {word:w}\n",
            "b.ne {no}\n",
            "and {word_now:w}, {word_now:w}, {tag}\n",
            "str {word_now:w}, [{ext}]",
        )
    };
}

/// Puts the stock in `{cell}`, changed by `{by}`, into `{stock}`. Jumps to `{no}` if it is not one
/// of the group `{objcg}`, or would not be below `{bound}`.
macro_rules! changed_stock {
    () => {
        concat!(
            "ldr {stock:w}, [{area}, {cell}]\n",
            "eor {stock:w}, {stock:w}, {objcg:w}\n",
            "add {stock:w}, {stock:w}, {by:w}\n",
            "cmp {stock:w}, {bound:w}\n",
            "b.hs {no}\n",
            "eor {stock:w}, {stock:w}, {objcg:w}",
        )
    };
}

/// Copies `{bytes}` bytes, a multiple of 8, from `{from}` to `{to}`, and advances both.
macro_rules! copy {
    () => {
        concat!(
            "mov {left:w}, {bytes:w}\n",
            "5: subs {left:w}, {left:w}, 16\n",
            "b.lo 6f\n",
            "ldp {one}, {two}, [{from}], 16\n",
            "stp {one}, {two}, [{to}], 16\n",
            "b 5b\n",
            "6: tbz {left:w}, 3, 7f\n",
            "ldr {one}, [{from}]\n",
            "str {one}, [{to}]\n",
            "7:\n",
        )
    };
}

/// See [`Slots::pop`].
macro_rules! pop {
    ($slots:expr, $array:expr, $object:expr) => {
        section!($slots, "mov {object}, xzr\nb 4f", [
            "add {rseq}, {area}, {array}, lsl 3",
            "ldr {top:w}, [{rseq}]",
            "add {object}, {area}, {top}",
            "ldur {object}, [{object}, -8]",
            "cbz {object}, 4f",
            "sub {top:w}, {top:w}, 8",
            "str {top:w}, [{rseq}]",
            "4:",
        ],
            top = out(reg) _,
            object = out(reg) $object,
            array = in(reg) u64::from($array.0),
        )
    };
}

/// See [`Slots::push`].
macro_rules! push {
    ($slots:expr, $array:expr, $item:expr) => {
        section!($slots, "b {full}", [
            "add {rseq}, {area}, {array}, lsl 3",
            "ldr {top:w}, [{rseq}]",
            "tst {top:w}, {block} - 1",
            "b.eq {full}",
            "str {object}, [{area}, {top}]",
            "add {top:w}, {top:w}, 8",
            "str {top:w}, [{rseq}]",
            "4:",
        ],
            top = out(reg) _,
            object = in(reg) $item.0,
            array = in(reg) u64::from($array.0),
            block = const BLOCK,
            full = label { return false },
        )
    };
}

/// See [`Slots::pop_paid`].
macro_rules! pop_paid {
    ($slots:expr, $array:expr, $objcg:expr, $object:expr) => {
        section!($slots, "mov {object}, xzr\nb 4f", [
            "add {array}, {area}, {array}, lsl 3",
            "ldr {head}, [{array}]",
            "add {object}, {area}, {head:w}, uxtw",
            "ldur {object}, [{object}, -8]",
            "eor {rseq}, {head}, {objcg}",
            "lsr {rseq}, {rseq}, 32",
            "sub {rseq}, {rseq}, 1",
            "cmp {rseq}, {most}",
            "csel {object}, {object}, xzr, lo",
            "cbz {object}, 4f",
            "sub {head}, {head}, {taken}",
            "str {head}, [{array}]",
            "4:",
        ],
            head = out(reg) _,
            object = out(reg) $object,
            array = inout(reg) u64::from($array.0) => _,
            objcg = in(reg) on_head($objcg),
            taken = in(reg) TAKEN,
            most = in(reg) u64::from(Stock::MAX - 1),
        )
    };
}

/// See [`Slots::push_freed`].
macro_rules! push_freed {
    ($slots:expr, $array:expr, $item:expr, $ext:expr, $word:expr, $bound:expr) => {
        section!($slots, look_at_word!(), [
            "add {array}, {area}, {array}, lsl 3",
            "ldr {head}, [{array}]",
            "tst {head:w}, {block} - 1",
            "b.eq {no}",
            "lsr {rseq}, {head}, 32",
            "eor {rseq:w}, {rseq:w}, {objcg:w}",
            "cmp {rseq:w}, {bound:w}",
            "b.hs {no}",
            clear_word!(),
            "add {rseq}, {area}, {head:w}, uxtw",
            "str {object}, [{rseq}]",
            "add {head}, {head}, {taken}",
            "str {head}, [{array}]",
            "4:",
        ],
            head = out(reg) _,
            word_now = out(reg) _,
            object = in(reg) $item.0,
            array = inout(reg) u64::from($array.0) => _,
            ext = in(reg) $ext,
            word = in(reg) $word,
            objcg = in(reg) $word & GROUP,
            bound = in(reg) $bound,
            taken = in(reg) TAKEN,
            live = const EXT_LIVE,
            tag = const TAG_MASK,
            block = const BLOCK,
            unpaid = label { return Cleared::Unpaid },
            no = label { return Cleared::Not },
        )
    };
}

/// See [`Slots::refund_freed`].
macro_rules! refund_freed {
    ($slots:expr, $cell:expr, $by:expr, $ext:expr, $word:expr, $bound:expr) => {
        section!($slots, look_at_word!(), [
            changed_stock!(),
            clear_word!(),
            "str {stock:w}, [{area}, {cell}]",
            "4:",
        ],
            stock = out(reg) _,
            word_now = out(reg) _,
            cell = in(reg) u64::from($cell.0),
            ext = in(reg) $ext,
            word = in(reg) $word,
            objcg = in(reg) $word & GROUP,
            live = const EXT_LIVE,
            tag = const TAG_MASK,
            by = in(reg) $by,
            bound = in(reg) $bound,
            unpaid = label { return Cleared::Unpaid },
            no = label { return Cleared::Not },
        )
    };
}

/// See [`Slots::adjust`].
macro_rules! adjust {
    ($slots:expr, $cell:expr, $objcg:expr, $by:expr, $bound:expr) => {
        section!($slots, restart_or!("b {no}"), [
            changed_stock!(),
            "str {stock:w}, [{area}, {cell}]",
            "4:",
        ],
            stock = out(reg) _,
            cell = in(reg) u64::from($cell.0),
            objcg = in(reg) Stock::new($objcg, 0).0,
            by = in(reg) $by,
            bound = in(reg) $bound,
            tries = inout(reg) RESTARTS => _,
            no = label { return false },
        )
    };
}

/// See [`Slots::swap_stock`].
macro_rules! swap {
    ($slots:expr, $cell:expr, $stock:expr, $before:expr) => {
        section!($slots, restart_or!("mov {before}, -1\nb 4f"), [
            "add {before}, {slots}, {empty}",
            "cmp {before}, {area}",
            "mov {before}, -1",
            "b.eq 4f",
            "ldr {before:w}, [{area}, {cell}]",
            "str {stock:w}, [{area}, {cell}]",
            "4:",
        ],
            before = out(reg) $before,
            cell = in(reg) u64::from($cell.0),
            stock = in(reg) $stock.0,
            tries = inout(reg) RESTARTS => _,
        )
    };
}

/// A section that copies items, `$room` at most, and tells how many in `$bytes`.
macro_rules! many {
    ($slots:expr, $array:expr, $room:expr, $bytes:expr,
        [$($body:expr),* $(,)?], $($operands:tt)*) => {
        section!($slots, restart_or!("mov {bytes}, xzr\nb 4f"), [$($body),*],
            top = out(reg) _,
            bytes = out(reg) $bytes,
            from = out(reg) _,
            to = out(reg) _,
            left = out(reg) _,
            one = out(reg) _,
            two = out(reg) _,
            room = in(reg) u64::from($room * 8),
            tries = inout(reg) RESTARTS => _,
            array = in(reg) u64::from($array.0),
            $($operands)*
        )
    };
}

/// See [`Slots::pop_many`].
macro_rules! pop_many {
    ($slots:expr, $array:expr, $out:expr, $room:expr, $bytes:expr) => {
        many!($slots, $array, $room, $bytes, [
            "add {rseq}, {area}, {array}, lsl 2",
            "ldr {bytes:w}, [{rseq}, {bottom}]",
            "add {rseq}, {area}, {array}, lsl 3",
            "ldr {top:w}, [{rseq}]",
            "sub {bytes:w}, {top:w}, {bytes:w}",
            "cmp {bytes:w}, {room:w}",
            "csel {bytes:w}, {bytes:w}, {room:w}, ls",
            "sub {top:w}, {top:w}, {bytes:w}",
            "add {from}, {area}, {top}",
            "mov {to}, {out}",
            copy!(),
            "str {top:w}, [{rseq}]",
            "4:",
        ],
            out = in(reg) $out,
            bottom = const BOTTOM,
        )
    };
}

/// See [`Slots::push_many`].
macro_rules! push_many {
    ($slots:expr, $array:expr, $items:expr, $room:expr, $bytes:expr) => {
        many!($slots, $array, $room, $bytes, [
            "add {rseq}, {area}, {array}, lsl 3",
            "ldr {top:w}, [{rseq}]",
            "neg {bytes:w}, {top:w}",
            "and {bytes:w}, {bytes:w}, {block} - 1",
            "cmp {bytes:w}, {room:w}",
            "csel {bytes:w}, {bytes:w}, {room:w}, ls",
            "add {to}, {area}, {top}",
            "mov {from}, {items}",
            "add {top:w}, {top:w}, {bytes:w}",
            copy!(),
            "str {top:w}, [{rseq}]",
            "4:",
        ],
            items = in(reg) $items,
            block = const BLOCK,
        )
    };
}

/// Reads the CPU number in the thread's rseq area.
macro_rules! current {
    ($cpu:expr) => {
        asm!(
            "adrp {1}, kmem_rseq_offset",
            "ldr {1}, [{1}, :lo12:kmem_rseq_offset]",
            "mrs {0:x}, tpidr_el0",
            "add {1}, {1}, {0:x}",
            "ldr {0:w}, [{1}, 4]",
            out(reg) $cpu, out(reg) _,
            options(nostack, readonly, preserves_flags)
        )
    };
}

/// Reads the offset of the chosen rseq area, 0 for none, and that of the unused one.
macro_rules! areas {
    ($known:expr, $unused:expr) => {
        asm!(
            "adrp {0}, kmem_rseq_offset",
            "ldr {0}, [{0}, :lo12:kmem_rseq_offset]",
            "adrp {1}, :gottprel:kmem_no_rseq",
            "ldr {1}, [{1}, :gottprel_lo12:kmem_no_rseq]",
            out(reg) $known,
            out(reg) $unused,
            options(nostack, readonly, preserves_flags)
        )
    };
}

/// Chooses the rseq area at an offset.
macro_rules! choose {
    ($offset:expr) => {
        asm!(
            "adrp {1}, kmem_rseq_offset",
            "str {0}, [{1}, :lo12:kmem_rseq_offset]",
            in(reg) $offset,
            out(reg) _,
            options(nostack, preserves_flags)
        )
    };
}
