//! Signatures of modules, made by openssl as the kernel's `sign-file` makes them, and a loader that
//! trusts some certificates.

mod harness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use harness::{EMPTY, config, directory, insmod, module, nothing_is_left};
use kmem_module::keyring::Keyring;
use kmem_module::signature::Verify as _;
use kmem_module::{Config, Errno, Loader, Result};
use kmem_testing::is_missing;

/// Runs openssl in a directory.
#[track_caller]
fn openssl(dir: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split(' ')).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a key and its certificate: `NAME.key` and `NAME.pem`. `of` is how the key is made.
fn key(dir: &Path, name: &str, of: &str) {
    let subject = "-subj /CN=signer -set_serial 7 -days 2";
    openssl(dir, &format!("req -x509 -nodes {of} {subject} -keyout {name}.key -out {name}.pem"));
}

const RSA: &str = "-newkey rsa:2048";
const P256: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1";
const P384: &str = "-newkey ec -pkeyopt ec_paramgen_curve:secp384r1";
const P521: &str = "-newkey ec -pkeyopt ec_paramgen_curve:secp521r1";
/// As `sign-file` signs.
const SIGN: &str = "-binary -noattr -nocerts -md sha256";

/// A signature of the bytes in `file`, in DER.
#[track_caller]
fn sign(dir: &Path, file: &str, key: &str, how: &str) -> Vec<u8> {
    let key = format!("-signer {key}.pem -inkey {key}.key");
    openssl(dir, &format!("cms -sign {how} {key} -in {file} -outform DER -out signature"));
    fs::read(dir.join("signature")).unwrap()
}

/// A module with a signature, whose record says that it has `size` bytes.
fn appended(module: &[u8], signature: &[u8], size: u32) -> Vec<u8> {
    let record = [&[0, 0, 2, 0, 0, 0, 0, 0][..], &size.to_be_bytes()].concat();
    [module, signature, &record, b"~Module signature appended~\n"].concat()
}

/// A directory with an unsigned module `m.ko`, and its bytes. `None` without openssl.
fn prepared() -> Option<(tempfile::TempDir, Vec<u8>)> {
    if is_missing("openssl") {
        return None;
    }
    let dir = directory();
    let path = module(dir.path(), "m", EMPTY);
    let bytes = fs::read(path).unwrap();
    Some((dir, bytes))
}

fn trusting(certificate: PathBuf) -> Loader {
    let verify = Some(Arc::new(Keyring::from_file(&certificate).unwrap()) as _);
    Loader::new(Config { verify, ..config() }).unwrap()
}

/// Loads a file, from the file and from memory, and unloads it.
fn load(loader: &Loader, dir: &Path, file: &[u8]) -> Result<()> {
    let path = dir.join("file.ko");
    fs::write(&path, file).unwrap();
    let results = [insmod(loader, &path, ""), {
        let _ = loader.delete_module("m", 0);
        loader.init_module(file, "")
    }];
    let _ = loader.delete_module("m", 0);
    nothing_is_left(loader);
    assert_eq!(results[0], results[1]);
    results[0].clone()
}

#[test]
fn modules_that_a_trusted_key_signed_are_loaded() {
    let Some((dir, bytes)) = prepared() else { return };
    let dir = dir.path();
    for (name, of, how) in [
        ("rsa", RSA, "-binary -noattr -nocerts -md sha256"),
        ("rsa", RSA, "-binary -noattr -nocerts -md sha384"),
        ("rsa", RSA, "-binary -noattr -nocerts -md sha512 -keyid"),
        ("p256", P256, "-binary -noattr -nocerts -md sha256"),
        ("p256", P256, "-binary -noattr -nocerts -md sha512"),
        ("p384", P384, "-binary -noattr -nocerts -md sha384 -keyid"),
        // With its certificate, which is not looked at.
        ("p384", P384, "-binary -noattr -md sha256"),
    ] {
        key(dir, name, of);
        let signature = sign(dir, "m.ko", name, how);
        let file = appended(&bytes, &signature, signature.len() as u32);
        let loader = trusting(dir.join(format!("{name}.pem")));
        assert_eq!(load(&loader, dir, &file), Ok(()), "{name} {how}");
        // A certificate in DER, and several in PEM.
        openssl(dir, &format!("x509 -in {name}.pem -outform DER -out {name}.der"));
        assert_eq!(load(&trusting(dir.join(format!("{name}.der"))), dir, &file), Ok(()));
    }
    let both = [fs::read(dir.join("rsa.pem")).unwrap(), fs::read(dir.join("p384.pem")).unwrap()];
    let keyring = Keyring::of(&both.concat()).unwrap();
    for name in ["rsa", "p384"] {
        let how = format!("{SIGN} -keyid");
        assert_eq!(keyring.verify(&bytes, &sign(dir, "m.ko", name, &how)), Ok(()), "{name}");
    }
}

#[test]
fn a_wrong_key_a_changed_module_and_a_changed_signature_are_refused() {
    let Some((dir, bytes)) = prepared() else { return };
    let dir = dir.path();
    // All have one issuer and serial number: the key decides.
    for (name, of) in [("right", RSA), ("wrong", RSA), ("curve", P256), ("other", P521)] {
        key(dir, name, of);
    }
    openssl(dir, &format!("req -x509 -nodes {RSA} -subj /CN=stranger -keyout s.key -out s.pem"));
    let loader = trusting(dir.join("right.pem"));
    let right = sign(dir, "m.ko", "right", SIGN);
    let refused = |module: &[u8], signature: &[u8], what: &str| {
        let file = appended(module, signature, signature.len() as u32);
        let error = load(&loader, dir, &file).expect_err(what);
        assert_eq!(error.errno, Errno::EKEYREJECTED, "{error}");
        assert!(error.what.contains(what), "{error}, and not {what}");
    };
    refused(&bytes, &sign(dir, "m.ko", "wrong", SIGN), "the signature is not right");
    refused(&bytes, &sign(dir, "m.ko", "curve", SIGN), "of another algorithm than its key");
    refused(&bytes, &sign(dir, "m.ko", "s", SIGN), "the key of the signature is not trusted");
    let mut changed = bytes.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    refused(&changed, &right, "the signature is not right");
    refused(&[&bytes[..], b"\0"].concat(), &right, "the signature is not right");
    let mut odd = right.clone();
    *odd.last_mut().unwrap() ^= 1;
    refused(&bytes, &odd, "the signature is not right");
    let old = sign(dir, "m.ko", "right", "-binary -noattr -nocerts -md sha1");
    refused(&bytes, &old, "the digest 1.3.14.3.2.26");
    let attributes = sign(dir, "m.ko", "right", "-binary -nocerts -md sha256");
    refused(&bytes, &attributes, "signed attributes");
    let inside = sign(dir, "m.ko", "right", &format!("{SIGN} -nodetach"));
    refused(&bytes, &inside, "it has contents");
    // A key that is trusted, of a curve that is not supported.
    let keyring = Keyring::from_file(&dir.join("other.pem")).unwrap();
    let error = keyring.verify(&bytes, &sign(dir, "m.ko", "other", SIGN)).unwrap_err();
    assert!(error.what.contains("a curve other than P-256 and P-384"), "{error}");
    assert_eq!(load(&loader, dir, &bytes).unwrap_err().errno, Errno::EKEYREJECTED);
    assert_eq!(load(&loader, dir, &appended(&bytes, &right, right.len() as u32)), Ok(()));
}

#[test]
fn a_trailer_that_is_cut_off_or_lies_about_its_length_is_refused() {
    let Some((dir, bytes)) = prepared() else { return };
    let dir = dir.path();
    key(dir, "key", P256);
    let loader = trusting(dir.join("key.pem"));
    let signature = sign(dir, "m.ko", "key", SIGN);
    let len = signature.len() as u32;
    let file = appended(&bytes, &signature, len);
    for cut in 1..28 + 12 + signature.len() {
        let error = load(&loader, dir, &file[..file.len() - cut]).unwrap_err();
        assert_eq!(error.errno, Errno::EKEYREJECTED, "{cut}: {error}");
        assert!(error.what.contains("no signature"), "{cut}: {error}");
    }
    let all = bytes.len() as u32 + len;
    let lengths = [0, 1, len - 1, len + 1, 65 << 10, all, all + 1, 1 << 31, u32::MAX];
    for size in lengths {
        let error = load(&loader, dir, &appended(&bytes, &signature, size)).unwrap_err();
        assert_eq!(error.errno, Errno::EBADMSG, "{size}: {error}");
    }
    let error = load(&loader, dir, &appended(b"", &signature, len)).unwrap_err();
    assert_eq!(error.errno, Errno::EKEYREJECTED, "{error}");
}

#[test]
fn damaged_signatures_are_errors() {
    let Some((dir, bytes)) = prepared() else { return };
    let dir = dir.path();
    key(dir, "key", P256);
    let keyring = Keyring::from_file(&dir.join("key.pem")).unwrap();
    let signature = sign(dir, "m.ko", "key", SIGN);
    for at in 0..signature.len() {
        for flip in [1, 0x80, 0xff] {
            let mut odd = signature.clone();
            odd[at] ^= flip;
            // Some bytes, such as the version, say nothing about what is signed.
            let _ = keyring.verify(&bytes, &odd);
            assert!(keyring.verify(&bytes[1..], &odd).is_err());
        }
        assert!(keyring.verify(&bytes, &signature[..at]).is_err());
    }
    for odd in [&b""[..], b"0", &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0xff; 64]] {
        assert_eq!(keyring.verify(&bytes, odd).unwrap_err().errno, Errno::EBADMSG);
    }
}

#[test]
fn files_without_certificates_are_refused() {
    let dir = directory();
    for (bytes, errno) in [
        (&b"nothing"[..], Errno::EBADMSG),
        (b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", Errno::EBADMSG),
        (&[b' '; 1 << 20], Errno::EBADMSG),
        (&[b' '; (1 << 20) + 1], Errno::E2BIG),
    ] {
        let path = dir.path().join("file");
        fs::write(&path, bytes).unwrap();
        assert_eq!(Keyring::from_file(&path).unwrap_err().errno, errno);
    }
    let error = Keyring::from_file(&dir.path().join("absent")).unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT);
}
