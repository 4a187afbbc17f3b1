//! Contents of files, and names in directories.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kmem_layout::group::Limit;
use kmem_snapshot::output::{self, Choice, Format};
use kmem_snapshot::symbols::Kept;
use kmem_snapshot::{Process, Query, ReadError, Selection, Snapshot, Target, report};

use super::node::Node;
use crate::group::file::FILES;

/// Names in a process's directory.
const ALLOCINFO: &str = "allocinfo";
const SLABINFO: &str = "slabinfo";
const GROUPS: &str = "groups";
/// Path of a process's root group.
const ROOT_GROUP: &str = "/";
/// Time for which names of groups are taken from one snapshot. One command looks up several.
const RECENT: Duration = Duration::from_millis(200);
/// Longest wait for an allocation of the process, which makes or deletes a group.
const PATIENCE: Duration = Duration::from_secs(5);

/// The books of the processes that are looked at.
#[derive(Default)]
pub(super) struct Books {
    /// Names of call sites, by pid.
    names: HashMap<u32, Kept>,
    /// Groups of the process that was looked at last.
    groups: Option<Groups>,
}

/// Paths of the groups of a process at one time.
struct Groups {
    pid: u32,
    at: Instant,
    paths: Vec<String>,
}

impl Books {
    /// The nodes in a directory, by name.
    pub(super) fn list(&mut self, of: &Node) -> Result<Vec<(String, Node)>, ReadError> {
        match of {
            Node::Root => self.processes(),
            Node::Process(pid) => Ok(Self::of_process(*pid)),
            Node::Group(pid, path) => self.of_group(*pid, path),
            Node::Allocinfo(_) | Node::Slabinfo(_) | Node::GroupFile(..) => Ok(Vec::new()),
        }
    }

    /// The node of a name in a directory.
    pub(super) fn find(&mut self, of: &Node, name: &str) -> Result<Option<Node>, ReadError> {
        if *of == Node::Root {
            // The mappings of all other processes need not be read.
            let Ok(pid) = name.parse() else { return Ok(None) };
            let is_there = Process::open(pid).and_then(|process| process.maps());
            return match is_there {
                Ok(maps) => Ok(Snapshot::is_in(&maps).then_some(Node::Process(pid))),
                Err(error) if error.is_absent() => Ok(None),
                Err(error) => Err(error),
            };
        }
        let found = self.list(of)?.into_iter().find(|(known, _)| known == name);
        Ok(found.map(|(_, node)| node))
    }

    fn processes(&mut self) -> Result<Vec<(String, Node)>, ReadError> {
        let pids = Selection { all: true, ..Selection::default() }.processes()?;
        self.names.retain(|pid, _| pids.contains(pid));
        Ok(pids.into_iter().map(|pid| (pid.to_string(), Node::Process(pid))).collect())
    }

    fn of_process(pid: u32) -> Vec<(String, Node)> {
        vec![
            (ALLOCINFO.to_owned(), Node::Allocinfo(pid)),
            (SLABINFO.to_owned(), Node::Slabinfo(pid)),
            (GROUPS.to_owned(), Node::Group(pid, ROOT_GROUP.to_owned())),
        ]
    }

    /// The files of a group, and the groups right below it.
    fn of_group(&mut self, pid: u32, path: &str) -> Result<Vec<(String, Node)>, ReadError> {
        let is_root = path == ROOT_GROUP;
        let groups = self.groups(pid)?;
        if !groups.iter().any(|known| known == path) {
            return Err(ReadError::NoGroup { pid, group: path.to_owned() });
        }
        let files = FILES.iter().enumerate().filter(|(_, file)| !is_root || file.of_root);
        let mut nodes: Vec<(String, Node)> = files
            .map(|(at, file)| (file.name.to_owned(), Node::GroupFile(pid, path.to_owned(), at)))
            .collect();
        for below in groups {
            let Some(name) = child(path, below) else { continue };
            // A group of several copies of the library is one, and a file hides a group.
            if !nodes.iter().any(|(known, _)| known == name) {
                nodes.push((name.to_owned(), Node::Group(pid, below.clone())));
            }
        }
        Ok(nodes)
    }

    /// Paths of the groups of a process. They may be a moment old.
    fn groups(&mut self, pid: u32) -> Result<&[String], ReadError> {
        let is_recent = |of: &Groups| of.pid == pid && of.at.elapsed() < RECENT;
        let groups = match self.groups.take().filter(is_recent) {
            Some(recent) => recent,
            None => {
                let snapshot = Snapshot::take(&Process::open(pid)?)?;
                let all = snapshot.books.iter().map(|books| &books.groups);
                let paths = all.flat_map(|of| (0..of.all().len()).map(|at| of.path(at))).collect();
                Groups { pid, at: Instant::now(), paths }
            }
        };
        Ok(&self.groups.insert(groups).paths)
    }

    /// The contents of a file; none for a directory.
    pub(super) fn contents(&mut self, of: &Node) -> Result<Option<Vec<u8>>, ReadError> {
        let mut out = Vec::new();
        // A vector takes all that is written to it.
        match of {
            Node::Root | Node::Process(_) | Node::Group(..) => return Ok(None),
            Node::Allocinfo(pid) => {
                let query = Query { empty: true, mappings: true, ..Query::default() };
                let names = self.names.entry(*pid).or_default();
                let reading = Target::Process(*pid).read_again(&query, names);
                let reading = reading.map_err(|failure| failure.error)?;
                let _ = output::write(&mut out, Format::V2, &reading, &Choice::default());
            }
            Node::Slabinfo(pid) => {
                let snapshot = Snapshot::take(&Process::open(*pid)?)?;
                let _ = report::write_slabinfo(&mut out, &snapshot.caches(None)?);
                let _ = report::write_named_caches(&mut out, &snapshot.named_caches(None)?);
            }
            Node::GroupFile(pid, path, at) => {
                let snapshot = Snapshot::take(&Process::open(*pid)?)?;
                let groups = snapshot.groups_at(path)?;
                let file = FILES.get(*at);
                for line in file.into_iter().flat_map(|file| file.contents(&groups).lines()) {
                    out.extend(line.bytes().chain([b'\n']));
                }
            }
        }
        Ok(Some(out))
    }

    /// Sets a limit of a group.
    pub(super) fn set(pid: u32, path: &str, limit: Limit, bytes: u64) -> Result<(), ReadError> {
        Process::open(pid)?.control()?.set_group_limit(path, limit, bytes)
    }

    /// Makes a group.
    pub(super) fn create(&mut self, pid: u32, path: &str) -> Result<(), ReadError> {
        self.groups = None;
        Process::open(pid)?.control()?.create_group(path, &[], PATIENCE)
    }

    /// Deletes a group.
    pub(super) fn delete(&mut self, pid: u32, path: &str) -> Result<(), ReadError> {
        self.groups = None;
        Process::open(pid)?.control()?.delete_group(path, PATIENCE)
    }
}

/// The path of a group below another one.
pub(super) fn below(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

/// The name of the group at a path right below another one.
fn child<'a>(of: &str, path: &'a str) -> Option<&'a str> {
    let name = path.strip_prefix(of.trim_end_matches('/'))?.strip_prefix('/')?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::{below, child};

    #[test]
    fn a_group_has_those_right_below_it() {
        let names = [("/", "/a"), ("/", "/a/b"), ("/", "/"), ("/a", "/a/b"), ("/a", "/ab")];
        assert_eq!(
            names.map(|(of, path)| child(of, path)),
            [Some("a"), None, None, Some("b"), None]
        );
        assert_eq!([below("/", "a"), below("/a", "b")], ["/a", "/a/b"]);
    }
}
