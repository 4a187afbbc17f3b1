//! The mappings of `/proc/PID/maps`, rebuilt from PT_LOAD segments and the NT_FILE note.

use std::collections::HashMap;

use kmem_layout::root::is_root;
use object::elf;

use super::header::Headers;
use super::notes::Notes;
use crate::maps::{Mapping, Maps, unmarked};

/// Name of the stack of the first thread.
pub(super) const STACK: &str = "[stack]";

/// Rebuilds the mappings of the process. Linux writes a segment for each. Other writers leave out
/// mappings that they do not dump. So a mapped file without a segment cannot be read.
pub(super) fn maps(headers: &Headers, notes: &Notes) -> Maps {
    let (files, loads) = (&notes.files, &headers.loads);
    let mut mappings = Vec::new();
    let mut inodes = Inodes::default();
    let (mut f, mut l, mut at) = (0, 0, 0);
    // Each list is in order and without overlap. Cut the ranges of each at the ends of the other.
    while f < files.len() || l < loads.len() {
        let file = files.get(f);
        let load = loads.get(l);
        let starts = [file.map(|f| f.start), load.map(|l| l.start)];
        at = starts.into_iter().flatten().min().unwrap_or(at).max(at);
        let file_here = file.filter(|f| f.start <= at);
        let load_here = load.filter(|l| l.start <= at);
        let ends = [
            file.map(|f| if f.start <= at { f.end } else { f.start }),
            load.map(|l| if l.start <= at { l.end } else { l.start }),
        ];
        let end = ends.into_iter().flatten().min().unwrap_or(at);
        if at < end {
            let is = |flag| load_here.is_some_and(|l| l.flags & flag != 0);
            let name = match file_here {
                Some(file) => file.name.as_str(),
                None if load_here.is_some_and(|l| l.start == notes.vdso) => "[vdso]",
                // The kernel puts the path given to `execve` on the stack of the first thread.
                None if (at..end).contains(&notes.exec_name) && is(elf::PF_W) => STACK,
                None => "",
            };
            let (path, deleted) = unmarked(name);
            let offset = file_here.map_or(0, |f| f.offset.saturating_add(at - f.start));
            mappings.push(Mapping {
                start: at,
                end,
                readable: is(elf::PF_R),
                writable: is(elf::PF_W),
                executable: is(elf::PF_X),
                offset,
                device: (0, 0),
                inode: if file_here.is_some() { inodes.of(path, offset) } else { 0 },
                path: path.to_owned(),
                deleted,
            });
        }
        at = end;
        f += usize::from(file.is_some_and(|f| f.end <= at));
        l += usize::from(load.is_some_and(|l| l.end <= at));
    }
    Maps::new(mappings)
}

/// Numbers that stand for inodes, which a core does not keep: files of one name are one file.
#[derive(Default)]
struct Inodes {
    by_path: HashMap<String, u64>,
    next: u64,
}

impl Inodes {
    fn of(&mut self, path: &str, offset: u64) -> u64 {
        // All root blocks have this name, and each is the beginning of a file of its own.
        if is_root(path, offset) {
            self.next += 1;
            return self.next;
        }
        if let Some(&known) = self.by_path.get(path) {
            return known;
        }
        self.next += 1;
        self.by_path.insert(path.to_owned(), self.next);
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::Segment;
    use super::super::notes::MappedFile;
    use super::*;

    fn load(start: u64, end: u64, flags: u32) -> Segment {
        Segment { flags, offset: 0, start, end, file_size: 0, align: 1 }
    }

    fn file(start: u64, end: u64, offset: u64, name: &str) -> MappedFile {
        MappedFile { start, end, offset, name: name.to_owned() }
    }

    #[test]
    fn segments_and_files_cut_each_other() {
        let headers = Headers {
            notes: Vec::new(),
            has_sections: false,
            loads: vec![load(10, 30, elf::PF_R), load(30, 40, 0), load(60, 70, elf::PF_R)],
        };
        let files = vec![
            file(5, 15, 0, "/a"),
            file(20, 35, 100, "/b (deleted)"),
            file(50, 51, 0, "/memfd:kmem-root (deleted)"),
            file(51, 52, 0, "/memfd:kmem-root (deleted)"),
            file(52, 53, 4096, "/a"),
        ];
        let maps = maps(&headers, &Notes { files, vdso: 60, ..Notes::default() });
        let of: Vec<_> = maps
            .all()
            .iter()
            .map(|m| (m.start, m.end, m.readable, m.offset, m.path.as_str()))
            .collect();
        assert_eq!(
            of,
            [
                (5, 10, false, 0, "/a"),
                (10, 15, true, 5, "/a"),
                (15, 20, true, 0, ""),
                (20, 30, true, 100, "/b"),
                (30, 35, false, 110, "/b"),
                (35, 40, false, 0, ""),
                (50, 51, false, 0, "/memfd:kmem-root"),
                (51, 52, false, 0, "/memfd:kmem-root"),
                (52, 53, false, 4096, "/a"),
                (60, 70, true, 0, "[vdso]"),
            ]
        );
        let inode = |at| maps.find(at).unwrap().inode;
        assert_eq!(inode(5), inode(52));
        assert_ne!(inode(50), inode(51));
        assert!(maps.find(20).unwrap().deleted);
    }
}
