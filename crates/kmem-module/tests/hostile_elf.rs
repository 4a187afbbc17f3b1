//! Files that are no modules, or bad ones. The loader refuses each with an error that says what is
//! wrong, and leaves nothing. Where it can, it refuses a file before it maps anything. The names of
//! the tests are those of a catalogue of cases, D1 to D28 and D36.

mod harness;

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use harness::file::{Bytes, try_bytes};
use harness::{directory, insmod, loader, module, module_with, nothing_is_left};
use kmem_module::elf::constants as elf;
use kmem_module::{Errno, Error};

/// A module with a section of every kind.
const GOOD: &str = "extern void *malloc(size_t); extern int absent(void) __attribute__((weak));
    static int number; module_param(number, int, 0);
    int good_data = 3; int zeroes[100] __attribute__((visibility(\"hidden\")));
    static const char text[] = \"text\";
    const char *good_text = text; EXPORT_SYMBOL(good_text);
    int good_call(void);
    int good_call(void) { return zeroes[number] + (malloc(1) != 0) + (absent ? absent() : 0); }
    EXPORT_SYMBOL(good_call);
    static int __init go(void) { void *p = kmalloc(1, GFP_KERNEL); kfree(p); return 0; }
    module_init(go);
    static void __exit stop(void) { } module_exit(stop);";

fn good() -> Bytes {
    let dir = directory();
    let bytes = Bytes(fs::read(module(dir.path(), "good", GOOD)).unwrap());
    bytes.try_out().unwrap();
    bytes
}

#[track_caller]
fn is(error: &Error, errno: Errno) {
    assert_eq!(error.errno, errno, "{error}");
}

#[test]
fn d01_what_is_no_file_or_too_short_is_refused() {
    let dir = directory();
    let loader = loader();
    let good = good();
    for len in 0..64 {
        is(&loader.init_module(&good.0[..len], "").unwrap_err(), Errno::ENOEXEC);
        let path = dir.path().join("short");
        fs::write(&path, &good.0[..len]).unwrap();
        let expected = if len == 0 { Errno::EINVAL } else { Errno::ENOEXEC };
        is(&insmod(&loader, &path, "").unwrap_err(), expected);
    }
    for path in [dir.path(), std::path::Path::new("/dev/zero")] {
        is(&insmod(&loader, path, "").unwrap_err(), Errno::EINVAL);
    }
    let (reader, _writer) = std::io::pipe().unwrap();
    is(&loader.finit_module(reader.as_raw_fd(), "", 0).unwrap_err(), Errno::EINVAL);
    let sparse = dir.path().join("sparse");
    let before = loader.stats().wasted();
    for (len, errno) in [(256 << 20, Errno::ENOEXEC), ((1 << 32) + 4096, Errno::EFBIG)] {
        File::create(&sparse).unwrap().set_len(len).unwrap();
        is(&insmod(&loader, &sparse, "").unwrap_err(), errno);
    }
    assert!(loader.stats().wasted() - before <= 64 << 10);
    nothing_is_left(&loader);
}

#[test]
fn the_descriptor_is_checked_as_the_system_call_does() {
    let dir = directory();
    let path = module(dir.path(), "good", GOOD);
    let loader = loader();
    is(&loader.finit_module(-1, "", 0).unwrap_err(), Errno::EBADF);
    is(&loader.finit_module(9999, "", 0).unwrap_err(), Errno::EBADF);
    let open = |options: &mut fs::OpenOptions| options.open(&path).unwrap();
    let write = open(File::options().write(true));
    is(&loader.finit_module(write.as_raw_fd(), "", 0).unwrap_err(), Errno::EBADF);
    let both = open(File::options().read(true).write(true));
    is(&loader.finit_module(both.as_raw_fd(), "", 0).unwrap_err(), Errno::ETXTBSY);
    let read = open(File::options().read(true));
    is(&loader.finit_module(read.as_raw_fd(), "", u32::MAX).unwrap_err(), Errno::EINVAL);
    is(&loader.finit_module(read.as_raw_fd(), "number=x", 0).unwrap_err(), Errno::EINVAL);
    loader.finit_module(read.as_raw_fd(), "", 0).unwrap();
    is(&loader.finit_module(read.as_raw_fd(), "", 0).unwrap_err(), Errno::EEXIST);
    loader.delete_module("good", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d02_to_d05_the_header_is_checked_field_by_field() {
    let good = good();
    good.with(0, b"\x7fELG").refused("no ELF magic");
    good.with(4, &[1]).refused("class (byte 4) is 1, not 2");
    good.with(5, &[2]).refused("byte order (byte 5) is 2");
    good.with(6, &[0]).refused("version (byte 6) is 0");
    for kind in [elf::ET_EXEC, elf::ET_DYN, elf::ET_CORE, 0] {
        good.with(16, &kind.to_le_bytes()).refused(&format!("e_type is {kind}, not relocatable"));
    }
    for machine in [elf::EM_AARCH64, elf::EM_386, elf::EM_NONE] {
        good.with(18, &machine.to_le_bytes()).refused(&format!("e_machine is {machine}, not"));
    }
    for size in [0_u16, 63, 65, 65535] {
        good.with(58, &size.to_le_bytes()).refused(&format!("e_shentsize is {size}"));
    }
}

#[test]
fn d06_to_d08_tables_and_sections_are_in_the_file() {
    let good = good();
    let len = good.0.len() as u64;
    let offset = good.shoff() as u64;
    for shoff in [0, 1, offset + 1, offset + 8, len, len - 1, u64::MAX, u64::MAX - 7] {
        good.with(40, &shoff.to_le_bytes()).refused("section table of");
    }
    let extended = good.with(60, &[0, 0]).with(good.entry(0) + 32, &(1_u64 << 60).to_le_bytes());
    extended.refused("e_shnum is 0");
    good.with(60, &65279_u16.to_le_bytes()).refused("section table of 65279 entries");
    let (at, size) = (good.field(".text", 24), good.field(".text", 32));
    good.with(at, &u64::MAX.to_le_bytes()).refused("are not in the file");
    good.with(size, &u64::MAX.to_le_bytes()).refused("are not in the file");
    good.with(at, &(len - 1).to_le_bytes()).refused("are not in the file");
    good.with(at, &0_u64.to_le_bytes()).refused("overlap the ELF header");
    good.with(at, &offset.to_le_bytes()).refused("overlap the ELF header or table");
    good.with(at, &(offset - 1).to_le_bytes()).refused("overlap the ELF header or table");
}

#[test]
fn d09_memory_is_bounded_before_it_is_mapped() {
    let good = good();
    let size = good.field(".bss", 32);
    for bytes in [1_u64 << 60, u64::MAX, (64 << 20) + 1] {
        is(
            &good.with(size, &bytes.to_le_bytes()).refused("takes more than 67108864 bytes"),
            Errno::E2BIG,
        );
    }
    good.with(size, &(32_u64 << 20).to_le_bytes()).try_out().unwrap();
}

/// A file with these numbers of sections, symbols and relocations, made by hand.
fn large(sections: u16, symbols: usize, relocations: usize) -> Vec<u8> {
    let mut file = vec![0; 64];
    let mut table: Vec<[u64; 8]> = vec![[0; 8]];
    let put = |file: &mut Vec<u8>, bytes: &[u8]| {
        let at = file.len() as u64;
        file.extend_from_slice(bytes);
        file.resize(file.len().next_multiple_of(8), 0);
        at
    };
    let head = |name: u64, kind: u32| name | u64::from(kind) << 32;
    let names = b"\0.modinfo\0";
    let at = put(&mut file, names);
    table.push([head(0, elf::SHT_STRTAB), 0, 0, at, names.len() as u64, 0, 1, 0]);
    let info = b"name=large\0license=GPL\0";
    let at = put(&mut file, info);
    table.push([head(1, elf::SHT_PROGBITS), 2, 0, at, info.len() as u64, 0, 1, 0]);
    let mut table_of_symbols = vec![0; symbols * 24];
    for symbol in table_of_symbols.chunks_exact_mut(24).skip(1) {
        symbol[6..8].copy_from_slice(&elf::SHN_ABS.to_le_bytes());
    }
    let at = put(&mut file, &table_of_symbols);
    table.push([head(0, elf::SHT_SYMTAB), 0, 0, at, symbols as u64 * 24, 1, 8, 24]);
    let data = put(&mut file, &[0; 8]);
    table.push([head(0, elf::SHT_PROGBITS), 3, 0, data, 8, 0, 8, 0]);
    let at = put(&mut file, &vec![0; relocations * 24]);
    let size = relocations as u64 * 24;
    table.push([head(0, elf::SHT_RELA), 0, 0, at, size, 3 | 4 << 32, 8, 24]);
    while table.len() < sections.into() {
        table.push([head(0, elf::SHT_PROGBITS), 2, 0, data, 8, 0, 8, 0]);
    }
    let shoff = file.len() as u64;
    file.extend(table.iter().flatten().flat_map(|word| word.to_le_bytes()));
    let mut header = [0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16] = 1;
    header[18..20].copy_from_slice(&62_u16.to_le_bytes());
    header[20] = 1;
    header[40..48].copy_from_slice(&shoff.to_le_bytes());
    header[58..60].copy_from_slice(&64_u16.to_le_bytes());
    header[60..62].copy_from_slice(&(table.len() as u16).to_le_bytes());
    header[62] = 1;
    file[..64].copy_from_slice(&header);
    file
}

#[test]
fn d10_large_tables_take_bounded_time() {
    for (sections, symbols, relocations) in [(60_000, 2, 1), (6, 1_000_000, 1), (6, 2, 10_000_000)]
    {
        let file = large(sections, symbols, relocations);
        let start = Instant::now();
        let result = try_bytes(&file);
        // A second for 64 MiB on an idle machine; what is not bounded takes hours.
        let bound = Duration::from_secs(20) * (1 + (file.len() >> 26) as u32);
        assert!(
            start.elapsed() < bound,
            "{sections} {symbols} {relocations}: {:?}",
            start.elapsed()
        );
        assert_eq!(result.unwrap().name.as_deref(), Some("large"));
    }
    // Each of these would be looked up among all sections.
    let mut file = large(60_000, 1_000_000, 0);
    let at = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize + 3 * 64 + 24;
    let symbols = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    file[65..73].copy_from_slice(b"__start_");
    (1..1_000_000)
        .for_each(|i| file[symbols + i * 24..][..8].copy_from_slice(&[1, 0, 0, 0, 0x20, 0, 0, 0]));
    let start = Instant::now();
    is(&try_bytes(&file).unwrap_err(), Errno::E2BIG);
    assert!(start.elapsed() < Duration::from_secs(40));
}

#[test]
fn d11_sections_that_overlap_in_the_file_are_copied_apart() {
    let good = good();
    // .data gets the bytes of .text, too: data, not code.
    let text = good.u64(good.field(".text", 24));
    let overlapping = good.with(good.field(".data", 24), &text.to_le_bytes());
    assert_eq!(overlapping.try_out(), good.try_out());
}

#[test]
fn d12_alignments_are_powers_of_two_up_to_two_mebibytes() {
    let good = good();
    let at = good.field(".data", 48);
    for align in [0_u64, 1, 4096, 2 << 20] {
        good.with(at, &align.to_le_bytes()).try_out().unwrap();
    }
    for align in [3_u64, 1 << 63, 4 << 20, u64::MAX] {
        good.with(at, &align.to_le_bytes()).refused("sh_addralign");
    }
}

#[test]
fn d13_nothing_is_writable_and_executable() {
    let good = good();
    good.with(good.field(".text", 8), &7_u64.to_le_bytes()).refused("writable and executable");
    good.with(good.field(".data", 8), &7_u64.to_le_bytes()).refused("writable and executable");
}

#[test]
fn d14_and_d15_names_of_sections_are_strings_and_unique() {
    let good = good();
    for number in [0, good.shnum() as u16, u16::MAX] {
        good.with(62, &number.to_le_bytes()).refused("e_shstrndx is");
    }
    good.with(good.field(".shstrtab", 4), &[1]).refused("has sh_type 1, not STRTAB");
    good.with(good.field(".shstrtab", 32), &0_u64.to_le_bytes()).refused("is empty");
    let size = good.u64(good.field(".shstrtab", 32));
    good.with(good.field(".shstrtab", 32), &(size - 1).to_le_bytes()).refused("is not terminated");
    good.with(good.contents(".shstrtab"), b"x").refused("the first string is not empty");
    good.with(good.field(".text", 0), &(size as u32).to_le_bytes()).refused("is past the");
    let modinfo = good.u32(good.field(".modinfo", 0));
    good.with(good.field(".data", 0), &modinfo.to_le_bytes()).refused("are both called .modinfo");
    let tags = good.u32(good.field("kmem_alloc_tags", 0));
    good.with(good.field(".data", 0), &tags.to_le_bytes())
        .refused("are both called kmem_alloc_tags");
}

#[test]
fn d16_there_is_one_sound_symbol_table() {
    let good = good();
    good.with(good.field(".symtab", 4), &[1]).refused("no symbol table");
    good.with(good.field(".strtab", 4), &[2]).refused("are symbol tables");
    let (link, number) = (good.field(".symtab", 40), good.section(".symtab") as u32);
    for bad in [0, number, good.shnum() as u32, u32::MAX] {
        good.with(link, &bad.to_le_bytes()).refused("is no other section");
    }
    good.with(good.field(".symtab", 56), &[23]).refused("in entries of 23, not 24");
    let size = good.u64(good.field(".symtab", 32));
    good.with(good.field(".symtab", 32), &(size - 1).to_le_bytes()).refused("in entries of 24");
    let text = good.section(".text") as u32;
    good.with(link, &text.to_le_bytes()).refused("symbol names: section");
}

#[test]
fn d17_to_d19_symbols_have_names_and_lie_in_their_sections() {
    let good = good();
    let at = good.symbol("good_call");
    good.with(at, &u32::MAX.to_le_bytes()).refused("st_name 0xffffffff is past");
    let size = good.u64(good.field(".strtab", 32));
    good.with(good.field(".strtab", 32), &(size - 1).to_le_bytes()).refused("is not terminated");
    good.with(at + 6, &elf::SHN_COMMON.to_le_bytes()).refused("compile with -fno-common");
    good.with(at + 6, &elf::SHN_XINDEX.to_le_bytes()).refused("SHN_XINDEX");
    for section in [good.shnum() as u16, 0xff20, elf::SHN_LORESERVE] {
        good.with(at + 6, &section.to_le_bytes()).refused("is none of");
    }
    for (value, size) in [(u64::MAX, 1_u64), (1 << 20, 0), (0, 1 << 20), (8, u64::MAX)] {
        good.with(at + 8, &value.to_le_bytes())
            .with(at + 16, &size.to_le_bytes())
            .refused("are not in section");
    }
}

#[test]
fn d20_tables_of_relocations_name_their_targets() {
    let good = good();
    let (info, number) = (good.field(".rela.text", 44), good.section(".rela.text") as u32);
    for bad in [0, number, good.shnum() as u32, u32::MAX] {
        good.with(info, &bad.to_le_bytes()).refused("is no other section");
    }
    let bss = good.section(".bss") as u32;
    good.with(info, &bss.to_le_bytes()).refused("has no contents");
    good.with(good.field(".rela.text", 40), &1_u32.to_le_bytes())
        .refused("is not the symbol table");
    good.with(good.field(".rela.text", 56), &[16]).refused("in entries of 16");
    good.with(good.field(".rela.text", 4), &elf::SHT_REL.to_le_bytes())
        .refused("SHT_REL, without addends");
    // A section that is not loaded is none of the loader's business.
    let comment = good.section(".comment") as u32;
    let table = good.contents(".rela.eh_frame");
    let skipped = good.with(good.field(".rela.eh_frame", 44), &comment.to_le_bytes());
    skipped.with(table, &u64::MAX.to_le_bytes()).try_out().unwrap();
}

/// Where the first relocation of this type is.
fn relocation(file: &Bytes, section: &str, kind: u32) -> usize {
    let (at, size) = (file.contents(section), file.u64(file.field(section, 32)) as usize);
    (at..at + size).step_by(24).find(|&at| file.u32(at + 8) == kind).expect("a relocation")
}

#[test]
fn d21_and_d22_relocations_stay_in_their_section_and_have_symbols() {
    let good = good();
    let at = relocation(&good, ".relakmem_exports", elf::R_X86_64_64);
    let size = good.u64(good.field("kmem_exports", 32));
    for offset in [size - 7, size, u64::MAX] {
        good.with(at, &offset.to_le_bytes()).refused("outside its section");
    }
    let symbols = good.u64(good.field(".symtab", 32)) as u32 / 24;
    for symbol in [symbols, u32::MAX] {
        good.with(at + 12, &symbol.to_le_bytes()).refused(&format!("symbol {symbol} of {symbols}"));
    }
}

#[test]
fn d23_and_d24_types_are_known_and_values_fit() {
    let good = good();
    let at = relocation(&good, ".rela.text", elf::R_X86_64_PC32);
    good.with(at + 8, &elf::R_X86_64_NONE.to_le_bytes()).try_out().unwrap();
    for (kind, name) in [
        (elf::R_X86_64_COPY, "R_X86_64_COPY"),
        (elf::R_X86_64_RELATIVE, "R_X86_64_RELATIVE"),
        (elf::R_X86_64_JUMP_SLOT, "R_X86_64_JUMP_SLOT"),
        (elf::R_X86_64_IRELATIVE, "R_X86_64_IRELATIVE"),
        (elf::R_X86_64_TPOFF32, "thread-local storage"),
        (0xdead, "unknown type"),
    ] {
        good.with(at + 8, &kind.to_le_bytes()).refused(name);
    }
    for kind in [elf::R_X86_64_32, elf::R_X86_64_32S] {
        good.with(at + 8, &kind.to_le_bytes()).refused("overflow");
    }
    for addend in [i64::MIN, i64::MAX, 1 << 32] {
        good.with(at + 16, &addend.to_le_bytes()).refused("overflow");
        let call = relocation(&good, ".rela.text", elf::R_X86_64_PLT32);
        good.with(call + 16, &addend.to_le_bytes()).refused("overflow");
    }
}

#[test]
fn d25_a_place_that_is_not_zero_was_relocated_before() {
    let good = good();
    let at = relocation(&good, ".relakmem_exports", elf::R_X86_64_64);
    let place = good.contents("kmem_exports") + good.u64(at) as usize;
    good.with(place, &[1]).refused("the place is not zero");
    // Twice the same.
    good.with(at + 24, &good.0[at..at + 24]).refused("the place is not zero");
}

#[test]
fn d26_undefined_symbols_are_errors_weak_ones_zero_and_a_modules_own_win() {
    let dir = directory();
    let loader = loader();
    let path = module(
        dir.path(),
        "lacking",
        "int lacks(void); int lack(void); int lack(void) { return lacks(); }",
    );
    let error = insmod(&loader, &path, "").unwrap_err();
    is(&error, Errno::ENOENT);
    assert!(error.to_string().contains("unknown symbol \"lacks\""), "{error}");
    let path = module_with(
        dir.path(),
        "own",
        "extern int absent(void) __attribute__((weak)); int strlen(const char *);
         int strlen(const char *s) { (void)s; return 77; } long own_result(void);
         long own_result(void) { return strlen(\"abc\") + (absent != 0); }
         EXPORT_SYMBOL(own_result);",
        &["-fno-builtin"],
    );
    insmod(&loader, &path, "").unwrap();
    assert_eq!(harness::call(&loader, "own_result"), 77);
    loader.delete_module("own", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d27_nobody_exports_what_is_there() {
    let dir = directory();
    let loader = loader();
    let first = module(dir.path(), "first", "int shared; EXPORT_SYMBOL(shared);");
    let second = module(dir.path(), "second", "int shared; EXPORT_SYMBOL(shared);");
    let takes = |name: &str| {
        let text = format!(
            "void *{name}(unsigned long n); void *{name}(unsigned long n) {{ return (void *)n; }}
             EXPORT_SYMBOL({name});"
        );
        module_with(dir.path(), &format!("takes_{name}"), &text, &["-fno-builtin"])
    };
    insmod(&loader, &first, "").unwrap();
    for (path, owner) in [
        (second, "module first"),
        (takes("malloc"), "the process"),
        (takes("kmem_module_put"), "the process"),
    ] {
        let error = insmod(&loader, &path, "").unwrap_err();
        is(&error, Errno::EEXIST);
        assert!(error.to_string().contains(&format!("which {owner} has")), "{error}");
    }
    loader.delete_module("first", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d28_a_module_says_its_licence_and_what_it_was_built_for() {
    let dir = directory();
    let loader = loader();
    let refused = |text: &str, what: &str| {
        let source = dir.path().join("info.c");
        fs::write(&source, format!("#include \"kmem_module.h\"\n{text}\nint x;\n")).unwrap();
        let path = harness::compile_file(dir.path(), "info", &source, &[]);
        for error in [insmod(&loader, &path, ""), loader.init_module(&fs::read(&path).unwrap(), "")]
        {
            let error = error.unwrap_err();
            is(&error, Errno::ENOEXEC);
            assert!(error.to_string().contains(what), "{error}, and not {what}");
        }
    };
    let magic = "MODULE_INFO(vermagic, \"kmem 1 x86_64\"); MODULE_INFO(name, \"info\");";
    refused("MODULE_INFO(license, \"GPL\"); MODULE_INFO(name, \"info\");", "no vermagic");
    refused(
        "MODULE_INFO(license, \"GPL\"); MODULE_INFO(vermagic, \"kmem 0\");
         MODULE_INFO(name, \"info\");",
        "vermagic is \"kmem 0\", not",
    );
    refused(magic, "no license");
    refused(&format!("{magic} MODULE_INFO(license, \"\");"), "no license");
    let long = "x".repeat(1 << 20);
    refused(
        &format!("{magic} MODULE_INFO(license, \"{long}\");"),
        "has 1048584 bytes, more than 65536",
    );
    refused("MODULE_LICENSE(\"GPL\"); MODULE_INFO(name, \"../etc\");", "is no name for a module");
    let good = good();
    let size = good.u64(good.field(".modinfo", 32));
    good.with(good.field(".modinfo", 32), &(size - 1).to_le_bytes())
        .refused("does not end with a zero");
    nothing_is_left(&loader);
}

#[test]
fn d36_code_tags_are_whole_and_their_names_in_the_module() {
    let good = good();
    let size = good.field("kmem_alloc_tags", 32);
    good.with(size, &33_u64.to_le_bytes()).refused("are no whole records of 32");
    // A tag whose file is a number.
    let at = relocation(&good, ".relakmem_alloc_tags", elf::R_X86_64_64);
    let none = good.with(at + 8, &elf::R_X86_64_NONE.to_le_bytes());
    none.refused("its file (0x0) is no string of the module");
    let data = none.with(good.contents("kmem_alloc_tags") + 8, &[1]);
    data.refused("its file (0x1) is no string of the module");
    // Per-CPU variables: as much as the allocator has copies of.
    let dir = directory();
    let path = module(dir.path(), "percpu", "DEFINE_PER_CPU(char[100], area); int x;");
    let percpu = Bytes(fs::read(path).unwrap());
    let size = percpu.field(".data..percpu", 32);
    percpu.try_out().unwrap();
    for bytes in [u64::MAX, u64::MAX / 2, 1 << 62, (32 << 10) + 1] {
        let nobits = percpu.with(percpu.field(".data..percpu", 4), &elf::SHT_NOBITS.to_le_bytes());
        is(&nobits.with(size, &bytes.to_le_bytes()).refused("are more than 32768"), Errno::E2BIG);
    }
    let align = percpu.field(".data..percpu", 48);
    percpu
        .with(align, &8192_u64.to_le_bytes())
        .refused("are aligned to 8192 bytes, more than 4096");
    // Twice.
    let text = percpu.entry(percpu.section(".text"));
    let name = percpu.u32(percpu.entry(percpu.section(".data..percpu")));
    percpu.with(text, &name.to_le_bytes()).refused("are both called .data..percpu");
}
