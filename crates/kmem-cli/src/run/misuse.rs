//! A misuse of memory for which kmem ended a process, in the report.

use std::io::{self, Write};

use kmem_snapshot::blackbox::{BlackBox, Reason};
use kmem_snapshot::escape::printable;
use kmem_snapshot::report;
use kmem_snapshot::sites::{self, Origin};
use kmem_snapshot::symbols::{Modules, Symbols};

use super::boxes::Held;

/// True when kmem ended the process for a misuse of memory.
pub(super) fn is_misuse(held: &Held) -> bool {
    BlackBox::open(&held.path).is_ok_and(|of| is_of_misuse(&of))
}

fn is_of_misuse(of: &BlackBox) -> bool {
    of.moment().is_some_and(|moment| moment.reason == Reason::Misuse)
}

/// Writes a line about the call that misused memory, and one about the call that allocated it.
/// Without a misuse it writes none.
///
/// # Errors
///
/// The errors of the writer.
pub(super) fn write(out: &mut impl Write, held: &Held) -> io::Result<()> {
    let Ok(of) = BlackBox::open(&held.path) else { return Ok(()) };
    let Some(snapshot) = of.own().filter(|_| is_of_misuse(&of)) else { return Ok(()) };
    let misuse = of.misuse();
    let holder = of.moment().map(|moment| moment.misused).filter(|&address| address != 0);
    let calls = misuse.iter().flat_map(|misuse| misuse.row.key.addresses().iter().copied());
    let addresses: Vec<u64> = calls.chain(holder).collect();
    let modules = Modules::of_box(&of, &snapshot.maps, &addresses, None, &snapshot.budget);
    let mut symbols = Symbols::new(&modules);
    if let Some(misuse) = misuse
        && let Some(site) = sites::resolve([&misuse.row], &mut symbols).pop()
        && let Origin::Place(place) = &site.origin
        // Where the callers are not known, the chain ends in the allocator.
        && !place.is_library()
    {
        let what = if misuse.is_here { "memory was misused" } else { "the misuse was found" };
        let function = report::short(site.origin.function());
        let place = format!("{function} at {}", site.origin.location());
        writeln!(out, "kmem: {what} in {}", printable(&place))?;
    }
    if let Some(address) = holder {
        let place = symbols.resolve(address);
        let function = place.function.as_deref().map(|name| format!("{} at ", report::short(name)));
        let place = format!("{}{}", function.unwrap_or_default(), place.location());
        writeln!(out, "kmem: the misused memory was last allocated by {}", printable(&place))?;
    }
    Ok(())
}
