//! Choice of a call site by the text that a user typed.

use kmem_snapshot::escape::printable;
use kmem_snapshot::reading::CallSite;
use kmem_snapshot::report;

use crate::failure::Failure;

/// Most candidates shown for an ambiguous text.
const MAX_CANDIDATES: usize = 10;

/// Tag, function and location of a call site, for people.
pub(super) fn name(site: &CallSite) -> String {
    let location = site.place.location();
    match &site.place.function {
        Some(function) => format!("tag:{} {} {location}", site.tag, report::short(function)),
        None => format!("tag:{} {location}", site.tag),
    }
}

/// Rank of the match between the text and a site; 0 for none.
fn fit(site: &CallSite, text: &str) -> u32 {
    if let Some(number) = text.strip_prefix("tag:") {
        return if number.parse() == Ok(site.tag) { 4 } else { 0 };
    }
    let place = &site.place;
    let function = place.function.as_deref().unwrap_or("");
    if text.is_empty() {
        return 0;
    }
    if text == place.in_module() || text == place.location() || text == function {
        return 3;
    }
    // The name as tables show it, or the end of it behind `::`.
    if text == report::short(function) {
        return 2;
    }
    if ends_with_part(function, "::", text) {
        return 1;
    }
    match &place.source {
        // The end of the path, and the line.
        Some((file, line))
            if text.rsplit_once(':').is_some_and(|(path, at)| {
                at.parse() == Ok(*line) && ends_with_part(file, "/", path)
            }) =>
        {
            2
        }
        _ => 0,
    }
}

/// True when the name of a site holds the text, or the file in the text.
fn resembles(site: &CallSite, text: &str) -> bool {
    let text = text.to_lowercase();
    let text = text.split_once(':').filter(|(file, _)| file.contains('.')).map_or(&*text, |t| t.0);
    name(site).to_lowercase().contains(text) || site.place.in_module().to_lowercase().contains(text)
}

/// True when `whole` ends with `end`, and a separator of parts stands before it.
fn ends_with_part(whole: &str, separator: &str, end: &str) -> bool {
    !end.is_empty() && whole.strip_suffix(end).is_some_and(|rest| rest.ends_with(separator))
}

/// Finds the call site that the text names best.
///
/// # Errors
///
/// [`Failure::Choice`] when the text names none, or several equally well; [`Failure::Trouble`] when
/// there are no call sites.
pub(super) fn choose<'a>(sites: &'a [CallSite], text: &str) -> Result<&'a CallSite, Failure> {
    let best = sites.iter().map(|site| fit(site, text)).max().unwrap_or(0);
    if best != 0 {
        let fitting: Vec<&CallSite> = sites.iter().filter(|c| fit(c, text) == best).collect();
        return match fitting[..] {
            [one] => Ok(one),
            _ => Err(candidates(
                format!("{text:?} names {} call sites; choose one by its tag:", fitting.len()),
                &fitting,
            )),
        };
    }
    let alike: Vec<&CallSite> = sites.iter().filter(|site| resembles(site, text)).collect();
    Err(if sites.is_empty() {
        Failure::Trouble(format!(
            "{text:?} names no call site: none holds anything; try again later"
        ))
    } else if alike.is_empty() {
        let all: Vec<&CallSite> = sites.iter().collect();
        candidates(format!("{text:?} names no call site; the largest are:"), &all)
    } else {
        candidates(format!("{text:?} names no call site; alike are:"), &alike)
    })
}

fn candidates(what: String, of: &[&CallSite]) -> Failure {
    let line = |site: &&CallSite| {
        let (name, size) = (name(site), report::size(site.bytes));
        format!("  {}, {size} in {} objects", printable(&name), site.calls)
    };
    let mut candidates: Vec<String> = of.iter().take(MAX_CANDIDATES).map(line).collect();
    if let Some(more @ 1..) = of.len().checked_sub(MAX_CANDIDATES) {
        candidates.push(format!("  and {more} more"));
    }
    Failure::Choice { what, candidates }
}

#[cfg(test)]
mod tests {
    use kmem_snapshot::symbols::Place;

    use super::*;

    fn caller(tag: u32, function: &str, file: &str, line: u32) -> CallSite {
        let place = Place {
            module: "app".into(),
            offset: u64::from(tag) * 16,
            function: (!function.is_empty()).then(|| function.into()),
            source: (!file.is_empty()).then(|| (file.into(), line)),
            ..Place::default()
        };
        CallSite { root: 0x1000, tag, addresses: [0x5000].into(), place, bytes: 4096, calls: 1 }
    }

    fn callers() -> Vec<CallSite> {
        vec![
            caller(8, "app::index::build", "/src/index.c", 12),
            caller(9, "app::index::build", "/src/index.c", 20),
            caller(10, "load", "/src/load.c", 12),
            caller(11, "app::load", "/src/xload.c", 12),
            caller(12, "", "", 0),
            caller(13, "std::vector<int, std::allocator<int> >::push_back", "", 0),
        ]
    }

    #[test]
    fn a_site_has_many_names() {
        let callers = callers();
        for (text, tag) in [
            ("tag:9", 9),
            ("/src/index.c:20", 9),
            ("index.c:20", 9),
            ("src/index.c:12", 8),
            ("load.c:12", 10),
            // The whole name is better than the end of another.
            ("load", 10),
            ("app::load", 11),
            ("app+0xc0", 12),
            ("app+0x80", 8),
            ("std::vector<int>::push_back", 13),
        ] {
            assert_eq!(choose(&callers, text).unwrap_or_else(|e| panic!("{text}: {e:?}")).tag, tag);
        }
    }

    fn refusal(callers: &[CallSite], text: &str) -> (String, Vec<String>) {
        match choose(callers, text) {
            Err(Failure::Choice { what, candidates }) => (what, candidates),
            Err(other) => panic!("{other:?}"),
            Ok(caller) => panic!("{caller:?}"),
        }
    }

    #[test]
    fn what_is_not_clear_is_refused_with_candidates() {
        let callers = callers();
        let (what, candidates) = refusal(&callers, "build");
        assert_eq!(what, "\"build\" names 2 call sites; choose one by its tag:");
        assert_eq!(
            candidates[0],
            "  tag:8 app::index::build /src/index.c:12, 4.0 KiB in 1 objects"
        );
        assert_eq!(candidates.len(), 2);
        let (what, candidates) = refusal(&callers, "index.c:13");
        assert_eq!((what.contains("alike are"), candidates.len()), (true, 2));
        for text in ["nothing like it", "tag:99", "tag:x", "c:12", "", ":", "::"] {
            let (what, _) = refusal(&callers, text);
            assert!(what.contains("names no call site"), "{text}: {what}");
        }
        assert!(matches!(choose(&[], "x"), Err(Failure::Trouble(_))));
    }

    #[test]
    fn candidates_are_few_and_cannot_forge_lines() {
        let many: Vec<CallSite> = (8..108).map(|tag| caller(tag, "f\n\x1b[2J", "", 0)).collect();
        let (_, candidates) = refusal(&many, "f\n\x1b[2J");
        assert_eq!((candidates.len(), &*candidates[10]), (MAX_CANDIDATES + 1, "  and 90 more"));
        assert!(candidates[0].contains("f\\x0a\\x1b[2J"), "{}", candidates[0]);
    }
}
