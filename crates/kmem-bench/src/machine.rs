//! The machine that a table was measured on.

use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::read_to_string;

/// The machine, and the allocators that were measured on it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Machine {
    /// The processor's name in the kernel.
    pub(crate) cpu: String,
    /// Number of CPUs that this process may run on.
    pub(crate) cores: usize,
    /// Main memory in bytes.
    pub(crate) memory_bytes: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The version of the C library that was loaded.
    pub(crate) glibc: String,
    /// The system's setting of transparent huge pages.
    pub(crate) transparent_hugepage: String,
    /// Version of each allocator, and the place of its measurement.
    pub(crate) allocators: BTreeMap<String, String>,
    /// Allocators or programs that could not be measured, and why.
    pub(crate) missing: BTreeMap<String, String>,
}

/// The line above a table.
impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, kernel, glibc, transparent_hugepage, .. } = self;
        write!(
            f,
            "{cpu}, {cores} CPUs, Linux {kernel}, glibc {glibc}, huge pages {transparent_hugepage}"
        )
    }
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Self {
        Self {
            cpu: value_of(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: crate::affinity::allowed().len(),
            memory_bytes: value_of(&read("/proc/meminfo"), "MemTotal")
                .and_then(|value| kibibytes(&value))
                .unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            glibc: glibc_version(),
            transparent_hugepage: selected(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            ..Self::default()
        }
    }
}

fn read(path: &str) -> String {
    read_to_string(path).unwrap_or_default()
}

/// The value of the first line `key : value`.
pub(crate) fn value_of(text: &str, key: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
}

/// Bytes of a text such as `"12 kB"`.
pub(crate) fn kibibytes(value: &str) -> Option<u64> {
    let number: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

/// The word in brackets of `always [madvise] never`.
fn selected(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or("absent", |(word, _)| word).to_owned()
}

pub(crate) fn glibc_version() -> String {
    // SAFETY: the function takes nothing and returns a static string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{kibibytes, selected, value_of};

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nMemTotal:  16 kB\n";
        assert_eq!(value_of(text, "model name").as_deref(), Some("Some CPU"));
        let memory = value_of(text, "MemTotal").unwrap();
        assert_eq!(kibibytes(&memory), Some(16384));
        assert_eq!(value_of(text, "absent"), None);
    }

    #[test]
    fn the_selected_word() {
        assert_eq!(selected("always [madvise] never\n"), "madvise");
        assert_eq!(selected(""), "absent");
    }
}
