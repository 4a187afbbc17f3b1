//! The signature at the end of a file, as the kernel's `sign-file` appends it: PKCS#7, a record of
//! 12 bytes, a magic string. This module parses it. A [`Verify`] checks it, if signatures are
//! required: that of the host, or a `Keyring`.

use std::fmt;

use cms::cert::x509::der::{Decode as _, Encode as _};
use cms::content_info::ContentInfo;
use cms::signed_data::{SignedData, SignerIdentifier};

use crate::error::{Errno, Error, Result};
use crate::os::Account;
use crate::source::{Part, Source};

const MAGIC: &[u8] = b"~Module signature appended~\n";
const RECORD: u64 = 12;
const PKCS7: u8 = 2;
/// Most bytes of a signature.
const MAX_SIGNATURE: u64 = 64 << 10;

/// Decides which signatures are valid.
pub trait Verify: Send + Sync {
    /// Checks a signature (PKCS#7, DER) of a module, whose bytes are those before the signature.
    ///
    /// # Errors
    /// `EKEYREJECTED`: it is not valid, or its key is not trusted. Any other error refuses the
    /// module, too.
    fn verify(&self, module: &[u8], signature: &[u8]) -> Result<()>;
}

impl<F: Fn(&[u8], &[u8]) -> Result<()> + Send + Sync> Verify for F {
    fn verify(&self, module: &[u8], signature: &[u8]) -> Result<()> {
        self(module, signature)
    }
}

/// The place of a signature in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Bytes of the module, which precede it.
    pub module: u64,
    /// Bytes of the signature.
    pub size: u64,
}

/// Finds the signature of a file. `None`: it has none.
///
/// # Errors
/// `EBADMSG`: the record is wrong; `ENOPKG`: the signature is of another kind; those of
/// [`Source::read`].
pub fn find(source: Source<'_>, account: &Account) -> Result<Option<Signature>> {
    let len = source.len();
    let Some(end) = len.checked_sub(MAGIC.len() as u64) else { return Ok(None) };
    let mut magic = [0; MAGIC.len()];
    source.read(account, end, &mut magic, "the end of the file")?;
    if magic != MAGIC {
        return Ok(None);
    }
    let bad = |what: fmt::Arguments<'_>| {
        Err(Error::new(Errno::EBADMSG, format_args!("signature: {what}")))
    };
    let Some(at) = end.checked_sub(RECORD) else {
        return bad(format_args!("no record before the magic at {end:#x}"));
    };
    let mut record = [0; RECORD as usize];
    source.read(account, at, &mut record, "the signature's record")?;
    let size = u64::from(u32::from_be_bytes([record[8], record[9], record[10], record[11]]));
    if record[2] != PKCS7 {
        let what = format_args!("signature: of kind {}, not PKCS#7", record[2]);
        return Err(Error::new(Errno::ENOPKG, what));
    }
    if record[..2] != [0; 2] || record[3..8] != [0; 5] {
        return bad(format_args!("the record has fields that PKCS#7 leaves zero"));
    }
    let module = at.checked_sub(size).filter(|_| size <= MAX_SIGNATURE);
    let Some(module) = module else {
        return bad(format_args!("{size} bytes, in a file with {at} before its record"));
    };
    Ok(Some(Signature { module, size }))
}

/// The contents of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Common name of the issuer of the key.
    pub name: String,
    /// Serial number of the key.
    pub key: Vec<u8>,
    /// Name of the digest.
    pub digest: String,
    /// The signature proper.
    pub signature: Vec<u8>,
}

impl Signature {
    /// Reads the signature (PKCS#7, DER).
    ///
    /// # Errors
    /// Those of [`Source::part`].
    pub fn read<'a>(&self, source: Source<'a>, account: &Account) -> Result<Part<'a>> {
        source.part(account, self.module, self.size, "the signature")
    }
}

impl Signer {
    /// Parses a signature (PKCS#7, DER). `None`: it does not have the form that the kernel writes.
    #[must_use]
    pub fn of(pkcs7: &[u8]) -> Option<Self> {
        let info = ContentInfo::from_der(pkcs7).ok()?;
        let signed = SignedData::from_der(&info.content.to_der().ok()?).ok()?;
        let signer = signed.signer_infos.0.iter().next()?;
        let SignerIdentifier::IssuerAndSerialNumber(id) = &signer.sid else { return None };
        let common = id.issuer.0.iter().flat_map(|names| names.0.iter());
        let mut common = common.filter(|name| name.oid.to_string() == "2.5.4.3");
        let name =
            common.next().map(|name| String::from_utf8_lossy(name.value.value()).into_owned());
        let digest = match signer.digest_alg.oid.to_string().as_str() {
            "1.3.14.3.2.26" => "sha1",
            "2.16.840.1.101.3.4.2.4" => "sha224",
            "2.16.840.1.101.3.4.2.1" => "sha256",
            "2.16.840.1.101.3.4.2.2" => "sha384",
            "2.16.840.1.101.3.4.2.3" => "sha512",
            _ => "unknown",
        };
        Some(Self {
            name: name.unwrap_or_default(),
            key: id.serial_number.as_bytes().to_vec(),
            digest: digest.to_owned(),
            signature: signer.signature.as_bytes().to_vec(),
        })
    }
}
