//! Per-CPU variables of modules: every CPU has a copy, in the per-CPU memory of the allocator.

mod harness;

use std::sync::Mutex;

use harness::{KMEM, call, config, directory, insmod, loader, module, nothing_is_left};
use kmem_core::units::CpuId;
use kmem_module::{Errno, Loader};

/// Tests that count per-CPU objects take turns.
static ONE: Mutex<()> = Mutex::new(());

fn objects() -> u64 {
    KMEM.percpu_stats().objects
}

const COUNTS: &str = "
    static DEFINE_PER_CPU(unsigned long, hidden);
    DEFINE_PER_CPU(unsigned long, shown) = 100;
    static DEFINE_PER_CPU(unsigned int, four) = 3;
    static DEFINE_PER_CPU(unsigned long[4], several);
    long counts_add(void); long counts_add(void) {
        for (int i = 0; i < 4; i++) this_cpu_add(several[i], i);
        this_cpu_inc(hidden); this_cpu_add(shown, 5); this_cpu_dec(four); return 0; }
    EXPORT_SYMBOL(counts_add);
    long counts_hidden(void); long counts_hidden(void) { return percpu_sum(hidden); }
    EXPORT_SYMBOL(counts_hidden);
    long counts_shown(void); long counts_shown(void) {
        unsigned int cpu; unsigned long sum = 0;
        for_each_possible_cpu(cpu) sum += per_cpu(shown, cpu);
        return sum == percpu_sum(shown) ? (long)sum : -1; } EXPORT_SYMBOL(counts_shown);
    long counts_four(void); long counts_four(void) { return percpu_sum(four); }
    EXPORT_SYMBOL(counts_four);
    long counts_several(void); long counts_several(void) {
        return percpu_sum(several[3]) * 100 + percpu_sum(several[1]); }
    EXPORT_SYMBOL(counts_several);";

#[test]
fn operations_of_this_cpu_work_on_variables_of_a_module_on_all_threads() {
    let _one = ONE.lock();
    let dir = directory();
    let path = module(dir.path(), "counts", COUNTS);
    let loader = loader();
    let before = objects();
    insmod(&loader, &path, "").unwrap();
    assert_eq!(objects(), before + 1);
    let copies = i64::from(KMEM.possible_cpus()) + 1;
    assert_eq!(call(&loader, "counts_shown"), 100 * copies);
    assert_eq!(call(&loader, "counts_four"), 3 * copies);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| assert_eq!(call(&loader, "counts_add"), 0)));
        }
    });
    assert_eq!(call(&loader, "counts_hidden"), 4000);
    assert_eq!(call(&loader, "counts_shown"), 100 * copies + 4000 * 5);
    assert_eq!(call(&loader, "counts_four"), (3 * copies - 4000) & 0xffff_ffff);
    assert_eq!(call(&loader, "counts_several"), 4000 * 301);
    loader.delete_module("counts", 0).unwrap();
    assert_eq!(objects(), before);
    nothing_is_left(&loader);
}

#[test]
fn code_without_optimisation_reaches_them_too() {
    let _one = ONE.lock();
    let dir = directory();
    let path = harness::module_with(dir.path(), "counts", COUNTS, &["-O0"]);
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    call(&loader, "counts_add");
    assert_eq!(call(&loader, "counts_hidden"), 1);
    assert_eq!(call(&loader, "counts_several"), 301);
    loader.delete_module("counts", 0).unwrap();
}

#[test]
fn every_copy_begins_with_the_values_of_the_definition_after_relocation() {
    let _one = ONE.lock();
    let dir = directory();
    let path = module(
        dir.path(),
        "values",
        "static int target; struct pair { int *to; unsigned long number; };
         DEFINE_PER_CPU(struct pair, pair) = { &target, 42 };
         static unsigned long *const address = &pair.number;
         long values_right(void); long values_right(void) { unsigned int cpu;
            for_each_possible_cpu(cpu)
                if (per_cpu(pair, cpu).to != &target || per_cpu(pair, cpu).number != 42)
                    return -1 - (long)cpu;
            return address == &pair.number; } EXPORT_SYMBOL(values_right);
         long values_wrong(void); long values_wrong(void) { unsigned int cpu;
            for_each_possible_cpu(cpu) per_cpu(pair, cpu).number = 7;
            return 0; } EXPORT_SYMBOL(values_wrong);",
    );
    let loader = loader();
    for _ in 0..2 {
        insmod(&loader, &path, "").unwrap();
        assert_eq!(call(&loader, "values_right"), 1);
        // The next load begins anew.
        call(&loader, "values_wrong");
        loader.delete_module("values", 0).unwrap();
    }
    nothing_is_left(&loader);
}

#[test]
fn a_module_may_use_per_cpu_variables_that_another_exports() {
    let _one = ONE.lock();
    let dir = directory();
    let owner = module(
        dir.path(),
        "owner",
        "DEFINE_PER_CPU(unsigned long, owned); EXPORT_PER_CPU_SYMBOL(owned);",
    );
    let user = module(
        dir.path(),
        "user",
        "DECLARE_PER_CPU(unsigned long, owned);
         long user_adds(void); long user_adds(void) {
            this_cpu_add(owned, 4); this_cpu_add(owned, 5); return percpu_sum(owned); }
         EXPORT_SYMBOL(user_adds);",
    );
    let loader = loader();
    insmod(&loader, &owner, "").unwrap();
    insmod(&loader, &user, "").unwrap();
    assert_eq!(call(&loader, "user_adds"), 9);
    let symbol = loader.symbol("owned").unwrap().address as *mut u64;
    // SAFETY: a word of a per-CPU object, which is live.
    assert_eq!(unsafe { KMEM.percpu_sum(symbol) }, 9);
    assert!(!KMEM.per_cpu_ptr(symbol.cast(), CpuId(0)).is_null());
    loader.delete_module("user", 0).unwrap();
    loader.delete_module("owner", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn code_that_uses_a_variable_without_a_copy_is_refused() {
    let dir = directory();
    let path = module(
        dir.path(),
        "direct",
        "static DEFINE_PER_CPU(unsigned long, mine);
         unsigned long direct_read(void); unsigned long direct_read(void) {
            this_cpu_inc(mine); return mine; } EXPORT_SYMBOL(direct_read);",
    );
    let loader = loader();
    let error = insmod(&loader, &path, "").unwrap_err();
    assert_eq!(error.errno, Errno::ENOEXEC);
    let text = error.to_string();
    assert!(text.contains("a per-CPU variable is used without this_cpu_..()"), "{text}");
    nothing_is_left(&loader);
}

#[test]
fn a_load_that_fails_leaves_no_copies() {
    let _one = ONE.lock();
    let dir = directory();
    let text = "static DEFINE_PER_CPU(unsigned long, some);
        static int __init go(void) { this_cpu_inc(some); return -5; } module_init(go);
        static void stop(void) { } module_exit(stop);";
    let path = module(dir.path(), "fails", text);
    let unknown = module(
        dir.path(),
        "unknown",
        "static DEFINE_PER_CPU(unsigned long, some); extern void nowhere(void);
         void f(void); void f(void) { this_cpu_inc(some); nowhere(); }",
    );
    let loader = loader();
    let before = objects();
    assert_eq!(insmod(&loader, &path, "").unwrap_err().errno, Errno::EIO);
    assert_eq!(insmod(&loader, &unknown, "").unwrap_err().errno, Errno::ENOENT);
    assert_eq!(objects(), before);
    nothing_is_left(&loader);
}

#[test]
fn without_per_cpu_memory_a_module_with_such_variables_is_refused() {
    let dir = directory();
    let path = module(dir.path(), "alone", "DEFINE_PER_CPU(unsigned long, alone);");
    // The program has no libkmem.so.
    let config = kmem_module::Config { books: kmem_module::Config::default().books, ..config() };
    let loader = Loader::new(config).unwrap();
    let error = insmod(&loader, &path, "").unwrap_err();
    assert_eq!(error.errno, Errno::ENOMEM);
    assert!(error.to_string().contains("no memory for 8 bytes of per-CPU variables"), "{error}");
    nothing_is_left(&loader);
}
