//! Loading: claims the file, finds the name, claims the name, and only then allocates memory.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::{Inner, Loader, file, flags};
use crate::alloc::{Lossy, Shared};
use crate::decompress::Packed;
use crate::elf::{Elf, Machine};
use crate::error::{Errno, Error, Result};
use crate::link::{Options, link};
use crate::modinfo::Modinfo;
use crate::module::{Module, lock};
use crate::name::Name;
use crate::os::Account;
use crate::params;
use crate::probe;
use crate::registry::{self, Asked, Attempt, Claim, FileId, Registry, Slot};
use crate::signature;
use crate::source::{Source, Window};
use crate::stats::Stat;
use crate::symbols::{Versions, is_gpl_compatible};
use crate::tags::OwnTags;

/// Version of the structures in `kmem_module.h`: `KMEM_MODULE_ABI`.
const ABI: &str = "1";

/// Progress of a request: selects the counters of a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Decompress,
    Becoming,
    Load,
}

/// A request under way.
struct Request<'a> {
    loader: &'a Arc<Inner>,
    attempt: Shared<Attempt>,
    file: Option<FileId>,
    account: Account,
    stage: Stage,
    name: Option<Name>,
    ended: bool,
}

impl Loader {
    /// Loads the module in a file that is open for reading only, and runs its init. `args` is
    /// `name=value ..`; `flags` are those of [`flags`].
    ///
    /// # Errors
    /// `EEXIST`: the module is loaded; `ENOEXEC`: the file is no module; and those of
    /// `finit_module(2)`.
    pub fn finit_module(&self, fd: RawFd, args: &str, flags: u32) -> Result<()> {
        let result = self.0.finit(fd, args, flags);
        self.0.show_held();
        result
    }

    /// Loads the module in `bytes`, and runs its init. `args` is `name=value ..`.
    ///
    /// # Errors
    /// As for [`Loader::finit_module`].
    pub fn init_module(&self, bytes: &[u8], args: &str) -> Result<()> {
        let result =
            self.0.begin_request(args, 0, None, |request| request.run(Source::Bytes(bytes), None));
        self.0.show_held();
        result
    }
}

impl Inner {
    fn finit(self: &Arc<Self>, fd: RawFd, args: &str, flags: u32) -> Result<()> {
        if flags & !flags::ALL != 0 {
            return Err(Error::new(Errno::EINVAL, format_args!("flags {flags:#x} are unknown")));
        }
        let (file, id) = match file::open(fd) {
            Ok(found) => found,
            Err(error) => {
                self.count(Stat::FailedKreads, 1);
                return Err(error);
            }
        };
        self.begin_request(args, flags, Some(id), |request| {
            request.run(Source::File(file, id.size), Some(&|| file::name(fd)))
        })
    }

    /// Makes a request and calls `run` with it, unless another request loads the same file. A
    /// failure before `run` has taken nothing from the platform.
    fn begin_request(
        self: &Arc<Self>,
        args: &str,
        flags: u32,
        file: Option<FileId>,
        run: impl FnOnce(Request<'_>) -> Result<()>,
    ) -> Result<()> {
        let begin = || {
            let attempt = Registry::begin(Asked::new(args, flags)?)?;
            Request::begin(self, attempt, file)
        };
        let request = begin().inspect_err(|_| self.count(Stat::FailedBecoming, 1))?;
        let claim = file.map_or(Ok(None), |id| self.registry.claim_file(&request.attempt, id));
        match claim {
            Ok(None) => run(request),
            Ok(Some(Claim::Shared(result))) => {
                request.forget();
                result
            }
            Ok(Some(Claim::Exists(name))) => {
                request.forget();
                self.count_duplicate(&name, 0);
                Err(exists(&name))
            }
            Err(error) => {
                request.forget();
                self.count(Stat::FailedBecoming, 1);
                Err(error)
            }
        }
    }
}

fn exists(name: &str) -> Error {
    Error::new(Errno::EEXIST, format_args!("a module called {name} is loaded"))
}

impl<'a> Request<'a> {
    fn begin(
        loader: &'a Arc<Inner>,
        attempt: Shared<Attempt>,
        file: Option<FileId>,
    ) -> Result<Self> {
        let account = loader.account()?;
        registry::begin(Arc::downgrade(loader), &attempt)?;
        let (stage, name, ended) = (Stage::Becoming, None, false);
        Ok(Self { loader, attempt, file, account, stage, name, ended })
    }

    /// Ends a request that is in no table.
    fn forget(mut self) {
        self.ended = true;
        registry::ended(&self.attempt);
    }

    fn has(&self, flag: u32) -> bool {
        self.attempt.asked.flags & flag != 0
    }

    /// Loads the module, counts the result, and wakes the threads that wait for it.
    fn run(
        mut self,
        source: Source<'_>,
        file_name: Option<&dyn Fn() -> Option<Name>>,
    ) -> Result<()> {
        let outcome = if self.has(flags::COMPRESSED_FILE) {
            self.stage = Stage::Decompress;
            Packed::open(source, &self.account, self.loader.config.most).and_then(|packed| {
                self.stage = Stage::Becoming;
                self.load(Source::Packed(&packed), Some(&packed), file_name)
            })
        } else {
            self.load(source, None, file_name)
        };
        match &outcome {
            Ok(None) => {}
            Ok(Some(Claim::Exists(name))) => {
                self.loader.count_duplicate(name, self.account.spent());
            }
            Ok(Some(_)) => {}
            Err(error) => self.count(error),
        }
        let (known, result) = match outcome {
            Ok(None) => (self.name, Ok(())),
            Ok(Some(Claim::Exists(name))) => (Some(name), Err(exists(&name))),
            Ok(Some(Claim::Shared(result))) => (result.as_ref().ok().and(self.name), result),
            Err(error) => (None, Err(error)),
        };
        self.ended = true;
        let attempt = self.attempt.clone();
        let file = self.file.map(|id| (id, known));
        self.loader.registry.end(&attempt, file, result.clone(), |tables| {
            let name = self.name.as_deref().unwrap_or_default();
            let mine = |slot: &Slot| {
                matches!(slot, Slot::Loading(other, _) if Shared::ptr_eq(other, &attempt))
            };
            if let Some(slot) = tables.names.get_mut(name).filter(|slot| mine(slot)) {
                match (&result, &slot) {
                    (Ok(()), Slot::Loading(_, Some(module))) => *slot = Slot::Live(module.clone()),
                    _ => drop(tables.names.remove(name)),
                }
            }
        });
        result
    }

    fn count(&self, error: &Error) {
        let (failed, bytes) = match self.stage {
            _ if error.read => (Stat::FailedKreads, Stat::KreadBytes),
            Stage::Decompress => (Stat::FailedDecompress, Stat::DecompressBytes),
            Stage::Becoming => (Stat::FailedBecoming, Stat::BecomingBytes),
            Stage::Load => (Stat::FailedLoads, Stat::LoadBytes),
        };
        self.loader.count(failed, 1);
        self.loader.count(bytes, self.account.spent());
    }

    /// Loads the module. `None`: it is live. A claim: another request loaded it, or tried to.
    fn load(
        &mut self,
        source: Source<'_>,
        packed: Option<&Packed<'_>>,
        file_name: Option<&dyn Fn() -> Option<Name>>,
    ) -> Result<Option<Claim>> {
        // With signatures, a file is copied first: the bytes that are verified must be those that
        // are loaded.
        let copy = match (&self.loader.config.verify, source) {
            (None, _) | (_, Source::Bytes(_)) => None,
            _ => Some(source.part(&self.account, 0, source.len(), "the file")?),
        };
        let source = copy.as_ref().map_or(source, |copy| Source::Bytes(copy));
        self.check_signature(source)?;
        let mut window = Window::new(source, &self.account)?;
        let name = match probe::name(&mut window, &self.account)? {
            Some(name) => name,
            None => file_name.and_then(|name| name()).ok_or_else(|| {
                Error::noexec(".modinfo has no name, and there is no file to take it from")
            })?,
        };
        if self.loader.registry.is_live(&name) {
            return Ok(Some(Claim::Exists(name)));
        }
        let digest = probe::digest(&mut window, &self.account, &self.loader.key)?;
        drop(window);
        if let Some(claim) = self.loader.registry.claim_name(&self.attempt, name, digest)? {
            if matches!(claim, Claim::Shared(_)) {
                self.name = Some(name);
            }
            return Ok(Some(claim));
        }
        self.name = Some(name);
        let expanded = match packed {
            Some(packed) => {
                self.stage = Stage::Decompress;
                Some(packed.expand(&self.account)?)
            }
            None => None,
        };
        self.stage = Stage::Becoming;
        let module =
            self.make(expanded.as_ref().map_or(source, |bytes| Source::Bytes(bytes)), name)?;
        // Init may run for a long time, and does not need the file.
        drop((expanded, copy));
        if let Err(error) = self.loader.come_alive(&self.attempt, &module) {
            self.loader.take_down(&module);
            return Err(error);
        }
        Ok(None)
    }

    /// Checks the file and links a module from it.
    fn make(&mut self, source: Source<'_>, name: Name) -> Result<Shared<Module>> {
        let file = Elf::read(source, &self.account, Some(Machine::HERE))?;
        let info = Modinfo::read(&file, &self.account)?;
        let gpl = self.check_info(&info, name)?;
        let module = self.loader.new_module(name)?;
        self.stage = Stage::Load;
        if let Err(error) = self.link(&file, gpl, &module) {
            self.loader.take_down(&module);
            return Err(error);
        }
        Ok(module)
    }

    /// Checks the form of a signature. If signatures are verified, one must exist and be valid.
    fn check_signature(&self, source: Source<'_>) -> Result<()> {
        let found = signature::find(source, &self.account);
        let Some(verify) = &self.loader.config.verify else {
            return match found {
                Err(error) if error.errno != Errno::ENOPKG => Err(error),
                _ => Ok(()),
            };
        };
        let Some(signature) = found? else {
            let what = "no signature, and only signed modules are loaded";
            return Err(Error::new(Errno::EKEYREJECTED, what));
        };
        let pkcs7 = signature.read(source, &self.account)?;
        let module = source.part(&self.account, 0, signature.module, "the module")?;
        verify.verify(&module, &pkcs7)
    }

    /// Checks name and ABI of the module. Returns whether its licence is compatible with the GPL.
    fn check_info(&self, info: &Modinfo<'_>, name: Name) -> Result<bool> {
        if info.name()?.is_some_and(|other| other != name) {
            return Err(Error::noexec(format_args!("{name} changed its name while it was loaded")));
        }
        let machine = Machine::HERE.name();
        match info.get("vermagic") {
            _ if self.has(flags::IGNORE_VERMAGIC) => {}
            None => return Err(Error::noexec(format_args!("{name}: no vermagic in .modinfo"))),
            Some(found)
                if found.split(|&b| b == b' ').eq([
                    b"kmem",
                    ABI.as_bytes(),
                    machine.as_bytes(),
                ]) => {}
            Some(found) => {
                let found = Lossy(&found[..found.len().min(64)]);
                return Err(Error::noexec(format_args!(
                    "{name}: vermagic is {found:?}, not \"kmem {ABI} {machine}\""
                )));
            }
        }
        match info.get("license") {
            Some(licence) if !licence.is_empty() => Ok(is_gpl_compatible(licence)),
            _ => Err(Error::noexec(format_args!("{name}: no license in .modinfo"))),
        }
    }

    /// Links the module into memory.
    fn link(&self, file: &Elf<'_>, gpl: bool, module: &Shared<Module>) -> Result<()> {
        let config = &self.loader.config;
        let versions = Versions::read(file, &self.account)?;
        let tags = OwnTags::of(module.name)?;
        let account = self.account.of_module(config.books.clone(), &tags.memory);
        let mut imports = super::coming::Imports {
            loader: self.loader,
            gpl,
            versions: (!self.has(flags::IGNORE_MODVERSIONS)).then_some(&versions),
            uses: Vec::new(),
            tags,
            percpu: None,
        };
        let options = Options {
            machine: Machine::HERE,
            base: None,
            most: config.most,
            this_module: Shared::as_ptr(module) as u64,
        };
        let linked = link(file, &account, &options, &mut imports);
        // Also after an error: `take_down` releases the modules that are held.
        let mut body = lock(&module.body);
        body.uses = std::mem::take(&mut imports.uses);
        let mut linked = linked?;
        if let (Some(values), Some(copies)) = (&linked.percpu, &imports.percpu) {
            // After relocation: the values may contain addresses.
            let values = values.start as usize..values.end as usize;
            copies.write(&linked.image.bytes()[values]);
        }
        body.percpu = imports.percpu;
        let args = &self.attempt.asked.args;
        body.strings = params::parse(&module.name, args, &linked.params, &mut linked.image)?;
        body.params = linked.params;
        body.init = linked.init;
        body.exit = linked.exit;
        body.init_array = linked.init_array;
        body.fini_array = linked.fini_array;
        body.exports = linked.exports;
        body.tags = linked.tags;
        body.image = Some(linked.image);
        Ok(())
    }
}

/// Gives up a request without a result, for example after a panic in init.
impl Drop for Request<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.loader.give_up(&self.attempt);
        }
    }
}
