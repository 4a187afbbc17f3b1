//! Compressed modules, good and bad (D34), and signatures at the end of a file (D35).

mod harness;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness::{EMPTY, config, directory, insmod, loader, module, nothing_is_left};
use kmem_module::decompress::{Format, Packed};
use kmem_module::loader::flags;
use kmem_module::os::{Account, Linux};
use kmem_module::source::{ReadAt as _, Source};
use kmem_module::stats::Stat;
use kmem_module::{Config, Errno, Error, Loader, Result};
use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
use proptest::prelude::*;

const FORMATS: [Format; 3] = [Format::Gzip, Format::Xz, Format::Zstd];

fn compress(format: Format, bytes: &[u8]) -> Vec<u8> {
    match format {
        Format::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Format::Xz => compress_xz(bytes, 1 << 20),
        Format::Zstd => compress_zstd(bytes, 20),
    }
}

/// Compresses with a dictionary of `dictionary` bytes.
fn compress_xz(bytes: &[u8], dictionary: u32) -> Vec<u8> {
    let mut options = LzmaOptions::new_preset(6).unwrap();
    options.dict_size(dictionary);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let stream = Stream::new_stream_encoder(&filters, Check::Crc32).unwrap();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Compresses with a window of 1 << `log` bytes.
fn compress_zstd(bytes: &[u8], log: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 9).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.window_log(log).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn load(loader: &Loader, path: &Path) -> Result<()> {
    let file = File::open(path).unwrap();
    loader.finit_module(file.as_raw_fd(), "", flags::COMPRESSED_FILE)
}

fn refused(loader: &Loader, dir: &Path, bytes: &[u8]) -> Error {
    let path = dir.join("packed");
    fs::write(&path, bytes).unwrap();
    let error = load(loader, &path).unwrap_err();
    nothing_is_left(loader);
    error
}

#[test]
fn modules_are_loaded_from_gzip_xz_and_zstd_and_their_duplicates_cost_nothing() {
    let dir = directory();
    let path = module(dir.path(), "packed", EMPTY);
    let bytes = fs::read(&path).unwrap();
    for format in FORMATS {
        let loader = loader();
        let packed = dir.path().join(format!("packed.{format:?}"));
        fs::write(&packed, compress(format, &bytes)).unwrap();
        // Without the flag it is no module.
        assert_eq!(insmod(&loader, &packed, "").unwrap_err().errno, Errno::ENOEXEC);
        let before = loader.stats().wasted();
        load(&loader, &packed).unwrap();
        assert_eq!(load(&loader, &packed).unwrap_err().errno, Errno::EEXIST);
        assert_eq!(loader.stats().wasted(), before);
        // By its path the flag is found out.
        loader.delete_module("packed", 0).unwrap();
        loader.load_file(&packed, "").unwrap();
        loader.delete_module("packed", 0).unwrap();
        nothing_is_left(&loader);
    }
}

/// Some of it repeats, some does not.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..2000),
        (any::<u8>(), 0..70_000_usize).prop_map(|(byte, len)| vec![byte; len]),
        (prop::collection::vec(any::<u8>(), 1..40_000), 1..4_usize).prop_map(|(v, n)| v.repeat(n)),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 30, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_expanded_is_what_was_compressed_read_in_whatever_order(
        bytes in contents(),
        level in 0..10_u32,
        fields in any::<[bool; 3]>(),
        places in prop::collection::vec((any::<usize>(), 0..50_000_usize), 0..4),
    ) {
        // Another implementation's gzip, with what a header may have.
        let mut header = flate2::GzBuilder::new();
        for (&has, number) in fields.iter().zip(0..) {
            header = match (has, number) {
                (true, 0) => header.filename("a name"),
                (true, 1) => header.comment("a comment"),
                (true, _) => header.extra(vec![3; 300]),
                _ => header,
            };
        }
        let mut gzip = header.write(Vec::new(), flate2::Compression::new(level));
        gzip.write_all(&bytes).unwrap();
        let account = Account::new(Arc::new(Linux), Arc::default()).unwrap();
        let all = [gzip.finish().unwrap(), compress_xz(&bytes, 1 << 20), compress_zstd(&bytes, 20)];
        for packed in all {
            let packed = Packed::open(Source::Bytes(&packed), &account, 1 << 20).unwrap();
            prop_assert!(packed.expand(&account).unwrap()[..] == bytes[..]);
            for &(at, len) in &places {
                let at = at % (bytes.len() + 1);
                let mut into = vec![0; len.min(bytes.len() - at)];
                packed.read(&account, at as u64, &mut into).unwrap();
                prop_assert!(into[..] == bytes[at..at + into.len()]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn d34_random_damage_is_refused_or_expands_the_same_twice(
        format in prop_oneof![Just(Format::Gzip), Just(Format::Xz), Just(Format::Zstd)],
        damage in prop::collection::vec((any::<usize>(), any::<u8>(), any::<bool>()), 1..5),
    ) {
        let text: Vec<u8> = (0..4000_u32).flat_map(|n| (n / 7 * n).to_le_bytes()).collect();
        let mut packed = compress(format, &text);
        for (at, byte, header) in damage {
            // Headers are where damage tells.
            let most = if header { 32 } else { packed.len() };
            packed[at % most] = byte;
        }
        let account = Account::new(Arc::new(Linux), Arc::default()).unwrap();
        if let Ok(whole) = Packed::open(Source::Bytes(&packed), &account, 1 << 20) {
            let expanded = whole.expand(&account).unwrap();
            prop_assert!(expanded.len() as u64 <= 1 << 20);
            prop_assert!(whole.expand(&account).unwrap()[..] == expanded[..]);
        }
    }
}

#[test]
fn d34_bombs_stop_at_the_bound_and_cost_no_memory() {
    let dir = directory();
    let loader = Loader::new(Config { most: 1 << 20, ..config() }).unwrap();
    let zeroes = vec![0; 8 << 20];
    for format in FORMATS {
        let packed = compress(format, &zeroes);
        assert!(packed.len() * 500 < zeroes.len());
        let error = refused(&loader, dir.path(), &packed);
        assert_eq!(error.errno, Errno::E2BIG, "{format:?}: {error}");
        assert!(error.to_string().contains("expands to more than 1048576 bytes"), "{error}");
    }
    assert_eq!(loader.gauge().peak(), 0);
    assert_eq!(loader.stats().get(Stat::FailedDecompress), 3);
}

#[test]
fn d34_what_is_cut_off_followed_by_something_or_damaged_is_refused() {
    let dir = directory();
    let bytes = fs::read(module(dir.path(), "packed", EMPTY)).unwrap();
    let loader = loader();
    for format in FORMATS {
        let packed = compress(format, &bytes);
        let mut cuts: Vec<usize> = (6..packed.len()).step_by(packed.len() / 50).collect();
        cuts.push(packed.len() - 1);
        for cut in cuts {
            let error = refused(&loader, dir.path(), &packed[..cut]);
            assert_eq!(
                error.errno,
                Errno::EIO,
                "{format:?} cut at {cut} of {}: {error}",
                packed.len()
            );
        }
        let error = refused(&loader, dir.path(), &[&packed[..], b"more"].concat());
        assert_eq!(error.errno, Errno::EIO, "{format:?}: {error}");
        for at in (6..packed.len()).step_by(packed.len() / 50) {
            let mut bad = packed.clone();
            bad[at] ^= 0xff;
            fs::write(dir.path().join("bad"), &bad).unwrap();
            // A field that is not checked (the time in a gzip header) makes no difference.
            match load(&loader, &dir.path().join("bad")) {
                Ok(()) => loader.delete_module("packed", 0).unwrap(),
                Err(error) => assert!(
                    [Errno::EIO, Errno::E2BIG, Errno::ENOMEM].contains(&error.errno),
                    "{format:?} {at}: {error}"
                ),
            }
            nothing_is_left(&loader);
        }
        // Twice compressed is no module.
        let twice = compress(format, &packed);
        assert_eq!(refused(&loader, dir.path(), &twice).errno, Errno::ENOEXEC);
    }
    assert_eq!(refused(&loader, dir.path(), b"BZh91AY&SY").errno, Errno::EOPNOTSUPP);
}

#[test]
fn d34_dictionaries_are_bounded() {
    let dir = directory();
    let loader = loader();
    let bytes = vec![7; 20 << 20];
    for packed in [compress_xz(&bytes, 64 << 20), compress_zstd(&bytes, 27)] {
        let error = refused(&loader, dir.path(), &packed);
        assert!([Errno::EIO, Errno::ENOMEM].contains(&error.errno), "{error}");
    }
}

/// A file with something like a signature at its end.
fn signed(bytes: &[u8], kind: u8, size: u32, signature: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    file.extend_from_slice(signature);
    file.extend_from_slice(&[0, 0, kind, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&size.to_be_bytes());
    file.extend_from_slice(b"~Module signature appended~\n");
    file
}

/// A signature is right if it is the byte that all of the module add up to.
fn sum(module: &[u8], signature: &[u8]) -> Result<()> {
    let sum = module.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let wrong = || Error::new(Errno::EKEYREJECTED, "the sum is wrong");
    if signature == [sum] { Ok(()) } else { Err(wrong()) }
}

#[test]
fn d35_signatures_fit_their_file_and_are_verified_where_that_is_asked_for() {
    let dir = directory();
    let path = module(dir.path(), "signed", EMPTY);
    let bytes = fs::read(&path).unwrap();
    let len = bytes.len() as u32;
    let right = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let free = loader();
    let strict = Loader::new(Config { verify: Some(Arc::new(sum)), ..config() }).unwrap();
    let put = |file: &[u8]| -> PathBuf {
        let path = dir.path().join("file");
        fs::write(&path, file).unwrap();
        path
    };
    let both = |file: &[u8], lenient: Option<Errno>, enforced: Option<Errno>| {
        for (loader, expected) in [(&free, lenient), (&strict, enforced)] {
            let path = put(file);
            let results = [insmod(loader, &path, ""), {
                let _ = loader.delete_module("signed", 0);
                loader.init_module(file, "")
            }];
            let _ = loader.delete_module("signed", 0);
            for result in results {
                assert_eq!(result.err().map(|e| e.errno), expected);
            }
            nothing_is_left(loader);
        }
    };
    both(&bytes, None, Some(Errno::EKEYREJECTED));
    both(&signed(&bytes, 2, 1, &[right]), None, None);
    both(&signed(&bytes, 2, 1, &[right ^ 1]), None, Some(Errno::EKEYREJECTED));
    both(&signed(&bytes, 1, 1, &[right]), None, Some(Errno::ENOPKG));
    for size in [len + 2, u32::MAX] {
        both(&signed(&bytes, 2, size, &[right]), Some(Errno::EBADMSG), Some(Errno::EBADMSG));
    }
    let mut odd = signed(&bytes, 2, 1, &[right]);
    let at = odd.len() - 28 - 12;
    odd[at] = 1;
    both(&odd, Some(Errno::EBADMSG), Some(Errno::EBADMSG));
    both(b"~Module signature appended~\n", Some(Errno::EBADMSG), Some(Errno::EBADMSG));
}
