//! Which call site a user means.

use std::fmt;

use kmem_snapshot::escape::printable;
use kmem_snapshot::report;
use kmem_snapshot::symbols::Place;

use crate::failure::Failure;

/// Most candidates named when it is not clear which is meant.
const MAX_CANDIDATES: usize = 10;

/// A call site whose callers can be told apart.
pub(super) struct Caller {
    /// The root block that it is in.
    pub(super) root: u64,
    pub(super) tag: u32,
    pub(super) place: Place,
    /// Live bytes.
    pub(super) bytes: i64,
    /// Live objects.
    pub(super) calls: u64,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag:{}", self.tag)?;
        if let Some(function) = &self.place.function {
            write!(f, " {}", report::short(function))?;
        }
        write!(f, " {}", self.place.location())
    }
}

impl Caller {
    /// How well the text names this site; 0: not at all.
    fn fit(&self, text: &str) -> u32 {
        if let Some(number) = text.strip_prefix("tag:") {
            return if number.parse() == Ok(self.tag) { 4 } else { 0 };
        }
        let function = self.place.function.as_deref().unwrap_or("");
        if text.is_empty() {
            return 0;
        }
        if text == self.place.in_module() || text == self.place.location() || text == function {
            return 3;
        }
        // As tables show it, or without the namespaces.
        if text == report::short(function) {
            return 2;
        }
        if ends_with_part(function, "::", text) {
            return 1;
        }
        match &self.place.source {
            // The end of the path.
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

    /// Something in it looks like the text.
    fn resembles(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let text =
            text.split_once(':').filter(|(file, _)| file.contains('.')).map_or(&*text, |t| t.0);
        self.to_string().to_lowercase().contains(text)
            || self.place.in_module().to_lowercase().contains(text)
    }
}

/// True when `whole` ends with `end`, and with what separates parts before it.
fn ends_with_part(whole: &str, separator: &str, end: &str) -> bool {
    !end.is_empty() && whole.strip_suffix(end).is_some_and(|rest| rest.ends_with(separator))
}

/// The one call site that the text names best.
pub(super) fn choose<'a>(callers: &'a [Caller], text: &str) -> Result<&'a Caller, Failure> {
    let best = callers.iter().map(|c| c.fit(text)).max().unwrap_or(0);
    if best != 0 {
        let fitting: Vec<&Caller> = callers.iter().filter(|c| c.fit(text) == best).collect();
        return match fitting[..] {
            [one] => Ok(one),
            _ => Err(candidates(
                format!("{text:?} names {} call sites; choose one by its tag:", fitting.len()),
                &fitting,
            )),
        };
    }
    let alike: Vec<&Caller> = callers.iter().filter(|c| c.resembles(text)).collect();
    Err(if callers.is_empty() {
        Failure::Trouble(format!("{text:?} names no call site: none holds anything"))
    } else if alike.is_empty() {
        let all: Vec<&Caller> = callers.iter().collect();
        candidates(format!("{text:?} names no call site; the largest are:"), &all)
    } else {
        candidates(format!("{text:?} names no call site; alike are:"), &alike)
    })
}

fn candidates(what: String, of: &[&Caller]) -> Failure {
    let mut candidates: Vec<String> = of
        .iter()
        .take(MAX_CANDIDATES)
        .map(|c| {
            format!(
                "  {}, {} in {} objects",
                printable(&c.to_string()),
                report::size(c.bytes),
                c.calls
            )
        })
        .collect();
    if let Some(more @ 1..) = of.len().checked_sub(MAX_CANDIDATES) {
        candidates.push(format!("  and {more} more"));
    }
    Failure::Choice { what, candidates }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tag: u32, function: &str, file: &str, line: u32) -> Caller {
        let place = Place {
            module: "app".into(),
            offset: u64::from(tag) * 16,
            function: (!function.is_empty()).then(|| function.into()),
            source: (!file.is_empty()).then(|| (file.into(), line)),
            ..Place::default()
        };
        Caller { root: 0x1000, tag, place, bytes: 4096, calls: 1 }
    }

    fn callers() -> Vec<Caller> {
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

    fn refusal(callers: &[Caller], text: &str) -> (String, Vec<String>) {
        match choose(callers, text) {
            Err(Failure::Choice { what, candidates }) => (what, candidates),
            Err(other) => panic!("{other:?}"),
            Ok(caller) => panic!("{caller}"),
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
        let many: Vec<Caller> = (8..108).map(|tag| caller(tag, "f\n\x1b[2J", "", 0)).collect();
        let (_, candidates) = refusal(&many, "f\n\x1b[2J");
        assert_eq!((candidates.len(), &*candidates[10]), (MAX_CANDIDATES + 1, "  and 90 more"));
        assert!(candidates[0].contains("f\\x0a\\x1b[2J"), "{}", candidates[0]);
    }
}
