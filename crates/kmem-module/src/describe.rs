//! Information about a module's file: all entries of `.modinfo` and of its signature, in the order
//! of `modinfo(8)`.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::decompress::{Format, Packed};
use crate::elf::Elf;
use crate::error::{Errno, Error, Result};
use crate::modinfo::Modinfo;
use crate::os::{Account, Gauge, Linux};
use crate::signature::{self, Signer};
use crate::source::Source;

/// Most bytes of a module's file, as it is and decompressed. The largest modules of Linux, with
/// all their debug information, are smaller.
pub const MAX_FILE: u64 = 256 << 20;

/// An entry: key and value, as in the file.
pub type Entry = (Vec<u8>, Vec<u8>);

/// An account for buffers whose bytes are not reported.
fn account() -> Result<Account> {
    Account::new(Arc::new(Linux), Arc::<Gauge>::default())
}

/// Opens a module's file for reading. Does not wait on devices or pipes.
///
/// # Errors
/// `EINVAL`: not a regular file; any other error of the system.
pub fn open(path: &Path) -> Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|e| Error::io(path.display(), &e))?;
    let meta = file.metadata().map_err(|e| Error::io(path.display(), &e))?;
    if !meta.is_file() {
        return Err(Error::new(Errno::EINVAL, format!("{}: not a regular file", path.display())));
    }
    Ok(file)
}

/// Checks that a module's file is not too long. A sparse file of any length costs nothing to make,
/// and all bytes of a module are read.
///
/// # Errors
/// `EFBIG`: it is longer than [`MAX_FILE`].
pub(crate) fn check_length(len: u64) -> Result<()> {
    if len <= MAX_FILE {
        return Ok(());
    }
    let what = format_args!("{len} bytes, above {MAX_FILE}, the greatest length of a module");
    Err(Error::new(Errno::EFBIG, what))
}

/// Reads the entries of a file, which may be compressed.
///
/// # Errors
/// `EFBIG`: it is longer than [`MAX_FILE`]; `ENOEXEC`: it is no module; those of [`Source::read`]
/// and [`Packed::open`].
pub fn file(path: &Path) -> Result<Vec<Entry>> {
    let file = open(path)?;
    let len = file.metadata().map_err(|e| Error::io("stat", &e))?.len();
    check_length(len)?;
    let account = account()?;
    let source = Source::File(file.as_fd(), len);
    let mut start = [0; 6];
    let have = len.min(6) as usize;
    source.read(&account, 0, &mut start[..have], "the file")?;
    if Format::of(&start[..have]).is_some() {
        let packed = Packed::open(source, &account, MAX_FILE)?;
        let bytes = packed.expand(&account)?;
        return entries(Source::Bytes(&bytes), &account);
    }
    entries(source, &account)
}

/// Reads the entries of a source.
///
/// # Errors
/// As for [`file()`].
pub fn entries(source: Source<'_>, account: &Account) -> Result<Vec<Entry>> {
    let elf = Elf::read(source, account, None)?;
    let info = Modinfo::read(&elf, account)?;
    let mut found: Vec<Entry> =
        info.entries().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    if let Ok(Some(signature)) = signature::find(source, account) {
        let pkcs7 = signature.read(source, account)?;
        if let Some(signer) = Signer::of(&pkcs7) {
            let mut add = |key: &str, value: String| found.push((key.into(), value.into_bytes()));
            add("sig_id", "PKCS#7".to_owned());
            add("signer", signer.name);
            add("sig_key", hex(&signer.key));
            add("sig_hashalgo", signer.digest);
            let lines: Vec<String> = signer.signature.chunks(20).map(hex).collect();
            add("signature", lines.join(":\n\t\t"));
        }
    }
    Ok(found)
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    digits.join(":")
}

/// The first value of a key.
#[must_use]
pub fn get<'e>(entries: &'e [Entry], key: &str) -> Option<&'e [u8]> {
    entries.iter().find(|(known, _)| known == key.as_bytes()).map(|(_, value)| &value[..])
}
