//! A verifier of signatures over a list of trusted certificates, with the rules of the kernel
//! (`pkcs7_verify`, `VERIFYING_MODULE_SIGNATURE`).
//!
//! A signature is a detached CMS `SignedData` (RFC 5652) over the bytes of the module, without
//! signed attributes, as `sign-file` makes it. Its signer is named by issuer and serial number, or
//! by the identifier of the subject's key. Keys are of RSA (PKCS #1 v1.5) or of ECDSA (P-256,
//! P-384), digests SHA-256, SHA-384 and SHA-512. As in the kernel, the time of validity of a
//! certificate is not looked at: a module that could be loaded can be loaded later. Certificates in
//! the signature are not looked at either, so the key that signs must be in the list.

use std::path::Path;

use cms::cert::x509::Certificate;
use cms::cert::x509::der::asn1::ObjectIdentifier;
use cms::cert::x509::der::{Decode as _, Encode as _};
use cms::cert::x509::ext::pkix::SubjectKeyIdentifier;
use cms::content_info::ContentInfo;
use cms::signed_data::{SignedData, SignerIdentifier, SignerInfo};
use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::{Pkcs1v15Sign, RsaPublicKey};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use crate::error::{Errno, Error, Result};
use crate::signature::Verify;

/// Most bytes of a file of certificates.
const MAX_CERTIFICATES: u64 = 1 << 20;
/// Most signers of a module.
const MAX_SIGNERS: usize = 8;

const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// Certificates that are trusted: their keys may sign modules.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    trusted: Vec<Certificate>,
}

/// A digest of a module.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Digest {
    Sha256,
    Sha384,
    Sha512,
}

impl Digest {
    /// The digest of an identifier, and the identifiers of signatures over it: with RSA and ECDSA.
    const ALL: [(Self, &'static str, &'static str, &'static str); 3] = [
        (Self::Sha256, "2.16.840.1.101.3.4.2.1", "1.2.840.113549.1.1.11", "1.2.840.10045.4.3.2"),
        (Self::Sha384, "2.16.840.1.101.3.4.2.2", "1.2.840.113549.1.1.12", "1.2.840.10045.4.3.3"),
        (Self::Sha512, "2.16.840.1.101.3.4.2.3", "1.2.840.113549.1.1.13", "1.2.840.10045.4.3.4"),
    ];

    /// The digest of a signer, whose signature must be over it.
    fn of(signer: &SignerInfo) -> Result<Self> {
        let digest = signer.digest_alg.oid.to_string();
        let found = Self::ALL.iter().find(|(_, of, ..)| *of == digest);
        let (found, _, rsa, ecdsa) = *found.ok_or_else(|| {
            unsupported(format_args!("the digest {digest}, not SHA-256, SHA-384 or SHA-512"))
        })?;
        let signature = signer.signature_algorithm.oid;
        let fits = signature == RSA || [rsa, ecdsa].contains(&&*signature.to_string());
        if fits { Ok(found) } else { Err(unsupported(format_args!("the algorithm {signature}"))) }
    }

    fn hash(self, module: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(module).to_vec(),
            Self::Sha384 => Sha384::digest(module).to_vec(),
            Self::Sha512 => Sha512::digest(module).to_vec(),
        }
    }
}

fn rejected(what: impl std::fmt::Display) -> Error {
    Error::new(Errno::EKEYREJECTED, what)
}

fn unsupported(what: std::fmt::Arguments<'_>) -> Error {
    rejected(format_args!("the signature is of a kind that is not supported: {what}"))
}

fn malformed(what: &str) -> Error {
    Error::new(Errno::EBADMSG, format_args!("the signature is damaged: {what}"))
}

impl Keyring {
    /// Trusts certificates in PEM, one or more, or a certificate in DER.
    ///
    /// # Errors
    /// `EBADMSG`: it is neither.
    pub fn of(certificates: &[u8]) -> Result<Self> {
        let bad = |what: &dyn std::fmt::Display| {
            Error::new(Errno::EBADMSG, format_args!("no certificates in PEM or DER: {what}"))
        };
        let is_pem = certificates.windows(11).any(|bytes| bytes == b"-----BEGIN ");
        let trusted = if is_pem {
            Certificate::load_pem_chain(certificates).map_err(|e| bad(&e))?
        } else {
            vec![Certificate::from_der(certificates).map_err(|e| bad(&e))?]
        };
        if trusted.is_empty() {
            return Err(bad(&"there are none"));
        }
        Ok(Self { trusted })
    }

    /// Trusts the certificates in a file of at most 1 MiB: see [`Keyring::of`].
    ///
    /// # Errors
    /// `EBADMSG`: it has none; `E2BIG`: it is longer; those of reading it.
    pub fn from_file(path: &Path) -> Result<Self> {
        use std::io::Read as _;
        let failed = |e: std::io::Error| Error::io(path.display(), &e);
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_CERTIFICATES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_CERTIFICATES {
            let what = format_args!("{}: more than {MAX_CERTIFICATES} bytes", path.display());
            return Err(Error::new(Errno::E2BIG, what));
        }
        Self::of(&bytes)
            .map_err(|e| Error::new(e.errno, format_args!("{}: {}", path.display(), e.what)))
    }

    /// The certificate of a signer.
    fn find(&self, signer: &SignerIdentifier) -> Option<&Certificate> {
        self.trusted.iter().find(|trusted| {
            let of = &trusted.tbs_certificate;
            match signer {
                SignerIdentifier::IssuerAndSerialNumber(id) => {
                    of.issuer == id.issuer && of.serial_number == id.serial_number
                }
                SignerIdentifier::SubjectKeyIdentifier(id) => {
                    let found = of.get::<SubjectKeyIdentifier>().ok().flatten();
                    found.is_some_and(|(_, found)| found.0 == id.0)
                }
            }
        })
    }

    /// Checks the signature of one signer.
    fn check(&self, signer: &SignerInfo, module: &[u8]) -> Result<()> {
        if signer.signed_attrs.is_some() {
            return Err(rejected("the signature has signed attributes, which a module's has not"));
        }
        let digest = Digest::of(signer)?;
        let trusted = self.find(&signer.sid);
        let trusted = trusted.ok_or_else(|| rejected("the key of the signature is not trusted"))?;
        let key = &trusted.tbs_certificate.subject_public_key_info;
        let signature = signer.signature.as_bytes();
        let (of, der) = (key.algorithm.oid, key.to_der());
        let der = der.map_err(|_| malformed("the key of its certificate"))?;
        let hash = digest.hash(module);
        let is_rsa = |oid: ObjectIdentifier| oid.to_string().starts_with("1.2.840.113549.1.1.");
        if (of == RSA) != is_rsa(signer.signature_algorithm.oid) {
            return Err(rejected("the signature is of another algorithm than its key"));
        }
        let is_right = match of {
            RSA => {
                let scheme = match digest {
                    Digest::Sha256 => Pkcs1v15Sign::new::<Sha256>(),
                    Digest::Sha384 => Pkcs1v15Sign::new::<Sha384>(),
                    Digest::Sha512 => Pkcs1v15Sign::new::<Sha512>(),
                };
                let key = RsaPublicKey::from_public_key_der(&der);
                let key = key.map_err(|e| unsupported(format_args!("a key of RSA: {e}")))?;
                key.verify(scheme, &hash, signature).is_ok()
            }
            EC => of_curve(&der, &hash, signature)?,
            other => return Err(unsupported(format_args!("a key of {other}"))),
        };
        if is_right { Ok(()) } else { Err(rejected("the signature is not right")) }
    }
}

/// Checks a signature of ECDSA, whose key tells its curve.
fn of_curve(key: &[u8], hash: &[u8], signature: &[u8]) -> Result<bool> {
    if let Ok(key) = p256::ecdsa::VerifyingKey::from_public_key_der(key) {
        let signature = p256::ecdsa::DerSignature::from_bytes(signature);
        return Ok(signature.is_ok_and(|signature| key.verify_prehash(hash, &signature).is_ok()));
    }
    if let Ok(key) = p384::ecdsa::VerifyingKey::from_public_key_der(key) {
        let signature = p384::ecdsa::DerSignature::from_bytes(signature);
        return Ok(signature.is_ok_and(|signature| key.verify_prehash(hash, &signature).is_ok()));
    }
    Err(unsupported(format_args!("a key of a curve other than P-256 and P-384")))
}

impl Verify for Keyring {
    fn verify(&self, module: &[u8], signature: &[u8]) -> Result<()> {
        let info = ContentInfo::from_der(signature).map_err(|_| malformed("it is no CMS"))?;
        if info.content_type != SIGNED_DATA {
            return Err(malformed("it is no SignedData"));
        }
        let signed: SignedData =
            info.content.decode_as().map_err(|_| malformed("its SignedData"))?;
        let content = &signed.encap_content_info;
        if content.econtent_type != DATA || content.econtent.is_some() {
            return Err(rejected("the signature is not one over the module: it has contents"));
        }
        let signers = signed.signer_infos.0.as_slice();
        if signers.is_empty() || signers.len() > MAX_SIGNERS {
            return Err(malformed("it has no signer, or too many"));
        }
        signers.iter().try_for_each(|signer| self.check(signer, module))
    }
}
