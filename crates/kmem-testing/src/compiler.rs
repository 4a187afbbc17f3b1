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

/// One call of a compiler. Arguments keep their order, because libraries come after the sources
/// that need them.
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

    /// Adds the directory of the C headers.
    #[must_use]
    pub fn include(self) -> Self {
        self.arg("-I").arg(include())
    }

    /// Turns warnings on, and makes each an error.
    #[must_use]
    pub fn strict(self) -> Self {
        self.args(["-Wall", "-Wextra", "-Werror"])
    }

    /// Compiles to `output`. Returns whether the compiler succeeded.
    pub fn can_compile(mut self, output: impl AsRef<Path>) -> bool {
        let compiled = self.0.arg("-o").arg(output.as_ref()).output();
        compiled.is_ok_and(|compiled| compiled.status.success())
    }

    /// Compiles to `output`, and returns its path. Fails the test if the compiler fails.
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

/// The file `name` in a directory that all runs of a test share. It is compiled once per process:
/// `compile` writes it to the path that it is given. A rename then puts the new file in the place
/// of an old one, so processes that use the old file keep it.
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
