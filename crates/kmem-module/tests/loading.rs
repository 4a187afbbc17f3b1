//! Modules in this process: loaded, used, unloaded.

mod harness;

use std::ffi::CStr;
use std::fs;
use std::process::Command;

use harness::{
    KMEM, books, call, compile, config, directory, insmod, int, loader, module, nothing_is_left,
};
use kmem_module::loader::{WhenLive, delete, flags};
use kmem_module::{Config, Errno, Loader};
use kmem_testing::Compiler;

#[test]
fn a_module_has_everything_the_header_has() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let loader = loader();
    let args = "number=-0x10 tiny=3 text=\"a b\" flag list=1,2 name=xyz";
    insmod(&loader, &path, args).unwrap();
    // One copy more than CPUs: that of threads without a number.
    let cpus = i64::from(KMEM.possible_cpus()) + 1;
    // -16 + 3 + strlen("a b") + 1 + 2 + strlen("xyz") + 5 + 3, and 11 for each CPU.
    assert_eq!(
        call(&loader, "everything_sum") as i32,
        (-16 + 3 + 3 + 1 + 2 + 3 + 5 + 3 + 11 * cpus) as i32
    );
    assert_eq!(int(&loader, "everything_answer"), 42);
    assert_eq!(books("everything"), [("start".to_owned(), (112, 1))].into());

    let [info] = &loader.modules(true)[..] else { panic!("one module") };
    assert_eq!((info.name.as_str(), info.refcount, info.state), ("everything", 0, "Live"));
    assert_eq!(info.size, loader.gauge().now(), "what is held is the module");
    let text = loader.proc_modules(false);
    assert_eq!(text, format!("everything {} 0 - Live 0x0000000000000000\n", info.size));
    assert!(loader.proc_modules(true).contains(&format!("{:#018x}", info.base)));

    loader.delete_module("everything", 0).unwrap();
    assert!(books("everything").is_empty());
    nothing_is_left(&loader);
}

#[test]
fn memory_is_never_writable_and_executable_and_init_is_given_back() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    let info = loader.modules(true).remove(0);
    let (start, end) = (info.base, info.base + info.size);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut modes = Vec::new();
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        if hex(from) < end && start < hex(to) {
            modes.push(rest[..4].to_owned());
        }
    }
    // Text; read-only data with what was initialised; data (which may be joined with what follows).
    assert_eq!(modes, ["r-xp", "r--p", "rw-p"], "{maps}");
    let sealed = loader.symbol("everything_sum").unwrap();
    assert!((start..end).contains(&sealed.address));
    drop(sealed);
    loader.delete_module("everything", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn several_files_are_one_module() {
    let dir = directory();
    let a = module(
        dir.path(),
        "part_a",
        "int twice(int);
         static int __init go(void) { return twice(21) == 42 ? 0 : -5; } module_init(go);
         static void done(void) { } module_exit(done);",
    );
    let b = dir.path().join("b.c");
    fs::write(
        &b,
        "int twice(int n); int twice(int n) { static int calls; calls++; return n * 2; }",
    )
    .unwrap();
    let b_o = Compiler::c().args(["-c", "-fPIC"]).arg(&b).compile(dir.path().join("b.o"));
    let link = Compiler::c().args(["-r", "-nostdlib", "-Wl,--build-id"]);
    let both = link.arg(&a).arg(&b_o).compile(dir.path().join("both.ko"));
    let loader = loader();
    insmod(&loader, &both, "").unwrap();
    // The name is that of the source with MODULE_LICENSE.
    loader.delete_module("part_a", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn modules_use_each_others_symbols_and_hold_each_other() {
    let dir = directory();
    let base = module(
        dir.path(),
        "base",
        "int base_value(void); int base_value(void) { return 7; }
         EXPORT_SYMBOL_VERSION(base_value, 2);",
    );
    let user = module(
        dir.path(),
        "user",
        "int base_value(void); IMPORT_SYMBOL_VERSION(base_value, 2);
         long user_value(void); long user_value(void) { return base_value() + 1; }
         EXPORT_SYMBOL(user_value);",
    );
    let loader = loader();
    let error = insmod(&loader, &user, "").unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT);
    assert!(error.to_string().contains("unknown symbol \"base_value\""), "{error}");
    nothing_is_left(&loader);

    insmod(&loader, &base, "").unwrap();
    insmod(&loader, &user, "").unwrap();
    assert_eq!(call(&loader, "user_value"), 8);
    let base_info = loader.modules(false).remove(0);
    assert_eq!((base_info.refcount, &base_info.users[..]), (1, &["user".to_owned()][..]));
    let error = loader.delete_module("base", 0).unwrap_err();
    assert_eq!(error.errno, Errno::EAGAIN);
    assert!(error.to_string().contains("used by user"), "{error}");
    loader.delete_module("user", 0).unwrap();
    loader.delete_module("base", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn versions_and_licences_decide_who_gets_a_symbol() {
    let dir = directory();
    let base = module(
        dir.path(),
        "versions",
        "void v2(void); void v2(void) {} EXPORT_SYMBOL_VERSION(v2, 2);
         void v_none(void); void v_none(void) {} EXPORT_SYMBOL(v_none);
         void v_gpl(void); void v_gpl(void) {} EXPORT_SYMBOL_GPL(v_gpl);",
    );
    let user = |name: &str, symbol: &str, import: &str| {
        module(
            dir.path(),
            name,
            &format!(
                "void {symbol}(void); {import} void {name}_go(void);
                 void {name}_go(void) {{ {symbol}(); }}"
            ),
        )
    };
    let loader = loader();
    insmod(&loader, &base, "").unwrap();
    for (path, what) in [
        (user("wrong", "v2", "IMPORT_SYMBOL_VERSION(v2, 3);"), "built for 0x3, there is 0x2"),
        (
            user("none", "v_none", "IMPORT_SYMBOL_VERSION(v_none, 1);"),
            "built for 0x1, there is none",
        ),
    ] {
        let error = insmod(&loader, &path, "").unwrap_err();
        assert!(error.errno == Errno::ENOEXEC && error.to_string().contains(what), "{error}");
        let file = fs::File::open(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        loader.finit_module(fd, "", flags::IGNORE_MODVERSIONS).unwrap();
    }
    loader.delete_module("wrong", 0).unwrap();
    loader.delete_module("none", 0).unwrap();
    let text = "#include \"kmem_module.h\"\nMODULE_LICENSE(\"Proprietary\");
        void v_gpl(void); void own(void); void own(void) { v_gpl(); }\n";
    let source = dir.path().join("own.c");
    fs::write(&source, text).unwrap();
    let compiler = Compiler::c().args(["-c", "-fPIC"]).include().arg(&source);
    let own = compiler.compile(dir.path().join("own.ko"));
    let error = insmod(&loader, &own, "").unwrap_err();
    assert!(error.to_string().contains("only for modules with a licence"), "{error}");
    loader.delete_module("versions", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn parameters_have_the_types_of_the_kernel() {
    let dir = directory();
    let path = module(
        dir.path(),
        "types",
        "#include <stdio.h>
         static unsigned char by; module_param(by, byte, 0);
         static short sh; module_param(sh, short, 0);
         static unsigned short us; module_param(us, ushort, 0);
         static int in; module_param(in, int, 0);
         static unsigned int ui; module_param(ui, uint, 0);
         static long lo; module_param(lo, long, 0);
         static unsigned long ul; module_param(ul, ulong, 0);
         static unsigned long long ull; module_param(ull, ullong, 0);
         static unsigned int hex; module_param(hex, hexint, 0);
         static char *ch; module_param(ch, charp, 0);
         static bool bo; module_param(bo, bool, 0);
         static bool inv = true; module_param(inv, invbool, 0);
         static int inside; module_param_named(out_side, inside, int, 0);
         static short arr[3] = { 7, 7, 7 };
         static unsigned int count; module_param_array(arr, short, &count, 0);
         static char *words[2]; module_param_array_named(list, words, charp, NULL, 0);
         static char str[6]; module_param_string(string, str, sizeof(str), 0);
         char types_text[300]; EXPORT_SYMBOL(types_text);
         static int __init go(void) {
            snprintf(types_text, sizeof(types_text),
                \"%u %d %u %d %u %ld %lu %llu %x %s %d %d %d %d,%d,%d/%u %s,%s %s\",
                by, sh, us, in, ui, lo, ul, ull, hex, ch, bo, inv, inside,
                arr[0], arr[1], arr[2], count, words[0], words[1], str);
            return 0; } module_init(go); static void stop(void) { } module_exit(stop);",
    );
    let loader = loader();
    let args = "by=0xff sh=-32768 us=65535 in=-0x80000000 ui=4294967295
        lo=-9223372036854775808 ul=010
        ull=18446744073709551615 hex=0xab ch=\"a b\" bo inv=y out-side=+3 arr=-1,2
        list=x,\"y z\" string=12345 -- in=1";
    insmod(&loader, &path, args).unwrap();
    let text = loader.symbol("types_text").unwrap();
    // SAFETY: a string of a module that is held.
    let said = unsafe { CStr::from_ptr(text.address as *const _) }.to_str().unwrap().to_owned();
    drop(text);
    assert_eq!(
        said,
        "255 -32768 65535 -2147483648 4294967295 -9223372036854775808 8 18446744073709551615 \
         ab a b 1 0 3 -1,2,7/2 x,y z 12345"
    );
    loader.delete_module("types", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn parameters_are_refused_with_their_names() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let loader = loader();
    for (args, errno, what) in [
        ("number=x", Errno::EINVAL, "parameter number: \"x\" is no number (int)"),
        ("number", Errno::EINVAL, "parameter number: needs a value"),
        ("number=2147483648", Errno::ERANGE, "parameter number: \"2147483648\" does not fit int"),
        ("tiny=256", Errno::ERANGE, "parameter tiny"),
        ("flag=maybe", Errno::EINVAL, "parameter flag: \"maybe\" is no bool"),
        ("list=1,2,3,4,5", Errno::EINVAL, "parameter list: more than 4 values"),
        ("name=12345678", Errno::EINVAL, "parameter name: 8 bytes are too long for 7"),
        ("text=\"a", Errno::EINVAL, "a quote is not closed"),
    ] {
        let error = insmod(&loader, &path, args).unwrap_err();
        assert_eq!(error.errno, errno, "{args}: {error}");
        assert!(error.to_string().contains(what), "{args}: {error}");
        nothing_is_left(&loader);
    }
    insmod(&loader, &path, "list=1,2,3,4 -- nope=1").unwrap();
    loader.delete_module("everything", 0).unwrap();
    // As in the kernel, an unknown one is ignored, and the others are set.
    insmod(&loader, &path, "nope=1 number=5 nope").unwrap();
    assert_eq!(loader.parameter("everything", "number").unwrap(), "5");
    loader.delete_module("everything", 0).unwrap();
    nothing_is_left(&loader);
}

/// A module with a parameter of each form, all of which are shown but the last two.
const SHOWN: &str = "
    static unsigned char by = 200; module_param(by, byte, 0444);
    static short sh = -3; module_param(sh, short, 0444);
    static unsigned short us = 65535; module_param(us, ushort, 0444);
    static int in = -2147483647; module_param(in, int, 0644);
    static unsigned int ui = 4000000000u; module_param(ui, uint, 0444);
    static long lo = -5; module_param(lo, long, 0444);
    static unsigned long ul = 6; module_param(ul, ulong, 0444);
    static unsigned long long ull = 18446744073709551615ull; module_param(ull, ullong, 0444);
    static unsigned int hex = 0xab; module_param(hex, hexint, 0444);
    static unsigned int none; module_param(none, hexint, 0444);
    static char *ch = \"given\"; module_param(ch, charp, 0444);
    static char *null; module_param(null, charp, 0444);
    static bool bo = true; module_param(bo, bool, 0444);
    static bool inv = true; module_param(inv, invbool, 0444);
    static short arr[3] = { 7, 8, 9 };
    static unsigned int count = 2; module_param_array(arr, short, &count, 0444);
    static char *words[2] = { \"x\", \"y\" }; module_param_array(words, charp, 0, 0444);
    static char str[6] = \"abc\"; module_param_string(str, str, sizeof(str), 0444);
    static int sealed __ro_after_init = 1; module_param(sealed, int, 0444);
    static int hidden; module_param(hidden, int, 0);
    static int early __initdata; module_param(early, int, 0444);
    static unsigned int once __initdata = 2;
    static int kept[2]; module_param_array(kept, int, &once, 0444);
    long shown_change(void); long shown_change(void) { in = 12; count = 9; ch = str; return 0; }
    EXPORT_SYMBOL(shown_change);
    static int __init go(void) { sealed = 77 + early; return 0; } module_init(go);
    static void stop(void) { } module_exit(stop);";

#[test]
fn parameters_of_a_live_module_are_readable_as_the_kernel_shows_them() {
    let dir = directory();
    let path = module(dir.path(), "shown", SHOWN);
    let loader = loader();
    insmod(&loader, &path, "us=17 early=1").unwrap();
    let shown = loader.parameters("shown").unwrap();
    let of = |name: &str| (name.to_owned(), loader.parameter("shown", name).unwrap());
    let values: Vec<_> = shown.iter().map(|name| of(name)).collect();
    let mut expected = [
        ("by", "200"),
        ("sh", "-3"),
        ("us", "17"),
        ("in", "-2147483647"),
        ("ui", "4000000000"),
        ("lo", "-5"),
        ("ul", "6"),
        ("ull", "18446744073709551615"),
        ("hex", "0x0000ab"),
        ("none", "00000000"),
        ("ch", "given"),
        ("null", "(null)"),
        ("bo", "Y"),
        ("inv", "N"),
        ("arr", "7,8"),
        ("words", "x,y"),
        ("str", "abc"),
        ("sealed", "78"),
    ];
    expected.sort_unstable();
    assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    // The present values count, and a count beyond the array is that of the array.
    call(&loader, "shown_change");
    for (name, value) in [("in", "12"), ("arr", "7,8,9"), ("ch", "abc")] {
        assert_eq!(loader.parameter("shown", name).unwrap(), value);
    }
    for (module, name, what) in [
        ("shown", "hidden", "shown has no parameter \"hidden\" that can be read"),
        ("shown", "early", "\"early\""),
        ("shown", "kept", "\"kept\""),
        ("shown", "nope", "\"nope\""),
        ("nothing", "in", "no live module called nothing"),
    ] {
        let error = loader.parameter(module, name).unwrap_err();
        assert!(error.errno == Errno::ENOENT && error.what.contains(what), "{error}");
    }
    assert_eq!(loader.modules(false)[0].refcount, 0);
    loader.delete_module("shown", 0).unwrap();
    assert!(loader.parameters("shown").is_err());
    nothing_is_left(&loader);
}

#[test]
fn a_string_without_an_end_is_shown_up_to_a_page() {
    let dir = directory();
    let text = "static char most[9000] = { [0 ... 8999] = 'a' }; static char *at = most;
        module_param(at, charp, 0444); static char four[4] = \"abcd\";
        module_param_string(four, four, sizeof(four), 0444);";
    let loader = loader();
    insmod(&loader, &module(dir.path(), "endless", text), "").unwrap();
    assert_eq!(loader.parameter("endless", "at").unwrap(), "a".repeat(4096));
    assert_eq!(loader.parameter("endless", "four").unwrap(), "abcd");
    loader.delete_module("endless", 0).unwrap();
}

#[test]
fn what_init_returns_decides_and_its_failure_leaves_nothing() {
    let dir = directory();
    let failing = module(
        dir.path(),
        "failing",
        "static void *p; static int result = -5; module_param(result, int, 0);
         void failing_symbol(void); void failing_symbol(void) { } EXPORT_SYMBOL(failing_symbol);
         static int __init go(void) { p = kmalloc(64, GFP_KERNEL); kfree(p); return result; }
         module_init(go);
         static void stop(void) { } module_exit(stop);",
    );
    let loader = loader();
    let error = insmod(&loader, &failing, "").unwrap_err();
    assert_eq!((error.errno, &*error.what), (Errno::EIO, "init of failing returned -5"));
    assert!(loader.symbol("failing_symbol").is_none());
    nothing_is_left(&loader);
    // The kernel's rule: a positive number is a mistake, and not a failure.
    insmod(&loader, &failing, "result=7").unwrap();
    loader.delete_module("failing", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn constructors_run_before_init_and_destructors_after_exit() {
    let dir = directory();
    let path = module(
        dir.path(),
        "order",
        "static int step; int order_ok = 0; EXPORT_SYMBOL(order_ok);
         static void __attribute__((constructor)) first(void) { step = 1; }
         static int __init go(void) { order_ok = step == 1; return 0; } module_init(go);
         static void __exit stop(void) { step = 2; } module_exit(stop);
         static void __attribute__((destructor)) last(void) { if (step != 2) __builtin_trap(); }",
    );
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    assert_eq!(int(&loader, "order_ok"), 1);
    loader.delete_module("order", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn a_module_that_is_held_is_not_unloaded_and_one_without_exit_stays() {
    let dir = directory();
    let path = module(dir.path(), "held", "int held_x = 1; EXPORT_SYMBOL(held_x);");
    let stays =
        module(dir.path(), "stays", "static int __init go(void) { return 0; } module_init(go);");
    let loader = loader();
    assert_eq!(loader.delete_module("held", 0).unwrap_err().errno, Errno::ENOENT);
    insmod(&loader, &path, "").unwrap();
    let symbol = loader.symbol("held_x").unwrap();
    let error = loader.delete_module("held", delete::NONBLOCK).unwrap_err();
    assert_eq!(error.errno, Errno::EAGAIN);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| loader.delete_module("held", 0));
        // It is going once no further reference to it is given out.
        while loader.symbol("held_x").is_some() {
            std::thread::yield_now();
        }
        assert_eq!(loader.delete_module("held", 0).unwrap_err().errno, Errno::EBUSY);
        drop(symbol);
        waits.join().unwrap().unwrap();
    });
    insmod(&loader, &stays, "").unwrap();
    assert_eq!(loader.delete_module("stays", 0).unwrap_err().errno, Errno::EBUSY);
    loader.delete_module("stays", delete::FORCE).unwrap();
    nothing_is_left(&loader);
}

const LEAKY: &str = "void *leaky_last; EXPORT_SYMBOL(leaky_last); static int gone;
    static int __init go(void) { leaky_last = kmalloc(200, GFP_KERNEL); return 0; } module_init(go);
    static void __exit stop(void) { if (gone++) __builtin_trap(); } module_exit(stop);";

/// Memory that the module allocated.
fn leaked(loader: &Loader) -> *mut u8 {
    let last = loader.symbol("leaky_last").unwrap();
    // SAFETY: a pointer of a module that is held.
    unsafe { *(last.address as *const *mut u8) }
}

#[test]
fn where_live_allocations_are_refused_a_module_stays_until_they_are_freed_and_its_exit_runs_once() {
    let dir = directory();
    // Not the name of the other test's: they share their books.
    let path = module(dir.path(), "refused", LEAKY);
    let user = module(dir.path(), "refused_user", "int refused_user;");
    let loader = Loader::new(Config { when_live: WhenLive::Refuse, ..config() }).unwrap();
    insmod(&loader, &path, "").unwrap();
    insmod(&loader, &user, "").unwrap();
    let live = leaked(&loader);
    for _ in 0..3 {
        let error = loader.delete_module("refused", 0).unwrap_err();
        assert_eq!(error.errno, Errno::EBUSY);
        let text = error.to_string();
        assert!(text.contains("refused has run its exit; 208 bytes are live: "), "{text}");
        assert!(text.contains("refused.c:") && text.contains(" go (208 bytes in 1)"), "{text}");
        // Its name is taken, its symbols are not found, its memory is there.
        assert_eq!(insmod(&loader, &path, "").unwrap_err().errno, Errno::EBUSY);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(loader.init_module(&bytes, "").unwrap_err().errno, Errno::EBUSY);
        assert!(loader.symbol("leaky_last").is_none());
        let infos = loader.modules(true);
        assert_eq!((&*infos[0].name, infos[0].state), ("refused", "Unloading"));
        assert_ne!(infos[0].base, 0);
    }
    // Others come and go.
    loader.delete_module("refused_user", 0).unwrap();
    // SAFETY: the module allocated it from this instance, and no longer uses it.
    unsafe { KMEM.free(live) };
    loader.delete_module("refused", 0).unwrap();
    nothing_is_left(&loader);
    insmod(&loader, &path, "").unwrap();
    let live = leaked(&loader);
    loader.delete_module("refused", delete::FORCE).unwrap();
    nothing_is_left(&loader);
    assert_eq!(books("refused"), [("go".to_owned(), (208, 1))].into());
    // SAFETY: the module allocated it from this instance, and no longer uses it.
    unsafe { KMEM.free(live) };
}

#[test]
fn what_is_live_when_a_module_goes_keeps_its_tags_and_finds_them_again() {
    let dir = directory();
    let path = module(dir.path(), "leaky", LEAKY);
    let loader = loader();
    let mut live = Vec::new();
    for _ in 0..2 {
        insmod(&loader, &path, "").unwrap();
        live.push(leaked(&loader));
        loader.delete_module("leaky", 0).unwrap();
        nothing_is_left(&loader);
    }
    let size = books("leaky")["go"].0 / 2;
    assert_eq!(books("leaky"), [("go".to_owned(), (2 * size, 2))].into());
    for at in live {
        // SAFETY: the module allocated it from this instance, and no longer uses it.
        unsafe { KMEM.free(at) };
    }
    assert!(books("leaky").is_empty());
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "the module names its architecture")]
fn a_module_may_be_written_in_rust() {
    let dir = directory();
    let path = dir.path().join("in_rust.ko");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/modules/in_rust.rs");
    let options = ["--edition=2024", "--crate-type=lib", "--emit=obj", "-O"];
    let generate = ["-Crelocation-model=pic", "-Cpanic=abort", "-Ccodegen-units=1"];
    let mut rustc = Command::new("rustc");
    let status = rustc.args(options).args(generate).arg(source).arg("-o").arg(&path).status();
    assert!(status.unwrap().success());
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    assert_eq!(call(&loader, "rust_answer"), 42);
    assert_eq!(books("in_rust"), [("start".to_owned(), (32, 1))].into());
    loader.delete_module("in_rust", 0).unwrap();
    assert!(books("in_rust").is_empty());
    nothing_is_left(&loader);
}
