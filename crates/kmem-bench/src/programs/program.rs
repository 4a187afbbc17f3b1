//! The programs: the work of each, and a run of it.

use super::tracer::{self, Ended, Traced};
use super::{Allocator, server};
use crate::dynamic::same_file;
use crate::preload::untuned;
use std::fs::{File, write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use tempfile::TempDir;

/// The file for a program's standard error, in the program's own directory.
const ERRORS: &str = "errors";

/// Figures of one run of a program.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Wall time.
    pub(super) seconds: f64,
    /// Peak resident memory of the largest process, or of the server.
    pub(super) rss_bytes: u64,
    /// Its output, which is equal under all allocators.
    pub(super) output: String,
    /// The programs whose malloc was proven to be the preloaded one.
    pub(super) images: Vec<String>,
}

/// A program that is installed, with its input written to a directory.
#[derive(Debug)]
pub(super) struct Program {
    name: &'static str,
    executable: PathBuf,
    /// Start of the file name of a process that a run must have.
    image: &'static str,
    directory: TempDir,
}

impl Program {
    /// The programs of the table.
    pub(super) const NAMES: [&'static str; 6] =
        ["python3", "sqlite3", "redis", "g++", "perl", "messages"];

    /// Finds the program `name` and writes its input.
    pub(super) fn prepare(name: &'static str) -> Result<Self, String> {
        let (executable, image, file, input) = match name {
            "python3" => (python()?, "python3", "objects.py", include_str!("objects.py").into()),
            "sqlite3" => (which(name)?, "sqlite3", "build.sql", include_str!("build.sql").into()),
            "g++" => (which(name)?, "cc1plus", "generated.cpp", generated_cpp()),
            "perl" => (which(name)?, "perl", "words.perl", include_str!("words.perl").into()),
            "messages" => (which("cc")?, name, "messages.c", include_str!("messages.c").into()),
            _ => {
                which("redis-benchmark")?;
                which("redis-cli")?;
                (which("redis-server")?, "redis", "redis.conf", server::CONFIGURATION.into())
            }
        };
        let prefix = tempfile::Builder::new().prefix("kmem-bench-").tempdir();
        let directory = prefix.map_err(|error| error.to_string())?;
        let input: String = input;
        write(directory.path().join(file), input).map_err(|error| error.to_string())?;
        let executable =
            if name == "messages" { compiled(&executable, &directory)? } else { executable };
        Ok(Self { name, executable, image, directory })
    }

    /// The name in the rows.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Runs it once under an allocator.
    pub(super) fn run(&self, allocator: &Allocator) -> Result<Run, String> {
        let library = &allocator.library;
        if self.name == "redis" {
            let (traced, seconds) = server::run(self.command(allocator)?, self.directory.path())?;
            return self.judge(traced, Some(seconds), String::new(), library);
        }
        let output = self.directory.path().join("output");
        let file = File::create(&output).map_err(|error| error.to_string())?;
        let mut command = self.command(allocator)?;
        match self.name {
            "python3" => command.arg("objects.py"),
            "sqlite3" => command.args(["-init", "build.sql", "base.db", ".quit"]),
            "g++" => command.args(["-std=c++17", "-O1", "-c", "generated.cpp", "-o", "out.o"]),
            "perl" => command.arg("words.perl"),
            _ => &mut command,
        };
        command.stdout(file);
        let traced = tracer::run(&mut command).map_err(|error| error.to_string())?;
        let output = std::fs::read_to_string(&output).map_err(|error| error.to_string())?;
        let base = self.directory.path().join("base.db");
        if base.exists() {
            std::fs::remove_file(base).map_err(|error| error.to_string())?;
        }
        self.judge(traced, None, output, library)
    }

    fn command(&self, allocator: &Allocator) -> Result<Command, String> {
        let errors = self.directory.path().join(ERRORS);
        let errors = File::create(errors).map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.executable);
        untuned(&mut command).env("LD_PRELOAD", &allocator.library).env("LC_ALL", "C.UTF-8");
        command.envs(allocator.conf.map(|conf| ("KMEM_CONF", conf)));
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stderr(errors);
        Ok(command)
    }

    /// Checks that a run succeeded and that every process used `library`.
    fn judge(
        &self,
        traced: Traced,
        seconds: Option<f64>,
        output: String,
        library: &Path,
    ) -> Result<Run, String> {
        let errors = self.directory.path().join(ERRORS);
        let errors = std::fs::read(errors).map_err(|error| error.to_string())?;
        let errors = String::from_utf8_lossy(&errors);
        // A run with an option that the library does not know is one without it.
        if let Some(refused) = refusal(&errors) {
            return Err(refused.to_owned());
        }
        if traced.status != 0 {
            let status = ExitStatus::from_raw(traced.status);
            return Err(format!("it failed ({status}): {}", errors.trim_end()));
        }
        let images = proven(&traced.processes, library)?;
        let Some(rss_bytes) = traced.processes.iter().map(|process| process.rss_bytes).max() else {
            return Err("no process was seen".to_owned());
        };
        if !images.iter().any(|image| image.starts_with(self.image)) {
            return Err(format!("no process of {} was seen, only {images:?}", self.image));
        }
        let seconds = seconds.unwrap_or(traced.elapsed.as_secs_f64());
        Ok(Run { seconds, rss_bytes, output, images })
    }
}

/// The names of the programs, if all used the malloc of `library`.
fn proven(processes: &[Ended], library: &Path) -> Result<Vec<String>, String> {
    let name = |process: &Ended| {
        let name = process.image.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    for process in processes {
        let used = process.malloc.as_deref();
        if !used.is_some_and(|used| same_file(used, library)) {
            return Err(format!("{} used the malloc of {used:?}", name(process)));
        }
    }
    Ok(processes.iter().map(name).collect())
}

/// The message of the library about a configuration that it refuses, among those of a program.
fn refusal(errors: &str) -> Option<&str> {
    errors.lines().find(|line| line.starts_with("kmem: KMEM_CONF"))
}

/// Compiles messages.c in a directory. Returns the program.
fn compiled(compiler: &Path, directory: &TempDir) -> Result<PathBuf, String> {
    let mut command = Command::new(compiler);
    command.args(["-O2", "-pthread", "-o", "messages", "messages.c"]).current_dir(directory);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("messages.c: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(directory.path().join("messages"))
}

/// The executable `name` in $PATH.
pub(super) fn which(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    files.find(|file| file.is_file()).ok_or_else(|| format!("no {name} in $PATH"))
}

/// The Python interpreter itself. `python3` in $PATH may be a script that runs it.
fn python() -> Result<PathBuf, String> {
    let mut command = Command::new(which("python3")?);
    command.args(["-c", "import sys; print(sys.executable)"]);
    let output = command.output().map_err(|error| error.to_string())?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    path.canonicalize().map_err(|error| format!("python3: {error}"))
}

/// A file that makes the compiler read many headers and instantiate templates.
fn generated_cpp() -> String {
    let headers = ["algorithm", "functional", "iostream", "map", "memory", "string", "vector"];
    let mut text: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    for number in 0..6 {
        text.push_str(&format!(
            "struct Key{number} {{ int value; bool operator<(const Key{number} &other) const \
             {{ return value < other.value; }} }};\n\
             int use{number}(int n) {{\n\
             \x20 std::map<Key{number}, std::vector<std::string>> table;\n\
             \x20 for (int i = 0; i < n; i++) \
             table[Key{number}{{i % {0}}}].push_back(std::to_string(i));\n\
             \x20 std::vector<Key{number}> keys;\n\
             \x20 for (auto &entry : table) keys.push_back(entry.first);\n\
             \x20 std::sort(keys.begin(), keys.end());\n\
             \x20 std::function<int(int)> add = [&](int x) {{ return x + (int)keys.size(); }};\n\
             \x20 return add(n);\n}}\n",
            number + 3
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Ended, generated_cpp, proven, refusal, which};
    use std::path::{Path, PathBuf};

    fn ended(image: &str, malloc: Option<&str>) -> Ended {
        Ended { image: image.into(), rss_bytes: 1, malloc: malloc.map(PathBuf::from) }
    }

    #[test]
    fn one_process_with_another_malloc_spoils_the_run() {
        let library = Path::new("/lib/a.so");
        let good = ended("/bin/g++", Some("/lib/a.so"));
        let bad = ended("/usr/lib/cc1plus", Some("/lib/b.so"));
        assert_eq!(proven(&[good], library).unwrap(), ["g++"]);
        assert!(proven(&[bad], library).unwrap_err().contains("cc1plus"));
        assert!(proven(&[ended("/bin/static", None)], library).is_err());
    }

    #[test]
    fn a_configuration_that_the_library_refuses_spoils_the_run() {
        let unknown = "kmem: KMEM_CONF: unknown option \"profiling\"";
        assert_eq!(refusal(&format!("a warning\n{unknown}\n")), Some(unknown));
        assert_eq!(refusal("a program's own line about KMEM_CONF\n"), None);
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(which("sh").is_ok());
        assert!(which("no-such-program").is_err());
        assert!(generated_cpp().contains("use5"));
    }
}
