//! The files behind the mappings of a process, opened while the process is there, or, when it
//! is not, those of the same names on this machine.

mod dead;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Cursor;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::debug_file::{SearchPath, open_regular};
use super::elf::{Elf, ReadSeek};
use super::perf_map::PerfMap;
use crate::core_file::CoreFile;
use crate::process::{Mapping, Maps, Memory, Process};

/// Largest image copied from memory (the vdso).
const MAX_IMAGE: u64 = 1 << 20;

/// What is behind a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Image {
    /// An ELF file or image that was opened.
    Elf,
    /// A file that could not be opened, or is no longer the one that was mapped.
    Missing,
    /// No file: code made at run time.
    Anonymous,
}

struct Module {
    name: String,
    path: PathBuf,
    main: bool,
    image: Image,
    source: RefCell<Option<Box<dyn ReadSeek>>>,
}

struct Mapped {
    start: u64,
    end: u64,
    file_offset: u64,
    module: usize,
}

/// What [`Modules::find`] knows of an address.
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) main: bool,
    pub(super) image: Image,
    /// Offset in the file of the byte at the address.
    pub(super) file_offset: u64,
}

/// The modules of one process that hold addresses of interest.
#[derive(Default)]
pub struct Modules {
    mapped: Vec<Mapped>,
    modules: Vec<Module>,
    /// The process's root directory, held open: it can be followed when the process has ended.
    root: Option<File>,
    perf_map: OnceCell<Option<PerfMap>>,
    /// Where a live process writes the names of code made at run time: its pid, its user.
    perf_owner: Option<(u32, u32)>,
    mismatches: Vec<String>,
}

impl Modules {
    /// Opens the modules that hold `addresses`. What cannot be opened is left without symbols.
    #[must_use]
    pub fn open(process: &Process, maps: &Maps, addresses: &[u64]) -> Self {
        let memory = process.memory();
        let exe = fs::read_link(process.path("exe")).unwrap_or_default();
        let exe = exe.to_string_lossy();
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
        let owner = fs::metadata(process.path("")).map_or(u32::MAX, |m| m.uid());
        let mut this = Self {
            root: File::open(process.path("root")).ok(),
            perf_owner: Some((process.inner_pid(), owner)),
            ..Self::default()
        };
        this.add(maps, addresses, &exe, |mapping| source_of(process, &memory, maps, mapping));
        this
    }

    /// Opens the modules of a dead process by name on this machine; `exe` stands in for its
    /// executable. A file with another build-id than the one in the core is not taken, see
    /// [`Modules::mismatches`].
    #[must_use]
    pub fn of_core(core: &CoreFile, addresses: &[u64], exe: Option<&Path>) -> Self {
        let name = core.exe().strip_suffix(" (deleted)").unwrap_or(core.exe());
        let mut mismatches = Vec::new();
        let mut this = Self::default();
        this.add(core.maps(), addresses, name, |mapping| {
            let path = exe.filter(|_| mapping.path == name).unwrap_or(Path::new(&mapping.path));
            dead::source_of(core, mapping, path, &mut mismatches)
        });
        this.mismatches = mismatches;
        this
    }

    /// Opens the modules of a dead process of which only its mappings are known, by name on this
    /// machine; `other` stands in for its executable `exe`. A file with another inode number than
    /// was mapped is taken, for lack of a build-id to tell, but see [`Modules::mismatches`].
    #[must_use]
    pub fn of_maps(maps: &Maps, addresses: &[u64], exe: &str, other: Option<&Path>) -> Self {
        let name = exe.strip_suffix(" (deleted)").unwrap_or(exe);
        let mut mismatches = Vec::new();
        let mut this = Self::default();
        this.add(maps, addresses, name, |mapping| {
            let other = other.filter(|_| mapping.path == name);
            dead::source_by_name(mapping, other, &mut mismatches)
        });
        this.mismatches = mismatches;
        this
    }

    /// What to say of files that are not, or may not be, those the process had.
    #[must_use]
    pub fn mismatches(&self) -> &[String] {
        &self.mismatches
    }

    fn add(
        &mut self,
        maps: &Maps,
        addresses: &[u64],
        exe: &str,
        mut source_of: impl FnMut(&Mapping) -> Option<Box<dyn ReadSeek>>,
    ) {
        let mut by_file = HashMap::new();
        for &address in addresses {
            let Some(mapping) = maps.find(address.saturating_sub(1)) else {
                continue;
            };
            if self.mapped.iter().any(|m| m.start == mapping.start) {
                continue;
            }
            let key = (mapping.device, mapping.inode, mapping.path.as_str());
            let module = *by_file.entry(key).or_insert_with(|| {
                self.modules.push(module(mapping, exe, source_of(mapping)));
                self.modules.len() - 1
            });
            self.mapped.push(Mapped {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.offset,
                module,
            });
        }
        self.mapped.sort_by_key(|m| m.start);
    }

    /// The module at `addr`, with its number.
    pub(super) fn find(&self, addr: u64) -> Option<(usize, Found<'_>)> {
        let after = self.mapped.partition_point(|m| m.start <= addr);
        let mapped = self.mapped[..after].last().filter(|m| addr < m.end)?;
        let module = &self.modules[mapped.module];
        let found = Found {
            name: &module.name,
            main: module.main,
            image: module.image,
            file_offset: (addr - mapped.start).wrapping_add(mapped.file_offset),
        };
        Some((mapped.module, found))
    }

    /// Reads a module. None when it is no ELF file, and the second time.
    pub(super) fn load(&self, number: usize) -> Option<Elf> {
        let module = &self.modules[number];
        let source = module.source.borrow_mut().take()?;
        let mut roots = vec![PathBuf::from("/")];
        roots.extend(self.root_path());
        let search = SearchPath { module: &module.path, roots: &roots };
        Elf::parse(source, &search)
    }

    /// Names of code made at run time.
    pub(super) fn perf_map(&self) -> Option<&PerfMap> {
        let map = self.perf_map.get_or_init(|| {
            let (pid, owner) = self.perf_owner?;
            let root = self.root_path().unwrap_or_else(|| PathBuf::from("/"));
            PerfMap::open(&root.join(format!("tmp/perf-{pid}.map")), owner)
        });
        map.as_ref()
    }

    fn root_path(&self) -> Option<PathBuf> {
        let root = self.root.as_ref()?;
        Some(PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())))
    }
}

fn module(mapping: &Mapping, exe: &str, source: Option<Box<dyn ReadSeek>>) -> Module {
    let path = Path::new(&mapping.path);
    let is_file = mapping.is_file() || mapping.path == "[vdso]";
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    Module {
        name: if is_file { name } else { String::new() },
        path: path.to_owned(),
        main: mapping.is_file() && mapping.path == exe,
        image: match source {
            Some(_) => Image::Elf,
            None if is_file => Image::Missing,
            None => Image::Anonymous,
        },
        source: RefCell::new(source),
    }
}

fn source_of(
    process: &Process,
    memory: &Memory,
    maps: &Maps,
    mapping: &Mapping,
) -> Option<Box<dyn ReadSeek>> {
    if mapping.path == "[vdso]" {
        let len = mapping.end - mapping.start;
        let mut image = vec![0; usize::try_from(len).ok().filter(|_| len <= MAX_IMAGE)?];
        memory.read(mapping.start, &mut image).ok()?;
        return Some(Box::new(Cursor::new(image)));
    }
    if !mapping.is_file() {
        return None;
    }
    // The very file that is mapped, even if it has been deleted; needs privilege.
    let by_mapping = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Some(file) = open_regular(&process.path(&by_mapping)) {
        return Some(Box::new(file));
    }
    if mapping.deleted {
        return None;
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(process.in_root(Path::new(&mapping.path)))
        .ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() {
        return None;
    }
    // Replaced since it was mapped? Overlay file systems show other inode numbers here, so a
    // different number is settled by the build-id.
    if metadata.ino() != mapping.inode && !same_build_id(memory, maps, mapping, &file) {
        return None;
    }
    Some(Box::new(file))
}

/// Compares the build-id in memory with that of the file.
fn same_build_id(memory: &Memory, maps: &Maps, mapping: &Mapping, file: &File) -> bool {
    use std::os::unix::fs::FileExt as _;
    let same_file = |m: &&Mapping| {
        (m.device, m.inode, &m.path) == (mapping.device, mapping.inode, &mapping.path)
    };
    let Some(first) = maps.all().iter().filter(same_file).find(|m| m.offset == 0) else {
        return false;
    };
    let mut mapped = [0; 4096];
    let mut on_disk = [0; 4096];
    memory.read(first.start, &mut mapped).is_ok()
        && file.read_exact_at(&mut on_disk, 0).is_ok()
        && build_id_in(&mapped).is_some_and(|id| build_id_in(&on_disk).as_deref() == Some(&*id))
}

/// The build-id note in the first page of an ELF file.
fn build_id_in(page: &[u8]) -> Option<Vec<u8>> {
    let header = FileHeader64::<Endianness>::parse(page).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, page).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, page) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == object::elf::ELF_NOTE_GNU
                && note.n_type(endian) == object::elf::NT_GNU_BUILD_ID
            {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_of_garbage() {
        assert_eq!(build_id_in(&[0; 4096]), None);
        assert_eq!(build_id_in(b"\x7fELF"), None);
        let exe = fs::read("/proc/self/exe").unwrap();
        for len in (0..4096).step_by(7) {
            let _ = build_id_in(&exe[..len]);
        }
    }
}
