//! Programs and libraries compiled from C and C++.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// The directory of the C headers.
pub fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include")
}

/// One call of a compiler. Arguments keep their order: libraries come after the sources that need
/// them.
#[derive(Debug)]
pub struct Compiler(Command);

impl Compiler {
    /// The compiler of this name.
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        Self(Command::new(name))
    }

    /// The C compiler for the machine that the tests run on: `KMEM_TEST_CC` where the tests run
    /// under an emulator, else `cc`.
    pub fn c() -> Self {
        Self::new(std::env::var_os("KMEM_TEST_CC").unwrap_or_else(|| "cc".into()))
    }

    /// The C++ compiler.
    pub fn cxx() -> Self {
        Self::new("c++")
    }

    /// Adds an argument: an option, a source or a library.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.0.args(arguments);
        self
    }

    /// Finds the headers of kmem.
    #[must_use]
    pub fn include(self) -> Self {
        self.arg("-I").arg(include())
    }

    /// Makes a warning an error.
    #[must_use]
    pub fn strict(self) -> Self {
        self.args(["-Wall", "-Wextra", "-Werror"])
    }

    /// Compiles to `output`, which is returned. A compiler that fails, fails the test.
    #[track_caller]
    pub fn compile(mut self, output: impl AsRef<Path>) -> PathBuf {
        let output = output.as_ref();
        let compiled = self.0.arg("-o").arg(output).output();
        let compiled = compiled.unwrap_or_else(|error| panic!("{:?}: {error}", self.0));
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{:?}: {said}", self.0);
        output.to_owned()
    }
}

/// The file `name` in a directory that all runs of a test share, compiled once per process.
/// `compile` is given a path to write to. Other processes may be using the file; they keep theirs,
/// because the new file takes its place by a rename.
#[track_caller]
pub fn compile_once(name: &str, compile: impl FnOnce(&Path)) -> PathBuf {
    type Outputs = HashMap<String, Arc<OnceLock<PathBuf>>>;
    static OUTPUTS: OnceLock<Mutex<Outputs>> = OnceLock::new();
    let cell = {
        let mut outputs = OUTPUTS
            .get_or_init(Mutex::default)
            .lock()
            .expect("no test panics while it holds this lock");
        Arc::clone(outputs.entry(name.to_owned()).or_default())
    };
    cell.get_or_init(|| {
        let directory = crate::target_tmpdir().join("programs");
        std::fs::create_dir_all(&directory).expect("a directory for the compiled programs");
        let result = directory.join(name);
        let fresh = result.with_extension(format!("{}.new", std::process::id()));
        compile(&fresh);
        std::fs::rename(&fresh, &result).expect("a file can be renamed in its directory");
        result
    })
    .clone()
}
