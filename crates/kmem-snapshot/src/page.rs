//! A report as one HTML page: a recording with its time axis, or any other reading without.
//!
//! The page needs no network and no other file. Its script and its style are in `report/`, and its
//! data are JSON in it. The count of rows and of moments is bounded, and the page tells what it
//! leaves out.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::blackbox::time;
use crate::books::Accounting;
use crate::error::ReadError;
use crate::escape::printable;
use crate::program::base_name;
use crate::reading::Reading;
use crate::recording::{Moment, Name, Recording};
use crate::report::short;
use crate::sites::{Fields, Origin};

const PAGE: &str = include_str!("../report/page.html");
const STYLE: &str = include_str!("../report/page.css");
const SCRIPT: &str = include_str!("../report/page.js");

/// Most moments of a page: about as many as a screen has columns for.
const MAX_MOMENTS: usize = 600;
/// Most rows of a page. The others are one row.
const MAX_ROWS: usize = 4000;
/// Most changes of values in a page, which bound its size to some megabytes.
const MAX_CHANGES: usize = 400_000;
/// Most characters of a name.
const MAX_NAME: usize = 400;

/// Values over time: a moment, and the value from there on, and so on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Values(Vec<i64>);

impl Values {
    /// Adds the value of a moment.
    fn push(&mut self, moment: usize, value: i64) {
        // Before the first value there are zeroes.
        let last = self.0.last().copied().unwrap_or(0);
        if value != last {
            self.0.push(i64::try_from(moment).unwrap_or(i64::MAX));
            self.0.push(value);
        }
    }
}

/// The data of a page.
#[derive(Debug, Default, Serialize)]
pub struct Page {
    title: String,
    facts: Vec<String>,
    notes: Vec<String>,
    /// Milliseconds since the first moment.
    times: Vec<f64>,
    /// Name and place of each frame.
    frames: Vec<(String, String)>,
    sites: Vec<Site>,
    rows: Vec<Row>,
    groups: Vec<Group>,
    classes: Vec<Class>,
    account: Account,
}

#[derive(Debug, Serialize)]
struct Site {
    function: String,
    #[serde(rename = "where")]
    location: String,
    module: String,
    mapped: bool,
}

#[derive(Debug, Default, Serialize)]
struct Row {
    site: usize,
    /// Frames, innermost first.
    frames: Vec<usize>,
    bytes: Values,
    calls: Values,
}

#[derive(Debug, Default, Serialize)]
struct Group {
    name: String,
    bytes: Values,
    calls: Values,
}

#[derive(Debug, Default, Serialize)]
struct Class {
    size: u32,
    pages: u32,
    active: Values,
    slabs: Values,
}

#[derive(Debug, Default, Serialize)]
struct Account {
    #[serde(skip_serializing_if = "Option::is_none")]
    resident: Option<Values>,
}

/// A name that is safe to show, and of bounded length.
fn safe(name: &str) -> String {
    let name = printable(name);
    if name.chars().count() <= MAX_NAME {
        return name.into_owned();
    }
    name.chars().take(MAX_NAME).chain(['…']).collect()
}

/// Sites and frames of a page, each once.
#[derive(Default)]
struct Names {
    sites: HashMap<(bool, bool, String, String, String), usize>,
    frames: HashMap<(String, String), usize>,
}

impl Names {
    fn site(&mut self, page: &mut Page, origin: &Origin, mapped: bool, main: &str) -> usize {
        let module = match origin {
            Origin::Static(tag) if tag.module.is_empty() => main.to_owned(),
            _ => Fields::of(origin).module.unwrap_or_default().to_owned(),
        };
        let (is_static, _, location, function) = origin.key();
        let key = (mapped, is_static, module, location, function);
        let next = page.sites.len();
        let at = *self.sites.entry(key).or_insert(next);
        if at == next {
            page.sites.push(Site {
                function: safe(&short(origin.function())),
                location: safe(&origin.location()),
                module: safe(Fields::of(origin).module.unwrap_or(main)),
                mapped,
            });
        }
        at
    }

    fn row(&mut self, page: &mut Page, name: &Name, main: &str) -> Row {
        let site = self.site(page, &name.origin, name.is_mapped, main);
        let mut frames = Vec::with_capacity(name.frames.len());
        for place in &name.frames {
            let function = place.function.as_deref().map_or_else(|| place.in_module(), short);
            let key = (safe(&function), safe(&place.location()));
            let next = page.frames.len();
            let at = *self.frames.entry(key.clone()).or_insert(next);
            if at == next {
                page.frames.push(key);
            }
            frames.push(at);
        }
        Row { site, frames, ..Row::default() }
    }
}

impl Page {
    /// A page of a recording.
    ///
    /// # Errors
    ///
    /// Those of [`Recording::each`].
    pub fn of_recording(recording: &Recording) -> Result<Self, ReadError> {
        let about = recording.about();
        let mut lives = Vec::new();
        let mut most = vec![0_i64; recording.names().len()];
        recording.each(|_, moment| {
            lives.push(recording.live(moment));
            for (most, held) in most.iter_mut().zip(&moment.rows) {
                *most = (*most).max(held.bytes);
            }
        })?;
        let chosen = choose(&lives);
        let mut keep = MAX_ROWS;
        let mut page = loop {
            let page = Self::with_rows(recording, &chosen, &most, keep)?;
            let changes = page.rows.iter().map(|row| row.bytes.0.len() + row.calls.0.len());
            if changes.sum::<usize>() <= 2 * MAX_CHANGES || keep <= 100 {
                break page;
            }
            keep /= 2;
        };
        page.title = match (about.exe.as_str(), about.pid) {
            ("", _) => safe(&about.source),
            (exe, pid) => format!("{} (pid {pid})", safe(base_name(exe))),
        };
        let times: Vec<u64> = recording.times().take(lives.len()).collect();
        let first = times.first().copied().unwrap_or(0);
        let last = times.last().copied().unwrap_or(0);
        page.times = chosen.iter().map(|&at| ms(times[at].saturating_sub(first))).collect();
        let seconds = last.saturating_sub(first) as f64 / 1e9;
        page.facts = facts(&about.exe, &about.host, first);
        page.facts.push(format!("{} moments in {seconds:.1} s", lives.len()));
        page.facts.extend(recording.end().map(safe).filter(|how| !how.is_empty()));
        if chosen.len() < lives.len() {
            page.notes.push(format!(
                "The page shows {} of {} moments: of each group of neighbours the highest.",
                chosen.len(),
                lives.len()
            ));
        }
        if recording.end().is_none() {
            let text = "The recording has no end: it goes on, or its recorder was killed.";
            page.notes.push(text.to_owned());
        }
        page.notes.extend(recording.damage().map(|what| format!("The file is {}.", safe(what))));
        Ok(page)
    }

    fn with_rows(
        recording: &Recording,
        chosen: &[usize],
        most: &[i64],
        keep: usize,
    ) -> Result<Self, ReadError> {
        let mut page = Self::default();
        let mut names = Names::default();
        let main = base_name(&recording.about().exe);
        let mut by_size: Vec<usize> = (0..most.len()).collect();
        by_size.sort_by_key(|&at| std::cmp::Reverse(most[at]));
        let kept = &by_size[..by_size.len().min(keep)];
        let mut row_of = vec![None; most.len()];
        for &at in kept {
            row_of[at] = Some(page.rows.len());
            let row = names.row(&mut page, &recording.names()[at], main);
            page.rows.push(row);
        }
        let left_out = by_size.len() - kept.len();
        let others = (left_out != 0).then(|| {
            let site = names.site(&mut page, &Origin::OtherSites, false, main);
            page.rows.push(Row { site, ..Row::default() });
            page.notes.push(format!(
                "The page has the {} largest rows. {left_out} smaller ones are in other sites.",
                kept.len()
            ));
            page.rows.len() - 1
        });
        page.groups = recording.groups().iter().map(|path| Group::of(path)).collect();
        page.classes = recording.classes().iter().map(|of| Class::of(of.size, of.pages)).collect();
        let mut wanted = chosen.iter().copied().enumerate().peekable();
        let outside = |at: usize| recording.names()[at].is_mapped;
        recording.each(|number, moment| {
            let Some((point, _)) = wanted.next_if(|&(_, at)| at == number) else { return };
            page.moment(point, moment, &row_of, others, outside);
        })?;
        Ok(page)
    }

    /// Adds a moment.
    fn moment(
        &mut self,
        point: usize,
        moment: &Moment,
        row_of: &[Option<usize>],
        others: Option<usize>,
        outside: impl Fn(usize) -> bool,
    ) {
        let mut rest = (0_i64, 0_i64);
        for (at, row) in row_of.iter().enumerate() {
            let held = moment.rows.get(at).copied().unwrap_or_default();
            let calls = held.calls.cast_signed();
            if let Some(row) = *row {
                self.rows[row].bytes.push(point, held.bytes);
                self.rows[row].calls.push(point, calls);
            } else if !outside(at) {
                rest = (rest.0.saturating_add(held.bytes), rest.1.wrapping_add(calls));
            }
        }
        if let Some(row) = others {
            self.rows[row].bytes.push(point, rest.0);
            self.rows[row].calls.push(point, rest.1);
        }
        for (at, group) in self.groups.iter_mut().enumerate() {
            let (bytes, calls) = moment.groups.get(at).copied().unwrap_or_default();
            group.bytes.push(point, bytes);
            group.calls.push(point, calls.cast_signed());
        }
        for (at, class) in self.classes.iter_mut().enumerate() {
            let [active, slabs, _] = moment.classes.get(at).copied().unwrap_or_default();
            class.active.push(point, active.cast_signed());
            class.slabs.push(point, slabs.cast_signed());
        }
        self.account.add(point, moment.accounting().as_ref());
    }

    /// A page of a reading with all rows, without a time axis.
    #[must_use]
    pub fn of_reading(reading: &Reading) -> Self {
        let mut page = Self::default();
        let mut names = Names::default();
        let exe = match reading.pid() {
            Some(_) => reading.snapshot.exe.as_str(),
            None => "",
        };
        let main = base_name(exe);
        page.title = safe(&reading.short_name());
        page.facts = facts(exe, &reading.provenance.host, reading.provenance.time_ns);
        page.notes = reading.notes.iter().map(|note| safe(&note.to_string())).collect();
        page.times = vec![0.0];
        let mut all = reading.all();
        all.sort_by_key(|site| std::cmp::Reverse(site.bytes));
        for site in all {
            let name = |frames| Name {
                origin: site.origin.clone(),
                frames,
                is_mapped: site.mapped.is_some(),
                accurate: site.accurate,
            };
            let (mut bytes, mut calls) = (site.bytes, site.calls);
            for chain in site.chains.iter().take(MAX_ROWS.saturating_sub(page.rows.len())) {
                bytes = bytes.saturating_sub(chain.bytes);
                calls = calls.wrapping_sub(chain.calls);
                let row = names.row(&mut page, &name(chain.frames.clone()), main);
                page.add(row, chain.bytes, chain.calls);
            }
            if bytes != 0 || calls != 0 {
                let row = names.row(&mut page, &name(Vec::new()), main);
                page.add(row, bytes, calls);
            }
        }
        for books in &reading.snapshot.books {
            for at in books.groups.below(0).take(MAX_ROWS) {
                let rows = books.rows_of(&(at..at + 1));
                let bytes = rows.iter().fold(0_i64, |sum, row| sum.saturating_add(row.bytes));
                let calls = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.calls));
                let mut group = Group::of(&books.groups.path(at));
                group.bytes.push(0, bytes);
                group.calls.push(0, calls.cast_signed());
                page.groups.push(group);
            }
        }
        for cache in reading.snapshot.caches(None).into_iter().flatten().filter(|c| c.slabs != 0) {
            let mut class = Class::of(cache.size, cache.pages_per_slab);
            class.active.push(0, cache.active.cast_signed());
            class.slabs.push(0, cache.slabs.cast_signed());
            page.classes.push(class);
        }
        page.account.add(0, reading.accounting());
        page
    }

    fn add(&mut self, mut row: Row, bytes: i64, calls: u64) {
        row.bytes.push(0, bytes);
        row.calls.push(0, calls.cast_signed());
        self.rows.push(row);
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        // Nothing in JSON but strings has this character, and no string may end the script.
        let json = serde_json::to_string(self)?.replace('<', "\\u003c");
        let mut rest = PAGE;
        for (mark, text) in [("@CSS@", STYLE), ("@DATA@", json.as_str()), ("@JS@", SCRIPT)] {
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            out.write_all(before.as_bytes())?;
            out.write_all(text.as_bytes())?;
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}

impl Group {
    fn of(path: &str) -> Self {
        Self { name: safe(path), ..Self::default() }
    }
}

impl Class {
    fn of(size: u32, pages: u32) -> Self {
        Self { size, pages, ..Self::default() }
    }
}

impl Account {
    fn add(&mut self, point: usize, of: Option<&Accounting>) {
        if let Some(of) = of {
            let resident = i64::try_from(of.resident).unwrap_or(i64::MAX);
            self.resident.get_or_insert_default().push(point, resident);
        }
    }
}

/// Executable, machine and time, as far as they are known.
fn facts(exe: &str, host: &str, time_ns: u64) -> Vec<String> {
    let mut facts: Vec<String> =
        [exe, host].into_iter().filter(|text| !text.is_empty()).map(safe).collect();
    facts.push(time(time_ns));
    facts
}

fn ms(ns: u64) -> f64 {
    // Tenths of a millisecond are enough.
    (ns / 100_000) as f64 / 10.0
}

/// Numbers of the moments to show: the first, the last, and the highest of each group of
/// neighbours.
fn choose(lives: &[i64]) -> Vec<usize> {
    let count = lives.len();
    if count <= MAX_MOMENTS {
        return (0..count).collect();
    }
    let groups = MAX_MOMENTS - 2;
    let highest = |group: usize| {
        let range = group * count / groups..(group + 1) * count / groups;
        range.max_by_key(|&at| lives[at])
    };
    let mut chosen: Vec<usize> = (0..groups).filter_map(highest).chain([0, count - 1]).collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Site as Of;
    use crate::symbols::Place;

    #[test]
    fn a_long_recording_keeps_its_first_its_last_and_its_highest_moments() {
        assert_eq!(choose(&[3, 1, 2]), [0, 1, 2]);
        let mut lives = vec![1; 100_000];
        lives[77_777] = 9;
        let chosen = choose(&lives);
        assert!(chosen.len() <= MAX_MOMENTS, "{}", chosen.len());
        for at in [0, 77_777, 99_999] {
            assert!(chosen.binary_search(&at).is_ok(), "{at}");
        }
    }

    #[test]
    fn values_are_the_changes() {
        let mut values = Values::default();
        for (moment, value) in [0, 0, 5, 5, 0, 7].into_iter().enumerate() {
            values.push(moment, value);
        }
        assert_eq!(values.0, [2, 5, 4, 0, 5, 7]);
    }

    #[test]
    fn hostile_names_stay_within_the_data() {
        let function = Some("</script><script>alert(1)</script>\u{202e}<!--".to_owned());
        let place = Place { module: "@JS@".to_owned(), function, ..Place::default() };
        let site = Of { bytes: 9, calls: 1, ..Of::new(Origin::Place(place)) };
        let mut reading = Reading::default();
        reading.sites.push(site);
        let mut out = Vec::new();
        Page::of_reading(&reading).write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("</script>").count(), 2, "{text}");
        assert!(!text.contains("<script>alert") && !text.contains("<!--"));
        assert_eq!(text.matches("'use strict'").count(), 1);
        assert!(text.ends_with("</html>\n") && !text.contains('\u{202e}'));
    }

    #[test]
    fn the_page_names_nothing_outside_of_it() {
        for text in [PAGE, STYLE, SCRIPT] {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for word in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "eval("] {
                assert!(!text.contains(word), "{word}");
            }
        }
    }
}
