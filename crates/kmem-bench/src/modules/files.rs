//! The modules of the storms, compiled with given sizes.

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A module.
pub(super) struct Module {
    /// Path of its file.
    pub(super) path: PathBuf,
    /// Contents of its file.
    pub(super) bytes: Vec<u8>,
}

/// All modules.
pub(super) struct Files {
    /// The modules of a boot.
    pub(super) boot: Vec<Module>,
    /// A large module.
    pub(super) xfs: Module,
    _dir: TempDir,
}

const SOURCE: &str = "#include \"kmem_module.h\"
MODULE_LICENSE(\"GPL\");
static char data[DATA] __attribute__((used)) = { 1 };
__asm__(\".pushsection .ballast; .zero BALLAST; .popsection\");
static int __init start(void) { return 0; }
static void __exit stop(void) { }
module_init(start);
module_exit(stop);
";

impl Files {
    /// Compiles `count` modules of `average` bytes, and one of `xfs.0` bytes in memory and `xfs.1`
    /// further bytes in its file.
    pub(super) fn build(count: usize, average: usize, xfs: (usize, usize)) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let boot = (0..count).map(|number| {
            // Sizes go from half to one and a half of the average.
            let data = average / 2 + average * number / count.max(2);
            compile(dir.path(), &format!("boot_{number}"), (data, data / 2))
        });
        let boot = boot.collect::<Result<_, _>>()?;
        let xfs = compile(dir.path(), "xfs", xfs)?;
        Ok(Self { boot, xfs, _dir: dir })
    }
}

fn compile(dir: &Path, name: &str, (data, ballast): (usize, usize)) -> Result<Module, String> {
    let source = dir.join(format!("{name}.c"));
    let text = SOURCE.replace("BALLAST", &ballast.to_string());
    std::fs::write(&source, text).map_err(|e| e.to_string())?;
    let path = dir.join(format!("{name}.ko"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-c", "-fPIC", &format!("-DDATA={data}"), "-I"]).arg(include);
    let output = cc.arg(&source).arg("-o").arg(&path).output().map_err(|e| format!("cc: {e}"))?;
    if !output.status.success() {
        return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
    Ok(Module { path, bytes })
}
