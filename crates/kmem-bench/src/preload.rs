//! Paths of libraries: libkmem.so, and those of the distribution.

use std::path::PathBuf;
use std::process::Command;

/// Environment variables that configure allocators. Every child is started without them, so each
/// allocator runs with its defaults.
pub(crate) const TUNING: [&str; 8] = [
    "LD_PRELOAD",
    "KMEM_CONF",
    "MALLOC_CONF",
    "_RJEM_MALLOC_CONF",
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_PERTURB_",
    "PYTHONMALLOC",
];

/// Removes variables that configure allocators from `command`.
pub(crate) fn untuned(command: &mut Command) -> &mut Command {
    for name in TUNING {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("MIMALLOC_") || text.starts_with("TCMALLOC_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Finds `libkmem.so`: `$KMEM_LIBRARY`, else in `deps/` beside this program, which cargo rebuilds
/// with it, else beside this program.
pub(crate) fn libkmem() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("KMEM_LIBRARY") {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    let places = [directory.join("deps"), directory.to_owned()];
    places.iter().map(|place| place.join("libkmem.so")).find(|path| path.is_file())
}

/// Finds a library of the distribution by its soname.
pub(crate) fn system_library(soname: &str) -> Option<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let places = [
        format!("/usr/lib/{multiarch}"),
        format!("/lib/{multiarch}"),
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
        "/usr/local/lib".to_owned(),
    ];
    places.iter().map(|place| PathBuf::from(place).join(soname)).find(|path| path.is_file())
}

/// The advice for libraries and programs of the distribution that are missing.
pub(crate) const INSTALL: &str = "crates/kmem-bench/install-programs.sh installs it";

/// The advice for a missing `libkmem.so`.
pub(crate) const NO_LIBKMEM: &str = "libkmem.so is neither in $KMEM_LIBRARY nor beside this \
    program nor in deps/ there; `cargo build -p kmem-preload` makes it, and `--allocators` can \
    leave kmem out";
