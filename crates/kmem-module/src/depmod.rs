//! Catalogues of directories: the file of a module's name, and the modules to load with it.
//!
//! In a directory with `modules.dep` the catalogue is read from the files that depmod(8) writes:
//! `modules.dep`, `modules.alias`, `modules.softdep`, `modules.builtin`. In any other directory it
//! is made from the entries `depends=`, `softdep=` and `alias=` of each module.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::describe;
use crate::error::{Errno, Error, Result};
use crate::modinfo;
use crate::name::Name;

/// Most bytes of an index file.
const MAX_INDEX: u64 = 64 << 20;
/// Endings of file names of modules.
const ENDINGS: [&str; 8] = [".ko", ".o", ".ko.gz", ".ko.xz", ".ko.zst", ".o.gz", ".o.xz", ".o.zst"];

/// A module in a catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    path: PathBuf,
    /// Names of modules to load before this one.
    depends: Vec<String>,
    pre: Vec<String>,
    post: Vec<String>,
}

/// The modules of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    modules: BTreeMap<String, Entry>,
    /// Patterns of aliases, each with the name of a module.
    aliases: Vec<(CString, String)>,
    builtin: BTreeSet<String>,
}

/// A file to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The file.
    pub path: PathBuf,
    /// True if the request fails when this does.
    pub required: bool,
}

impl Catalogue {
    /// Reads the catalogue of a directory.
    ///
    /// # Errors
    /// `ENOENT`: there is no such directory; any other error of the system.
    pub fn read(dir: &Path) -> Result<Self> {
        if let Some(text) = index(dir, "modules.dep")? {
            return Self::of_depmod(dir, &text);
        }
        let mut this = Self::default();
        let list = fs::read_dir(dir).map_err(|e| Error::io(dir.display(), &e))?;
        let mut paths: Vec<PathBuf> = list.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let text = path.to_string_lossy();
            if !ENDINGS.iter().any(|ending| text.ends_with(ending)) {
                continue;
            }
            // A file that is no module is an error only when it is loaded.
            let Ok(entries) = describe::file(&path) else { continue };
            let get = |key| describe::get(&entries, key);
            let name = modinfo::name_of(get("name"), get(modinfo::SOURCE_FILE));
            let by_file = || Name::of_path(text.as_bytes()).ok();
            let Ok(Some(name)) = name.map(|name| name.or_else(by_file)) else { continue };
            let name = name.to_string();
            let all = |key: &'static str| {
                let of_key = entries.iter().filter(move |(known, _)| known == key.as_bytes());
                of_key.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            };
            for alias in all("alias") {
                this.add_alias(&alias, &name);
            }
            let depends = all("depends").flat_map(|list| names(&list)).collect();
            let mut entry = Entry { path, depends, ..Entry::default() };
            for text in all("softdep") {
                entry.add_softdep(&text);
            }
            this.modules.entry(name).or_insert(entry);
        }
        Ok(this)
    }

    fn of_depmod(dir: &Path, text: &str) -> Result<Self> {
        let mut this = Self::default();
        for line in text.lines() {
            let Some((path, depends)) = line.split_once(':') else { continue };
            let Ok(name) = of_path(path) else { continue };
            // depmod(8) lists the module to load first as the last one.
            let depends = depends.split_ascii_whitespace().rev();
            let depends = depends.filter_map(|path| of_path(path).ok()).collect();
            this.modules.insert(name, Entry { path: dir.join(path), depends, ..Entry::default() });
        }
        for line in index(dir, "modules.alias")?.unwrap_or_default().lines() {
            let mut words = line.split_ascii_whitespace();
            if let (Some("alias"), Some(pattern), Some(name)) =
                (words.next(), words.next(), words.next())
            {
                this.add_alias(pattern, name);
            }
        }
        for line in index(dir, "modules.softdep")?.unwrap_or_default().lines() {
            let Some(("softdep", rest)) = line.split_once(' ') else { continue };
            let Some((name, text)) = rest.split_once(' ') else { continue };
            let entry = normal(name).ok().and_then(|name| this.modules.get_mut(&name));
            if let Some(entry) = entry {
                entry.add_softdep(text);
            }
        }
        for line in index(dir, "modules.builtin")?.unwrap_or_default().lines() {
            this.builtin.extend(of_path(line));
        }
        Ok(this)
    }

    fn add_alias(&mut self, pattern: &str, name: &str) {
        if let (Ok(pattern), Ok(name)) = (CString::new(underscores(pattern)), normal(name)) {
            self.aliases.push((pattern, name));
        }
    }

    /// The names of modules that a name or alias stands for. The name of a module stands for itself
    /// only.
    fn named(&self, wanted: &str) -> Vec<String> {
        let wanted = wanted.replace('-', "_");
        if self.modules.contains_key(&wanted) || self.builtin.contains(&wanted) {
            return vec![wanted];
        }
        let Ok(text) = CString::new(wanted) else { return Vec::new() };
        let fits = |pattern: &CString| {
            // SAFETY: both are C strings.
            unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 }
        };
        let mut names: Vec<String> = Vec::new();
        for (_, name) in self.aliases.iter().filter(|(pattern, _)| fits(pattern)) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// The files to load for a name or alias, in order. `None`: the directory does not know it.
    ///
    /// # Errors
    /// `ENOENT`: a dependency is missing; `EDEADLK`: modules depend on each other.
    pub fn plan(&self, wanted: &str) -> Result<Option<Vec<Step>>> {
        let names = self.named(wanted);
        if names.is_empty() {
            return Ok(None);
        }
        let mut plan = Plan { catalogue: self, steps: Vec::new(), open: Vec::new() };
        for name in &names {
            plan.add(name, true)?;
        }
        Ok(Some(plan.steps))
    }
}

impl Entry {
    /// Adds an entry of the form `pre: a b post: c`.
    fn add_softdep(&mut self, text: &str) {
        let mut to = None;
        for word in text.split_ascii_whitespace() {
            match (word, to) {
                ("pre:", _) => to = Some(true),
                ("post:", _) => to = Some(false),
                (name, Some(true)) => self.pre.push(name.to_owned()),
                (name, Some(false)) => self.post.push(name.to_owned()),
                (_, None) => {}
            }
        }
    }
}

struct Plan<'a> {
    catalogue: &'a Catalogue,
    steps: Vec<Step>,
    /// Names whose dependencies are being added.
    open: Vec<String>,
}

impl Plan<'_> {
    fn add(&mut self, name: &str, required: bool) -> Result<()> {
        if self.catalogue.builtin.contains(name) {
            return Ok(());
        }
        if self.open.iter().any(|open| open == name) {
            let what = format!("modules depend on each other: {} {name}", self.open.join(" "));
            return Err(Error::new(Errno::EDEADLK, what));
        }
        let Some(entry) = self.catalogue.modules.get(name) else {
            return Err(Error::new(Errno::ENOENT, format!("no module called {name}")));
        };
        if let Some(step) = self.steps.iter_mut().find(|step| step.path == entry.path) {
            step.required |= required;
            return Ok(());
        }
        self.open.push(name.to_owned());
        self.add_soft(&entry.pre);
        for depends in &entry.depends {
            let names = self.catalogue.named(depends);
            self.add(names.first().unwrap_or(depends), required)?;
        }
        self.steps.push(Step { path: entry.path.clone(), required });
        self.add_soft(&entry.post);
        self.open.pop();
        Ok(())
    }

    /// Adds modules that may be missing.
    fn add_soft(&mut self, wanted: &[String]) {
        for name in wanted.iter().flat_map(|name| self.catalogue.named(name)) {
            let (steps, open) = (self.steps.len(), self.open.len());
            if self.add(&name, false).is_err() {
                self.steps.truncate(steps);
                self.open.truncate(open);
            }
        }
    }
}

fn normal(name: &str) -> Result<String> {
    Name::of(name.as_bytes()).map(|name| name.to_string())
}

fn of_path(path: &str) -> Result<String> {
    Name::of_path(path.as_bytes()).map(|name| name.to_string())
}

fn names(list: &str) -> Vec<String> {
    list.split([',', ' '])
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// Replaces `-` by `_` in a pattern, except in ranges in brackets.
fn underscores(pattern: &str) -> String {
    let mut inside = false;
    let one = |c: char| {
        inside = (inside || c == '[') && c != ']';
        if c == '-' && !inside { '_' } else { c }
    };
    pattern.chars().map(one).collect()
}

/// The text of an index file. `None`: there is no such file.
fn index(dir: &Path, name: &str) -> Result<Option<String>> {
    let path = dir.join(name);
    let file = match describe::open(&path) {
        Ok(file) => file,
        Err(error) if error.errno == Errno::ENOENT => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_INDEX).read_to_end(&mut bytes).map_err(|e| Error::io(path.display(), &e))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(dir: &Path, name: &str) -> Result<Vec<String>> {
        let plan = Catalogue::read(dir)?.plan(name)?.unwrap_or_default();
        Ok(plan
            .iter()
            .map(|step| {
                let file = step.path.file_name().unwrap().to_string_lossy();
                if step.required { file.into_owned() } else { format!("({file})") }
            })
            .collect())
    }

    #[test]
    fn what_depmod_wrote_is_taken_at_its_word() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write(
            "modules.dep",
            "fs/xfs.ko: lib/crc32c.ko lib/crc.ko\nlib/crc32c.ko: lib/crc.ko\nlib/crc.ko:\n\
             lib/zstd.ko:\n",
        );
        write("modules.alias", "# no alias\nalias fs-xfs xfs\nalias crypto-*-[0-9] crc32c\n");
        write("modules.softdep", "softdep xfs pre: zstd absent post: crc\n");
        write("modules.builtin", "kernel/fs/ext4/ext4.ko\n");
        let all = ["(zstd.ko)", "crc.ko", "crc32c.ko", "xfs.ko"];
        assert_eq!(steps(dir.path(), "xfs").unwrap(), all);
        assert_eq!(steps(dir.path(), "fs-xfs").unwrap(), all);
        assert_eq!(steps(dir.path(), "crypto-crc-3").unwrap(), ["crc.ko", "crc32c.ko"]);
        assert!(steps(dir.path(), "ext4").unwrap().is_empty());
        assert_eq!(Catalogue::read(dir.path()).unwrap().plan("nope"), Ok(None));
        assert!(Catalogue::read(dir.path()).unwrap().plan("ext4").unwrap().is_some());
    }

    #[test]
    fn circles_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("modules.dep"), "a.ko: b.ko\nb.ko: a.ko\n").unwrap();
        assert_eq!(steps(dir.path(), "a").unwrap_err().errno, Errno::EDEADLK);
    }
}
