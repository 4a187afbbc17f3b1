//! Several processes, read as one.

use std::collections::{BTreeMap, HashMap};

use super::{Details, OfSize, Provenance, Query, ReadFailure, Reading, Target};
use crate::books::{Accounting, Books, Cache, Pinned, Snapshot};
use crate::error::ReadError;
use crate::notes::Note;
use crate::select::Selection;
use crate::sites::{GroupTotal, Site, group_sums};
use crate::symbols::Kept;

/// Live bytes and objects of one of several processes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ProcessTotal {
    /// Pid of the process.
    pub pid: u32,
    /// Path of its executable.
    pub exe: String,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// Reads each process of a selection, and adds up their rows. Processes that start or end meanwhile
/// are left out, and those that cannot be read are noted.
pub(super) fn read(
    selection: &Selection,
    query: &Query,
    kept: &mut Kept,
) -> Result<Reading, ReadFailure> {
    let pids = selection.processes()?;
    kept.keep_only(&pids);
    let (mut parts, mut failures) = (Vec::new(), Vec::new());
    for pid in pids {
        match Target::Process(pid).read_again(query, kept.of(pid)) {
            Ok(reading) => parts.push(reading),
            Err(ReadFailure { error, .. }) if error.is_transient() => {}
            Err(failure) => failures.push((pid, failure)),
        }
    }
    if parts.is_empty() {
        let none = || ReadError::NoneChosen { choice: selection.to_string() }.into();
        return Err(failures.into_iter().next().map_or_else(none, |(_, failure)| failure));
    }
    let mut notes: Vec<Note> = Vec::new();
    for part in &mut parts {
        let pid = part.snapshot.pid;
        part.notes.drain(..).for_each(|note| add_note(&mut notes, pid, note));
    }
    for (pid, failure) in failures {
        add_note(&mut notes, pid, Note::LeftOut(failure.error.to_string()));
    }
    Ok(Reading { notes, ..Reading::together(parts) })
}

/// Adds a note of a process. Notes that several processes have are one.
fn add_note(notes: &mut Vec<Note>, pid: u32, new: Note) {
    for known in &mut *notes {
        if let Note::Of { pids, note } = known
            && **note == new
        {
            pids.push(pid);
            return;
        }
    }
    notes.push(Note::Of { pids: vec![pid], note: Box::new(new) });
}

impl Reading {
    /// The sum of readings of processes, of which there is at least one.
    fn together(parts: Vec<Self>) -> Self {
        let all = |texts: fn(&Self) -> &str| {
            let mut texts = parts.iter().map(texts);
            let first = texts.next().unwrap_or_default();
            if texts.all(|text| text == first) { first.to_owned() } else { String::new() }
        };
        let totals =
            parts.iter().map(Self::totals).fold((0, 0), |(bytes, calls): (i64, u64), of| {
                (bytes.saturating_add(of.0), calls.saturating_add(of.1))
            });
        let snapshot = Snapshot {
            exe: all(|part| &part.snapshot.exe),
            comm: all(|part| &part.snapshot.comm),
            accounting: Accounting::together(parts.iter().map(|part| &part.snapshot.accounting)),
            ..Snapshot::default()
        };
        let build_ids = parts.iter().flat_map(|part| part.provenance.build_ids.clone()).collect();
        Self {
            snapshot,
            sites: added(parts.iter().map(|part| &part.sites)),
            metadata: added(parts.iter().map(|part| &part.metadata)),
            mappings: added(parts.iter().map(|part| &part.mappings)),
            filtered: parts.iter().any(|part| part.filtered),
            provenance: Provenance { build_ids, ..Provenance::now() },
            accounted: true,
            totals: Some(totals),
            parts,
            ..Self::default()
        }
    }

    /// True for a reading of several processes.
    #[must_use]
    pub fn is_of_several(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Live bytes and objects of each process, by pid; empty for a reading of one target.
    #[must_use]
    pub fn by_process(&self) -> Vec<ProcessTotal> {
        let total = |part: &Self| {
            let (bytes, calls) = part.totals();
            ProcessTotal { pid: part.snapshot.pid, exe: part.snapshot.exe.clone(), bytes, calls }
        };
        self.parts.iter().map(total).collect()
    }

    /// The books of all processes.
    pub(crate) fn books(&self) -> impl Iterator<Item = &Books> {
        let parts = self.parts.iter().flat_map(|part| &part.snapshot.books);
        self.snapshot.books.iter().chain(parts)
    }

    /// The name of several processes, of which `name` is the one that all of them have.
    pub(super) fn name_of_several(&self, name: &str) -> String {
        let count = match self.parts.len() {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        if name.is_empty() { count } else { format!("{name} ({count})") }
    }

    /// The memory of each group of each process, by path.
    pub(super) fn groups_of_several(&self) -> Vec<GroupTotal> {
        together(self.parts.iter().flat_map(Self::by_group))
    }

    /// The size classes of all processes.
    pub(super) fn classes_of_several(&self) -> Vec<Cache> {
        Cache::together(self.parts.iter().flat_map(Self::by_class))
    }

    /// The details of a row: those of the rows that it adds up.
    pub(super) fn details_of_several(&self, site: &Site) -> Details {
        let key = site.key();
        let mut all = Vec::new();
        for part in &self.parts {
            let own = part.sites.iter().find(|own| own.key() == key);
            all.extend(own.map(|own| part.details(own)));
        }
        let mut by_size = BTreeMap::<u64, u64>::new();
        for of in all.iter().flat_map(|details| &details.sizes) {
            *by_size.entry(of.size).or_default() += of.calls;
        }
        Details {
            pinned: pinned(all.iter().map(|details| details.pinned)),
            sizes: by_size.into_iter().map(|(size, calls)| OfSize { size, calls }).collect(),
            ages: self.ages(site),
            groups: together(all.iter().flat_map(|details| details.groups.clone())),
        }
        .sorted()
    }
}

/// Adds up rows of one place, of one group and of one node. Their tags have a meaning in one
/// process alone, and are left out.
fn added<'a>(lists: impl Iterator<Item = &'a Vec<Site>>) -> Vec<Site> {
    let mut sums: Vec<Site> = Vec::new();
    let mut known = HashMap::new();
    for site in lists.flatten() {
        let at = *known.entry(site.key()).or_insert(sums.len());
        let Some(sum) = sums.get_mut(at) else {
            sums.push(Site { tags: Vec::new(), ..site.clone() });
            continue;
        };
        sum.bytes = sum.bytes.saturating_add(site.bytes);
        sum.calls = sum.calls.saturating_add(site.calls);
        sum.chains.extend(site.chains.iter().cloned());
        sum.mapped = sum.mapped.zip(site.mapped).map(|(a, b)| a.saturating_add(b));
        sum.pinned = pinned([sum.pinned, site.pinned].into_iter());
        sum.accurate &= site.accurate;
    }
    sums
}

/// The sum of what rows pin; none where one of them is not known.
fn pinned(all: impl Iterator<Item = Option<Pinned>>) -> Option<Pinned> {
    let mut sum = Pinned::default();
    for of in all {
        let of = of?;
        sum.pinned = sum.pinned.saturating_add(of.pinned);
        sum.sole = sum.sole.saturating_add(of.sole);
    }
    Some(sum)
}

/// Adds up the groups of one path.
fn together(groups: impl Iterator<Item = GroupTotal>) -> Vec<GroupTotal> {
    group_sums(groups.map(|of| (of.group, of.bytes, of.calls)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Origin;

    fn process(pid: u32, exe: &str, bytes: i64, pinned: Option<u64>) -> Reading {
        let pinned = pinned.map(|pinned| Pinned { pinned, sole: 0 });
        let site = Site { bytes, calls: 1, tags: vec![pid], ..Site::new(Origin::OtherSites) };
        let snapshot = Snapshot { pid, exe: exe.to_owned(), ..Snapshot::default() };
        let (sites, totals) = (vec![Site { pinned, ..site }], Some((bytes, 1)));
        Reading { snapshot, sites, totals, accounted: true, ..Reading::default() }
    }

    #[test]
    fn a_fact_that_one_process_does_not_know_is_not_known_of_all() {
        let sum = Reading::together(vec![process(1, "/a", 5, Some(8)), process(2, "/a", 7, None)]);
        let row = &sum.sites[0];
        assert_eq!((sum.sites.len(), row.bytes, row.calls, row.pinned), (1, 12, 2, None));
        assert_eq!((sum.totals(), sum.name()), ((12, 2), "/a (2 processes)".to_owned()));
        // A tag of one process is another one's for something else.
        assert!(row.tags.is_empty());
        let known = Accounting { tracked: 1, untouched: Some(2), ..Accounting::default() };
        let unknown = Accounting { tracked: 4, ..Accounting::default() };
        let sum = Accounting::together([known, unknown].iter());
        assert_eq!((sum.tracked, sum.untouched), (5, None));
    }

    #[test]
    fn processes_of_several_programs_have_a_number_and_no_name() {
        let sum = Reading::together(vec![process(1, "/a", 1, None), process(2, "/b", 1, None)]);
        assert_eq!((sum.name(), sum.pid()), ("2 processes".to_owned(), None));
        let of: Vec<(u32, String)> =
            sum.by_process().into_iter().map(|of| (of.pid, of.exe)).collect();
        assert_eq!(of, [(1, "/a".to_owned()), (2, "/b".to_owned())]);
    }

    #[test]
    fn a_note_that_several_processes_have_is_one() {
        let mut notes = Vec::new();
        add_note(&mut notes, 7, Note::ProfilingOff);
        assert!(notes[0].to_string().starts_with("process 7: profiling is off"));
        add_note(&mut notes, 9, Note::ProfilingOff);
        add_note(&mut notes, 9, Note::Torn(1));
        assert_eq!(notes.len(), 2);
        assert!(notes[0].to_string().starts_with("2 processes: profiling is off"));
    }
}
