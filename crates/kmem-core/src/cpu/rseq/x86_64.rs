//! Sections for x86-64.
//!
//! A fast section computes the address of the head first, and uses it without an index. For such
//! an address alone, an Intel core forwards a store to a later load at no cost. In a pair of
//! `malloc` and `free`, each waits for the head that the other one wrote. The pair takes 5.1 ns
//! instead of 8.5 on an Intel server core. Calls of mixed classes gain nothing.

/// Begins a section: `2:` is the restart point, `3:` its first instruction, and `4:` (which the
/// section must define) its end. An abort runs `$abort`. Leaves the CPU's number in the operand
/// `$cpu`, and uses `{rseq}`.
macro_rules! begin_section {
    ($cpu:literal, $abort:expr) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\", @progbits\n",
            ".balign 32\n",
            "77: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 78f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\", @progbits\n",
            // ud1 with glibc's RSEQ_SIG as its displacement.
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "78: ",
            $abort,
            "\n.popsection\n",
            "2: mov {rseq}, [rip + kmem_rseq_offset]\n",
            "lea {",
            $cpu,
            "}, [rip + 77b]\n",
            "mov fs:[{rseq} + 8], {",
            $cpu,
            "}\n",
            "3: movsxd {",
            $cpu,
            "}, dword ptr fs:[{rseq} + 4]\n",
        )
    };
}
pub(crate) use begin_section;

/// Begins a section of slots, and leaves the CPU's area in `{area}`. An abort runs `$abort`.
macro_rules! enter {
    ($abort:expr) => {
        concat!(
            begin_section!("area", $abort),
            "mov {area}, [{slots} + {area} * 8 + {table}]\n",
            "lea {area}, [{slots} + {area} + {empty}]\n",
        )
    };
}

/// The code at which an abort of a slow path lands. It starts over while `{tries}` lasts, then runs
/// `$fail`.
macro_rules! restart_or {
    ($fail:literal) => {
        concat!("dec {tries:e}\njnz 2f\n", $fail)
    };
}

/// Puts the stock in `{cell}`, changed by `{by}`, into `{stock}`. Jumps to `{no}` if it is not one
/// of the group `{objcg}`, or would not be below `{bound}`.
macro_rules! changed_stock {
    () => {
        concat!(
            "mov {stock:e}, [{area} + {cell}]\n",
            "xor {stock:e}, {objcg:e}\n",
            "add {stock:e}, {by:e}\n",
            "cmp {stock:e}, {bound:e}\n",
            "jae {no}\n",
            "xor {stock:e}, {objcg:e}",
        )
    };
}

/// Copies `{bytes}` bytes, a multiple of 8, from `{from}` to `{to}`, and advances both. For the
/// half kilobyte that is copied here a loop is faster than `rep movsq`.
macro_rules! copy {
    () => {
        concat!(
            "mov {left:e}, {bytes:e}\n",
            "sub {left:e}, 16\n",
            "jb 6f\n",
            "5: movups {pair}, [{from}]\n",
            "movups [{to}], {pair}\n",
            "add {from}, 16\n",
            "add {to}, 16\n",
            "sub {left:e}, 16\n",
            "jae 5b\n",
            "6: test {left:e}, 8\n",
            "jz 7f\n",
            "mov {left}, [{from}]\n",
            "mov [{to}], {left}\n",
            "7:\n",
        )
    };
}

/// Exit of a section without a commit, by a jump to `79:`, which sets another result. (`asm!`
/// allows no label operand beside an output.)
macro_rules! otherwise {
    ($set:literal) => {
        concat!(
            ".pushsection .text.rseq_abort, \"ax\", @progbits\n",
            "79: ",
            $set,
            "\njmp 4b\n",
            ".popsection\n",
        )
    };
}

/// See [`Slots::pop`].
macro_rules! pop {
    ($slots:expr, $array:expr, $object:expr) => {
        section!($slots, "xor {object:e}, {object:e}\njmp 4f", [
            "lea {rseq}, [{area} + {array} * 8]",
            "mov {top:e}, [{rseq}]",
            "mov {object}, [{area} + {top} - 8]",
            "test {object}, {object}",
            "jz 4f",
            "sub {top:e}, 8",
            "mov [{rseq}], {top:e}",
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
        section!($slots, "jmp {full}", [
            "lea {rseq}, [{area} + {array} * 8]",
            "mov {top:e}, [{rseq}]",
            "test {top:e}, {block} - 1",
            "jz {full}",
            "mov [{area} + {top}], {object}",
            "add {top:e}, 8",
            "mov [{rseq}], {top:e}",
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
        section!($slots, "jmp 79f", [
            "lea {array}, [{area} + {array} * 8]",
            "mov {head}, [{array}]",
            "mov {rseq:e}, {head:e}",
            "mov {object}, [{area} + {rseq} - 8]",
            "mov {rseq}, {head}",
            "xor {rseq}, {objcg}",
            "shr {rseq}, 32",
            "dec {rseq}",
            "cmp {rseq}, {most}",
            "jae 79f",
            "test {object}, {object}",
            "jz 4f",
            "sub {head}, {taken}",
            "mov [{array}], {head}",
            "4:",
            otherwise!("xor {object:e}, {object:e}"),
        ],
            head = out(reg) _,
            object = out(reg) $object,
            array = inout(reg) u64::from($array.0) => _,
            objcg = in(reg) on_head($objcg),
            taken = in(reg) TAKEN,
            most = const Stock::MAX - 1,
        )
    };
}

/// See [`Slots::push_freed`].
macro_rules! push_freed {
    ($slots:expr, $array:expr, $item:expr, $ext:expr, $word:expr, $bound:expr) => {
        section!($slots, "test dword ptr [{ext}], {live}\njz {unpaid}\njmp {no}", [
            "lea {array}, [{area} + {array} * 8]",
            "mov {top:e}, [{array}]",
            "test {top:e}, {block} - 1",
            "jz {no}",
            "mov {rseq:e}, {word:e}",
            "and {rseq:e}, {group}",
            "xor {rseq:e}, [{array} + 4]",
            "cmp {rseq:e}, {bound:e}",
            "jae {no}",
            "cmp [{ext}], {word:e}",
            "jne {no}",
            "and dword ptr [{ext}], {tag}",
            "mov [{area} + {top}], {object}",
            "mov {rseq}, [rip + kmem_item_and_stock]",
            "add [{array}], {rseq}",
            "4:",
        ],
            top = out(reg) _,
            object = in(reg) $item.0,
            array = inout(reg) u64::from($array.0) => _,
            ext = in(reg) $ext,
            word = in(reg) $word,
            bound = in(reg) $bound,
            group = const GROUP as i32,
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
        section!($slots, "test dword ptr [{ext}], {live}\njz {unpaid}\njmp {no}", [
            changed_stock!(),
            "cmp [{ext}], {word:e}",
            "jne {no}",
            "and dword ptr [{ext}], {tag}",
            "mov [{area} + {cell}], {stock:e}",
            "4:",
        ],
            stock = out(reg) _,
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
        section!($slots, restart_or!("jmp {no}"), [
            changed_stock!(),
            "mov [{area} + {cell}], {stock:e}",
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
        section!($slots, restart_or!("jmp 79f"), [
            "lea {before}, [{slots} + {empty}]",
            "cmp {before}, {area}",
            "je 79f",
            "mov {before:e}, [{area} + {cell}]",
            "mov [{area} + {cell}], {stock:e}",
            "4:",
            otherwise!("mov {before}, -1"),
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
        section!($slots, restart_or!("xor {bytes:e}, {bytes:e}\njmp 4f"), [$($body),*],
            top = out(reg) _,
            bytes = out(reg) $bytes,
            from = out(reg) _,
            to = out(reg) _,
            left = out(reg) _,
            pair = out(xmm_reg) _,
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
            "mov {top:e}, [{area} + {array} * 8]",
            "mov {bytes:e}, {top:e}",
            "sub {bytes:e}, [{area} + {array} * 4 + {bottom}]",
            "cmp {bytes:e}, {room:e}",
            "cmova {bytes:e}, {room:e}",
            "sub {top:e}, {bytes:e}",
            "lea {from}, [{area} + {top}]",
            "mov {to}, {out}",
            copy!(),
            "mov [{area} + {array} * 8], {top:e}",
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
            "mov {top:e}, [{area} + {array} * 8]",
            "xor {bytes:e}, {bytes:e}",
            "sub {bytes:e}, {top:e}",
            "and {bytes:e}, {block} - 1",
            "cmp {bytes:e}, {room:e}",
            "cmova {bytes:e}, {room:e}",
            "lea {to}, [{area} + {top}]",
            "mov {from}, {items}",
            "add {top:e}, {bytes:e}",
            copy!(),
            "mov [{area} + {array} * 8], {top:e}",
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
            "mov {1}, [rip + kmem_rseq_offset]",
            "mov {0:e}, fs:[{1} + 4]",
            out(reg) $cpu, out(reg) _,
            options(nostack, readonly, preserves_flags)
        )
    };
}

/// Reads the offset of the chosen rseq area, 0 for none, and that of the unused one.
macro_rules! areas {
    ($known:expr, $unused:expr) => {
        asm!(
            "mov {0}, [rip + kmem_rseq_offset]",
            "mov {1}, [rip + kmem_no_rseq@GOTTPOFF]",
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
            "mov [rip + kmem_rseq_offset], {0}",
            in(reg) $offset,
            options(nostack, preserves_flags)
        )
    };
}

// Read by `push_freed`, which has no register left for it.
core::arch::global_asm!(
    ".pushsection .rodata.kmem_item_and_stock, \"a\", @progbits",
    ".balign 8",
    ".hidden kmem_item_and_stock",
    ".globl kmem_item_and_stock",
    ".type kmem_item_and_stock, @object",
    ".size kmem_item_and_stock, 8",
    "kmem_item_and_stock: .quad {taken}",
    ".popsection",
    taken = const super::TAKEN,
);
