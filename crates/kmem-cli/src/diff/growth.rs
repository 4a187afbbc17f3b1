//! `--fail-on-growth SIZE[@SITE]`: thresholds of growth.

use std::cmp::Reverse;
use std::str::FromStr;

use kmem_snapshot::Pattern;
use kmem_snapshot::diff::{Change, Diff, Held};
use kmem_snapshot::report::{short, signed_size, size};
use kmem_snapshot::sites::{Origin, Site};
use serde::Serialize;

use crate::failure::say;
use crate::options::parse_size;

/// Most sites in a message.
const MAX_SITES: usize = 3;

/// A threshold.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    text: String,
    bytes: i64,
    /// The text for the sites, and the pattern that it is; none for all sites.
    site: Option<Pattern>,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, site) = match text.split_once('@') {
            Some((_, "")) => return Err(format!("{text:?} has no SITE behind @")),
            Some((size, site)) => (size, Some(Pattern::new(site))),
            None => (text, None),
        };
        Ok(Self { text: text.to_owned(), bytes: parse_size(size)?, site })
    }
}

impl Limit {
    /// True when the threshold is for this place.
    fn names(&self, origin: &Origin, main: &str) -> bool {
        let Some(pattern) = &self.site else { return true };
        let (function, location) = (origin.function(), origin.location());
        let tag = origin.tag();
        let module = match origin {
            Origin::Place(place) => &place.module,
            _ => tag.module.as_deref().unwrap_or(main),
        };
        pattern.matches(function)
            || pattern.matches(&short(function))
            || pattern.matches(module)
            || pattern.matches(&location)
            // A path may be named by its end.
            || location.match_indices('/').any(|(at, _)| pattern.matches(&location[at + 1..]))
    }
}

/// Growth over a threshold.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    /// The threshold, as it was given.
    limit: String,
    /// The growth of all its sites.
    delta: Held,
    /// The sites that grew most.
    sites: Vec<Grown>,
    #[serde(skip)]
    more: usize,
    #[serde(skip)]
    bytes: i64,
}

/// A site that grew.
#[derive(Debug, Serialize)]
struct Grown {
    function: String,
    location: String,
    delta: Held,
}

/// The thresholds that the difference exceeds. A threshold for sites that are in neither source is
/// told on standard error.
pub(super) fn find(limits: &[Limit], diff: &Diff, before: &[Site], main: &str) -> Vec<Growth> {
    let growth = |limit: &Limit| {
        let named = diff.changes.iter().filter(|change| limit.names(&change.origin, main));
        let mut changes: Vec<&Change> = named.collect();
        if changes.is_empty() && !before.iter().any(|site| limit.names(&site.origin, main)) {
            say(&format!("--fail-on-growth {}: no call site has this name", limit.text));
        }
        let delta: Held = changes.iter().map(|change| change.delta()).sum();
        if delta.bytes <= i128::from(limit.bytes) {
            return None;
        }
        changes.retain(|change| change.delta().bytes > 0);
        changes.sort_by_key(|change| Reverse(change.delta().bytes));
        let grown = |change: &&Change| Grown {
            function: change.origin.function().to_owned(),
            location: change.origin.location(),
            delta: change.delta(),
        };
        Some(Growth {
            limit: limit.text.clone(),
            delta,
            sites: changes.iter().take(MAX_SITES).map(grown).collect(),
            more: changes.len().saturating_sub(MAX_SITES),
            bytes: limit.bytes,
        })
    };
    limits.iter().filter_map(growth).collect()
}

impl Growth {
    /// The growth in words: which sites grew, and by how much.
    pub(super) fn text(&self) -> String {
        let site = |of: &Grown| {
            let (function, Held { bytes, calls }) = (short(&of.function), of.delta);
            let (size, location) = (signed_size(bytes), &of.location);
            format!("{function} {location} {size} ({bytes} bytes, {calls:+} objects)")
        };
        let mut sites: Vec<String> = self.sites.iter().map(site).collect();
        if self.more != 0 {
            sites.push(format!("{} more", self.more));
        }
        format!(
            "grew by {} ({} bytes), more than {} (--fail-on-growth {}): {}",
            signed_size(self.delta.bytes).trim_start_matches('+'),
            self.delta.bytes,
            size(self.bytes),
            self.limit,
            sites.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use kmem_snapshot::symbols::Place;

    use super::*;

    fn row(function: &str, line: u32, bytes: i64) -> Site {
        let place = Place {
            module: "libx.so".into(),
            function: Some(function.into()),
            source: Some(("/src/deep/a.c".into(), line)),
            ..Place::default()
        };
        Site { bytes, calls: 1, ..Site::new(Origin::Place(place)) }
    }

    fn found(limits: &[&str]) -> Vec<String> {
        let before = [row("f", 1, 100), row("g", 2, 50), row("ns::T<int>::h", 3, 10)];
        let after = [row("f", 1, 1200), row("g", 2, 40), row("ns::T<int>::h", 3, 30)];
        let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
        let diff = Diff::of(&before, &after);
        find(&limits, &diff, &before, "app").iter().map(Growth::text).collect()
    }

    #[test]
    fn a_threshold_is_exceeded_by_more_and_not_by_as_much() {
        assert_eq!(found(&["1110"]), Vec::<String>::new());
        assert_eq!(
            found(&["1109"]),
            ["grew by 1.1 KiB (1110 bytes), more than 1.1 KiB (--fail-on-growth 1109): f \
              /src/deep/a.c:1 +1.1 KiB (1100 bytes, +0 objects), ns::T<int>::h /src/deep/a.c:3 \
              +20 B (20 bytes, +0 objects)"]
        );
    }

    #[test]
    fn sites_are_named_by_place_function_and_module() {
        for (site, grows) in [
            ("f", true),
            ("g", false),
            ("a.c:1", true),
            ("deep/a.c:1", true),
            ("/src/deep/a.c:1", true),
            ("eep/a.c:1", false),
            ("*.c:[1]", false),
            ("*a.c:?", true),
            ("libx.so", true),
            ("app", false),
            ("ns::T<int>::h", true),
            ("ns::*", true),
            ("none", false),
        ] {
            assert_eq!(found(&[&format!("0@{site}")]).len(), usize::from(grows), "{site}");
        }
    }

    #[test]
    fn thresholds_are_sizes_and_sites() {
        for text in ["", "@f", "x@f", "1M@", "-1"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
        let limit: Limit = "1.5M@operator new@plt".parse().unwrap();
        assert_eq!((limit.bytes, limit.site.unwrap().matches("operator new@plt")), (3 << 19, true));
    }
}
