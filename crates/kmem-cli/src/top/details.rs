//! The page about one call site: its place, its bytes over time, its sizes, ages, groups and
//! callers.

use std::collections::{HashMap, VecDeque};

use kmem_snapshot::Reading;
use kmem_snapshot::books::{OfAge, Pinned};
use kmem_snapshot::escape::printable;
use kmem_snapshot::report::{size, size_u};
use kmem_snapshot::sites::Site;

use super::view::{shorten, site_key};

/// Readings that the history of a call site goes back.
const READINGS: usize = 60;
/// Most lines of a list of the page.
const MOST: usize = 8;
/// Heights of the bars of a history, from the least.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Bytes of each call site in the last readings, by key.
#[derive(Debug, Default)]
pub(super) struct History(HashMap<String, VecDeque<i64>>);

impl History {
    /// Adds a reading. Call sites that it does not have are forgotten.
    pub(super) fn add(&mut self, reading: &Reading) {
        let mut before = std::mem::take(&mut self.0);
        for site in &reading.all() {
            let (key, _) = site_key(site);
            let mut bytes = before.remove(&key).unwrap_or_default();
            if bytes.len() >= READINGS {
                bytes.pop_front();
            }
            bytes.push_back(site.bytes);
            self.0.insert(key, bytes);
        }
    }

    /// A line of bars, and the least and the most.
    fn line(&self, key: &str) -> Option<String> {
        let bytes = self.0.get(key)?;
        let (least, most) = (*bytes.iter().min()?, *bytes.iter().max()?);
        let all = i128::from(most) - i128::from(least);
        let height = |of: i64| match all {
            0 => 0,
            _ => (i128::from(of) - i128::from(least)) * (BARS.len() as i128 - 1) / all,
        };
        let bar = |of: &i64| BARS[usize::try_from(height(*of)).unwrap_or(0)];
        let bars: String = bytes.iter().map(bar).collect();
        Some(format!("{bars} {} to {}, {} readings", size(least), size(most), bytes.len()))
    }
}

/// The lines of the page about the row with this key, for a width in characters. Lines but that of
/// the place may be longer. None: it is no row of a call site.
pub(super) fn lines(
    reading: &Reading,
    history: &History,
    key: &str,
    width: usize,
) -> Option<Vec<String>> {
    let sites = reading.all();
    let site = sites.iter().find(|site| site_key(site).0 == key)?;
    let origin = &site.origin;
    let mut lines = vec![printable(origin.function()).into_owned()];
    let place = printable(&origin.location()).into_owned();
    lines.extend((!place.is_empty()).then(|| shorten(&place, width)));
    lines.push(format!("in {}", printable(&reading.module_of(origin))));
    lines.push(String::new());
    let mut say = |name: &str, text: String| lines.push(format!("{name:<9}{text}"));
    say("SIZE", held(site));
    if let Some(line) = history.line(key) {
        say("HISTORY", line);
    }
    let details = reading.details(site);
    if let Some(Pinned { pinned, sole }) = details.pinned {
        let (pinned, sole) = (size_u(pinned), size_u(sole));
        say("PINNED", format!("{pinned} in slabs and page runs, {sole} of them for it alone"));
    }
    let sizes = details.sizes.iter();
    say_list(
        &mut say,
        "SIZES",
        sizes.map(|of| {
            format!("{:>10} {:>9}  of {}", size_u(of.bytes()), of.calls, size_u(of.size))
        }),
    );
    let ages = details.ages.iter();
    say_list(
        &mut say,
        "AGES",
        ages.map(|of| format!("{:>10} {:>9}  {}", size_u(of.bytes), of.calls, age(of))),
    );
    let groups = details.groups.iter();
    say_list(
        &mut say,
        "GROUPS",
        groups
            .map(|of| format!("{:>10} {:>9}  {}", size(of.bytes), of.calls, printable(&of.group))),
    );
    let callers = site.callers();
    say_list(
        &mut say,
        "CALLERS",
        callers.iter().map(|of| {
            let function = printable(of.place.function.as_deref().unwrap_or("?")).into_owned();
            let place = printable(&of.place.location()).into_owned();
            format!("{:>10} {:>9}  {function}  {place}", size(of.bytes), of.calls)
        }),
    );
    Some(lines)
}

/// Says the first lines of a list, its name before the first one, and how many were left out.
fn say_list(
    say: &mut impl FnMut(&str, String),
    name: &str,
    texts: impl ExactSizeIterator<Item = String>,
) {
    let all = texts.len();
    for (at, text) in texts.take(MOST).enumerate() {
        say(if at == 0 { name } else { "" }, text);
    }
    if all > MOST {
        say("", format!("{:>20}  {} more", "", all - MOST));
    }
}

/// The bounds of an age.
fn age(of: &OfAge) -> String {
    let span = |seconds: u64| match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    };
    match (of.from_s, of.below_s) {
        (None, _) => "not known".to_owned(),
        (Some(0), Some(below)) => format!("less than {}", span(below)),
        (Some(from), Some(below)) => format!("{} to {}", span(from), span(below)),
        (Some(from), None) => format!("{} or more", span(from)),
    }
}

/// Bytes and objects of a call site.
fn held(site: &Site) -> String {
    let bytes = size(site.bytes);
    match (site.mapped, i64::try_from(site.calls)) {
        (Some(space), _) => format!("{bytes} in memory, of {} mapped", size_u(space)),
        (None, Ok(objects @ 1..)) => {
            format!("{bytes} in {objects} objects, {} on average", size(site.bytes / objects))
        }
        (None, _) => format!("{bytes} in {} objects", site.calls),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kmem_snapshot::sites::{Chain, Origin};
    use kmem_snapshot::symbols::Place;

    use super::*;

    fn reading(bytes: i64) -> Reading {
        let place = |function: &str| Place {
            module: "app".to_owned(),
            function: Some(function.to_owned()),
            source: Some((format!("{function}.c"), 7)),
            ..Place::default()
        };
        let chain = |tag: u32, bytes: i64, caller: &str| Chain {
            tag,
            bytes,
            calls: 1,
            frames: vec![Arc::new(place("make")), Arc::new(place(caller))],
        };
        let mut of = Reading::default();
        let chains = vec![chain(1, bytes - 10, "index"), chain(2, 10, "log")];
        let origin = Origin::Place(place("make"));
        of.sites = vec![Site { bytes, calls: 2, tags: vec![1, 2], chains, ..Site::new(origin) }];
        of
    }

    #[test]
    fn the_page_has_the_place_the_history_and_the_callers() {
        let mut history = History::default();
        for bytes in [100, 200, 800] {
            history.add(&reading(bytes));
        }
        let last = reading(800);
        let (key, _) = site_key(&last.sites[0]);
        let lines = lines(&last, &history, &key, 6).expect("a call site");
        assert_eq!(lines[..4], ["make", "m….c:7", "in app", ""].map(str::to_owned));
        assert_eq!(lines[4], "SIZE     800 B in 2 objects, 400 B on average");
        assert_eq!(lines[5], "HISTORY  ▁▂█ 100 B to 800 B, 3 readings");
        assert!(lines[6].starts_with("CALLERS") && lines[6].ends_with("index  index.c:7"));
        assert!(lines[7].ends_with("log  log.c:7") && lines.len() == 8, "{lines:#?}");
        assert_eq!(super::lines(&last, &history, "no row", 80), None);
    }

    #[test]
    fn ages_are_said_by_their_bounds() {
        let said = |from_s, below_s| age(&OfAge { from_s, below_s, bytes: 0, calls: 0 });
        for (from, below, text) in [
            (Some(0), Some(1), "less than 1 s"),
            (Some(10), Some(60), "10 s to 1 min"),
            (Some(600), Some(3600), "10 min to 1 h"),
            (Some(86_400), None, "1 d or more"),
            (None, None, "not known"),
        ] {
            assert_eq!(said(from, below), text);
        }
    }

    #[test]
    fn a_history_forgets_what_is_old_and_what_is_gone() {
        let mut history = History::default();
        for number in 0..200 {
            history.add(&reading(1000 + number));
        }
        let (key, _) = site_key(&reading(0).sites[0]);
        assert!(history.line(&key).expect("a history").ends_with("60 readings"));
        history.add(&Reading::default());
        assert_eq!(history.line(&key), None);
    }
}
