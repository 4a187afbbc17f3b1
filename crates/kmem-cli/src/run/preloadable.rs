//! Checks that a command can run under libkmem, before it is started.
//!
//! The dynamic loader runs some programs without the library, and says nothing. The check refuses
//! them with the reason.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kmem_snapshot::program::{ElfProgram, Program};

use super::sys;

/// Interpreters of interpreters followed, as in Linux (execve(2)).
const MAX_SCRIPTS: usize = 5;
/// Directories that `execvp` searches when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Reason for which a command cannot run under libkmem.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}: command not found: give its path, or add its directory to PATH")]
    NotFound(String),
    #[error("{}: not executable: {why}; correct that, or name another program", path.display())]
    NotExecutable { path: PathBuf, why: String },
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{}: its interpreter {} does not exist: install it, or correct the first line",
        script.display(), interpreter.display()
    )]
    NoInterpreter { script: PathBuf, interpreter: PathBuf },
    #[error(
        "{}: scripts as interpreters of scripts, more than {MAX_SCRIPTS} deep: run the program \
         itself",
        .0.display()
    )]
    TooDeep(PathBuf),
    #[error(
        "{} is statically linked: it has no dynamic loader, so libkmem.so cannot be preloaded \
         into it. Link it without -static, or with libkmem.a. A Rust program may have kmem as \
         its #[global_allocator]. Both are read by `kmem top -p PID`",
        .0.display()
    )]
    Static(PathBuf),
    #[error(
        "{} is a program for {}, but libkmem.so is for {}: it cannot be preloaded into it. \
         Build it for that machine, and name it with --library",
        path.display(), program, library
    )]
    OtherMachine { path: PathBuf, program: String, library: String },
    #[error(
        "{} is linked against musl ({}), but libkmem.so against glibc: it cannot be preloaded \
         into it. Link the program against glibc",
        path.display(), interpreter.display()
    )]
    Musl { path: PathBuf, interpreter: PathBuf },
    #[error(
        "{} is {what}: the dynamic loader ignores LD_PRELOAD for it. Run it as {who} to see its \
         memory",
        path.display()
    )]
    Privileged { path: PathBuf, what: String, who: String },
}

/// Checks the file that `execvp` would run for `command`. `library` is the header of libkmem.so.
/// Returns the path of the file.
///
/// # Errors
///
/// The reason for which the command cannot run under libkmem.
pub(crate) fn check(command: &OsStr, library: &ElfProgram) -> Result<PathBuf, Refusal> {
    let found = resolve(command)?;
    let mut path = found.clone();
    for _ in 0..=MAX_SCRIPTS {
        let program = match Program::read(&path) {
            Ok(program) => program,
            // The file may be executed and not read, so there is nothing to check.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(found),
            Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                return Err(Refusal::NotExecutable { path, why: source.to_string() });
            }
            Err(source) => return Err(Refusal::Unreadable { path, source }),
        };
        let interpreter = match program {
            Program::Elf(elf) => return check_elf(&path, &elf, library).map(|()| found),
            Program::Script(interpreter) => interpreter,
            Program::Other => PathBuf::from("/bin/sh"),
        };
        if !interpreter.exists() {
            return Err(Refusal::NoInterpreter { script: path, interpreter });
        }
        path = interpreter;
    }
    Err(Refusal::TooDeep(found))
}

/// Finds the file that `execvp` would run.
fn resolve(command: &OsStr) -> Result<PathBuf, Refusal> {
    let runnable = |path: &Path| -> Result<(), String> {
        match fs::metadata(path) {
            Err(e) => Err(e.to_string()),
            Ok(m) if m.is_dir() => Err("it is a directory".to_owned()),
            Ok(m) if !m.is_file() => Err("it is not a regular file".to_owned()),
            Ok(_) if !sys::may_execute(path) => Err("no permission to execute it".to_owned()),
            Ok(_) => Ok(()),
        }
    };
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match runnable(&path) {
            Ok(()) => Ok(path),
            Err(_) if !path.exists() => {
                Err(Refusal::NotFound(command.to_string_lossy().into_owned()))
            }
            Err(why) => Err(Refusal::NotExecutable { path, why }),
        };
    }
    let mut refused = None;
    let search = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    if !command.is_empty() {
        for dir in env::split_paths(&search) {
            let path = dir.join(command);
            match runnable(&path) {
                Ok(()) => return Ok(path),
                Err(why) if path.is_file() => {
                    refused.get_or_insert(Refusal::NotExecutable { path, why });
                }
                Err(_) => {}
            }
        }
    }
    Err(refused.unwrap_or_else(|| Refusal::NotFound(command.to_string_lossy().into_owned())))
}

fn check_elf(path: &Path, elf: &ElfProgram, library: &ElfProgram) -> Result<(), Refusal> {
    let path = path.to_owned();
    if (elf.is_64, elf.is_little, elf.machine)
        != (library.is_64, library.is_little, library.machine)
    {
        return Err(Refusal::OtherMachine {
            path,
            program: elf.machine_name(),
            library: library.machine_name(),
        });
    }
    let Some(interpreter) = &elf.interpreter else {
        // The dynamic loader itself has no loader, and obeys LD_PRELOAD.
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
        if name.is_some_and(|n| n.starts_with("ld-linux") || n.starts_with("ld.so")) {
            return Ok(());
        }
        return Err(Refusal::Static(path));
    };
    let loader = interpreter.file_name().map(|n| n.to_string_lossy().into_owned());
    if loader.is_some_and(|n| n.starts_with("ld-musl")) {
        return Err(Refusal::Musl { path, interpreter: interpreter.clone() });
    }
    check_privileges(path)
}

/// Refuses programs that gain privileges on execution: the loader ignores LD_PRELOAD for them
/// (ld.so(8), secure-execution mode).
fn check_privileges(path: PathBuf) -> Result<(), Refusal> {
    let Ok(metadata) = fs::metadata(&path) else {
        return Ok(());
    };
    let (user, group) = sys::effective_ids();
    let mode = metadata.mode();
    let set_user = mode & libc::S_ISUID != 0 && metadata.uid() != user;
    // Without group execution the bit once meant mandatory locking (inode(7)).
    let group_bits = libc::S_ISGID | libc::S_IXGRP;
    let set_group = mode & group_bits == group_bits && metadata.gid() != group;
    let what = if set_user {
        format!("setuid to user {}", metadata.uid())
    } else if set_group {
        format!("setgid to group {}", metadata.gid())
    } else if user != 0 && sys::has_capabilities(&path) {
        "given file capabilities".to_owned()
    } else {
        return Ok(());
    };
    let who = if set_user && metadata.uid() != 0 { "that user" } else { "root" };
    Err(Refusal::Privileged { path, what, who: who.to_owned() })
}
