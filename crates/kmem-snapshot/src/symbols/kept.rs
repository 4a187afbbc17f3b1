//! Names of call sites that are kept from one reading of a process to the next.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Modules, Place, Symbols};
use crate::maps::{Mapping, Maps};
use crate::process::Process;

/// The mapping that an address was in when it was named.
type Key = (u64, u64, (u32, u32), u64);

fn key(of: &Mapping) -> Key {
    (of.start, of.offset, of.device, of.inode)
}

/// Names of one live process, and the build ids of its files.
///
/// A reading with names of the reading before opens only files with new call sites. A name is good
/// as long as the file that it comes from is mapped where it was. Names of code made at run time,
/// and of modules of kmem's loader, are not kept. The kept names are those of the last reading, so
/// its budget bounds them.
#[derive(Debug, Default)]
pub struct Kept {
    /// Pid and start time.
    process: Option<(u32, u64)>,
    places: HashMap<u64, (Key, Arc<Place>)>,
    build_ids: BTreeMap<String, String>,
    /// Names of several processes that are read as one, by pid.
    several: BTreeMap<u32, Self>,
}

impl Kept {
    /// The names of one of several processes.
    pub(crate) fn of(&mut self, pid: u32) -> &mut Self {
        self.several.entry(pid).or_default()
    }

    /// Forgets the names of other processes than these.
    pub(crate) fn keep_only(&mut self, pids: &[u32]) {
        self.several.retain(|pid, _| pids.contains(pid));
    }

    /// Forgets the names that are not good for these addresses, which are sorted. Returns the
    /// addresses without a name.
    pub(crate) fn new_among(
        &mut self,
        process: &Process,
        maps: &Maps,
        addresses: &[u64],
    ) -> Vec<u64> {
        let of = (process.pid(), process.start_time());
        if self.process != Some(of) {
            *self = Self { process: Some(of), ..Self::default() };
        }
        self.places.retain(|address, (known, _)| {
            addresses.binary_search(address).is_ok()
                && maps.find(address.saturating_sub(1)).is_some_and(|now| key(now) == *known)
        });
        let is_new = |address: &&u64| !self.places.contains_key(address);
        addresses.iter().filter(is_new).copied().collect()
    }

    /// Resolves addresses in these modules, or by the names that were kept.
    pub(crate) fn symbols<'a>(&self, modules: &'a Modules) -> Symbols<'a> {
        let mut symbols = Symbols::new(modules);
        let known = self.places.iter().map(|(&address, (_, place))| (address, Arc::clone(place)));
        symbols.known.extend(known);
        symbols
    }

    /// Keeps the names that have been resolved, unless the budget left some out. Returns the build
    /// ids of all files.
    pub(crate) fn learn(&mut self, symbols: &Symbols<'_>, maps: &Maps) -> BTreeMap<String, String> {
        let new = symbols.modules.build_ids();
        if self.process.is_none() || !symbols.modules.budget.remarks().is_empty() {
            return new.clone();
        }
        self.build_ids.extend(new.iter().map(|(path, id)| (path.clone(), id.clone())));
        for (&address, place) in &symbols.known {
            let mapping = maps.find(address.saturating_sub(1));
            if let Some(mapping) = mapping.filter(|of| of.is_file() && !place.module.is_empty()) {
                self.places.entry(address).or_insert_with(|| (key(mapping), Arc::clone(place)));
            }
        }
        self.build_ids.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn a_name_is_kept_while_its_file_is_mapped_where_it_was() {
        let process = Process::open(std::process::id()).expect("this process");
        let maps = process.maps().expect("its mappings");
        let here = Kept::learn as fn(&mut Kept, &Symbols<'_>, &Maps) -> _ as usize as u64 + 1;
        let mut kept = Kept::default();
        let mut new = |maps: &Maps, addresses: &[u64], process: &Process| {
            let new = kept.new_among(process, maps, addresses);
            let modules = Modules::open(process, maps, &new, &Budget::default());
            let mut symbols = kept.symbols(&modules);
            let place = symbols.resolve(here);
            let ids = kept.learn(&symbols, maps);
            (new.len(), place, ids.len())
        };
        let (first, place, ids) = new(&maps, &[here], &process);
        assert!(place.function.as_ref().is_some_and(|name| name.contains("learn")), "{place:?}");
        assert_eq!(first, 1);
        // Nothing is opened for it again.
        assert_eq!(new(&maps, &[here], &process), (0, place.clone(), ids));
        // The address is in another mapping now, or not asked for.
        let mut moved = maps.all().to_vec();
        moved.iter_mut().for_each(|mapping| mapping.inode += 1);
        assert_eq!(new(&Maps::new(moved), &[here], &process).0, 1);
        new(&maps, &[], &process);
        assert_eq!(new(&maps, &[here], &process).0, 1);
        // Another process has names of its own.
        let other = Process::open(std::os::unix::process::parent_id()).expect("the parent");
        assert_eq!(new(&maps, &[here], &other).0, 1);
    }
}
