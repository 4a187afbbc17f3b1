//! The object that provides `malloc` in a stopped process.
//!
//! The dynamic linker's list of objects has the order of symbol lookup: the program, preloaded
//! objects, then the others. So the first object that defines `malloc` is the allocator in use. The
//! list is found as by a debugger: auxiliary vector, program headers, `DT_DEBUG`. Data of the
//! process is not trusted: inconsistent data is an error.

use object::{Object, ObjectSymbol};
use std::fs::{File, read, read_link};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PT_DYNAMIC: u64 = 2;
const PT_PHDR: u64 = 6;
const DT_DEBUG: u64 = 21;
/// Most headers or objects; more of them mean wrong data.
const LIMIT: usize = 4096;

/// The memory of another process.
struct Memory(File);

impl Memory {
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    fn string(&self, address: u64) -> Option<String> {
        let mut bytes = Vec::new();
        let mut byte = [0];
        while bytes.len() < LIMIT {
            self.0.read_exact_at(&mut byte, address + bytes.len() as u64).ok()?;
            if byte[0] == 0 {
                return String::from_utf8(bytes).ok();
            }
            bytes.push(byte[0]);
        }
        None
    }

    /// Head of the list of objects.
    fn head(&self, auxv: &[u8]) -> Option<u64> {
        let headers = auxiliary(auxv, libc::AT_PHDR)?;
        let count = auxiliary(auxv, libc::AT_PHNUM)?.min(LIMIT as u64);
        let (mut bias, mut dynamic) = (0, None);
        for number in 0..count {
            // Elf64_Phdr: type and flags, offset, vaddr, ...: 56 bytes.
            let header = headers + 56 * number;
            let address = self.word(header + 16)?;
            match self.word(header)? & 0xFFFF_FFFF {
                PT_PHDR => bias = headers.wrapping_sub(address),
                PT_DYNAMIC => dynamic = Some(address),
                _ => {}
            }
        }
        let dynamic = dynamic?.wrapping_add(bias);
        for number in 0..LIMIT as u64 {
            let entry = dynamic + 16 * number;
            match self.word(entry)? {
                0 => return None,
                // r_debug: version, then the head of the list.
                DT_DEBUG => return self.word(self.word(entry + 8)? + 8),
                _ => {}
            }
        }
        None
    }
}

/// The value of `key` in the bytes of /proc/PID/auxv.
fn auxiliary(auxv: &[u8], key: u64) -> Option<u64> {
    let mut pairs = auxv.chunks_exact(16).map(|pair| {
        let (key, value) = pair.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        (word(key), word(value))
    });
    pairs.find(|(found, _)| *found == key).map(|(_, value)| value)
}

/// True if the ELF file `path` defines `malloc` for others.
pub(super) fn provides_malloc(path: &Path) -> bool {
    let Ok(bytes) = read(path) else { return false };
    let Ok(elf) = object::File::parse(&*bytes) else {
        return false;
    };
    elf.dynamic_symbols().any(|symbol| symbol.is_definition() && symbol.name() == Ok("malloc"))
}

/// The object whose `malloc` the stopped process `pid` uses; `None` if it has
/// none, or no dynamic linker.
pub(super) fn malloc_provider(pid: i32) -> Option<PathBuf> {
    let memory = Memory(File::open(format!("/proc/{pid}/mem")).ok()?);
    let auxv = read(format!("/proc/{pid}/auxv")).ok()?;
    let mut entry = memory.head(&auxv)?;
    for number in 0..LIMIT {
        if entry == 0 {
            return None;
        }
        // link_map: addr, name, ld, next.
        let path = match number {
            0 => read_link(format!("/proc/{pid}/exe")).ok()?,
            _ => PathBuf::from(memory.string(memory.word(entry + 8)?)?),
        };
        if provides_malloc(&path) {
            return Some(path);
        }
        entry = memory.word(entry + 24)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{auxiliary, malloc_provider, provides_malloc};
    use std::path::Path;

    #[test]
    fn this_process_uses_the_c_library() {
        let provider = malloc_provider(std::process::id() as i32).unwrap();
        assert!(provider.to_string_lossy().contains("libc.so"), "{provider:?}");
        assert!(provides_malloc(&provider));
        assert!(!provides_malloc(Path::new("/proc/version")));
    }

    #[test]
    fn the_auxiliary_vector_is_pairs_of_words() {
        let words = [3_u64, 0x40, 5, 11, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(auxiliary(&bytes, 5), Some(11));
        assert_eq!(auxiliary(&bytes, 9), None);
    }
}
