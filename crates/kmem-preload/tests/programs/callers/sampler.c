/* Preloaded in front of libkmem.so. While `sampler_on` is set, calls of malloc, calloc, realloc and
 * operator new also make an allocation that is never freed. Beside it, its callers as libgcc's
 * unwinder sees them are written to the file that SAMPLES names. With -DLIBUNWIND those that
 * libunwind sees are written there, too.
 *
 *     SAMPLE_PROGRAM=NAME  sample in the program of this name from its start, and in no other
 *     SAMPLE_EVERY=N       one call in N
 *     SAMPLES_MOST=N       at most N samples
 *     SAMPLES_READY=FIFO   when all are taken, or the program exits, write its number there and
 *                          wait for its end
 */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef LIBUNWIND
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#endif

#define DEPTH 32
#define MOST 200000

struct callers {
    uint64_t count;
    uint64_t returns[DEPTH];
};

struct sample {
    struct callers libgcc, libunwind;
};

static struct {
    /* Bounds of the code that makes the allocations. */
    uint64_t start, stop;
    /* Number of complete samples. */
    atomic_uint_fast64_t complete;
    struct sample samples[MOST];
} *file;

atomic_int sampler_on;
static atomic_uint_fast64_t calls, used;
static uint64_t every = 1, most = MOST;
/* A copy: redis writes over its environment. */
static char ready[4096];
static int owner;
static __thread int busy;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
extern char __start_sample_text[], __stop_sample_text[];

/* Says that the samples are complete, and waits until the process is killed. */
static void finish(void) {
    if (!*ready || !file || getpid() != owner)
        return;
    atomic_store(&sampler_on, 0);
    uint64_t begun = atomic_fetch_add(&used, most);
    while (atomic_load(&file->complete) < (begun < most ? begun : most))
        sched_yield();
    int fd = open(ready, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        dprintf(fd, "%d\n", owner);
        close(fd);
        for (;;)
            pause();
    }
}

__attribute__((noinline, section("sample_text"))) static void sample(void) {
    if (!atomic_load_explicit(&sampler_on, memory_order_relaxed) || !file || busy)
        return;
    if (every > 1 && atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) % every)
        return;
    if (*ready && getpid() != owner)
        return;
    busy = 1;
    int error = errno;
    uint64_t number = atomic_fetch_add(&used, 1);
    if (number < most) {
        struct sample *to = &file->samples[number];
        to->libgcc.count = backtrace((void **)to->libgcc.returns, DEPTH);
#ifdef LIBUNWIND
        unw_context_t context;
        unw_cursor_t cursor;
        unw_word_t ret;
        uint64_t count = 0;
        unw_getcontext(&context);
        unw_init_local(&cursor, &context);
        do {
            if (unw_get_reg(&cursor, UNW_REG_IP, &ret) < 0 || !ret)
                break;
            to->libunwind.returns[count++] = ret;
        } while (count < DEPTH && unw_step(&cursor) > 0);
        to->libunwind.count = count;
#endif
        void *volatile kept = __libc_malloc(48);
        (void)kept;
        atomic_fetch_add(&file->complete, 1);
    }
    errno = error;
    if (number == most)
        finish();
    busy = 0;
}

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SAMPLES"), *program = getenv("SAMPLE_PROGRAM");
    if (program && strcmp(program, program_invocation_short_name))
        return;
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof *file))
        return;
    void *first[1];
    backtrace(first, 1); /* Loads libgcc. */
    file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    file->start = (uint64_t)__start_sample_text;
    file->stop = (uint64_t)__stop_sample_text;
    every = number_of("SAMPLE_EVERY", every);
    most = number_of("SAMPLES_MOST", most);
    most = most < MOST ? most : MOST;
    if (getenv("SAMPLES_READY"))
        strncpy(ready, getenv("SAMPLES_READY"), sizeof ready - 1);
    owner = getpid();
    if (program)
        sampler_on = 1;
}

__attribute__((destructor)) static void stop(void) {
    finish();
}

void *malloc(size_t size) {
    sample();
    void *volatile at = __libc_malloc(size);
    return at;
}

void *calloc(size_t count, size_t size) {
    sample();
    void *volatile at = __libc_calloc(count, size);
    return at;
}

void *realloc(void *old, size_t size) {
    sample();
    void *volatile at = __libc_realloc(old, size);
    return at;
}

/* operator new */
void *_Znwm(size_t size) {
    sample();
    void *volatile at = __libc_malloc(size);
    return at;
}
