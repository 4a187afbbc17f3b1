/* A program without leaks that is hard to look at, in the way that its argument says. It prints
 * ready, and waits. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static void **volatile table;
static char *volatile start;

static void *idle(void *unused) {
    for (;;)
        pause();
    return unused;
}

NOINLINE static void fill(void) {
    for (int i = 0; i < 100; i++)
        table[i] = memset(malloc(100), 1, 100);
}

/* Writes over what functions have left on the stack. */
NOINLINE static void scrub(void) {
    volatile char stale[32 << 10];
    memset((char *)stale, 1, sizeof stale);
}

/* The only pointers are behind a page of their object that cannot be read. */
static void guard(void) {
    void *object;
    if (posix_memalign(&object, 4096, 64 << 10) || mprotect(object, 4096, PROT_NONE))
        abort();
    start = object;
    table = (void **)(start + 8192);
}

/* The only pointers are in a mapping that the kernel merges with the stack of a thread. */
static void merged(void) {
    size_t bytes = 1 << 20;
    char *both = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    /* Below the stack, which is the upper half. */
    table = (void **)both;
    if (both == MAP_FAILED || pthread_attr_setstack(&attributes, both + bytes, bytes) ||
        pthread_create(&thread, &attributes, idle, NULL))
        abort();
}

/* The only pointers are in the middle of an object that is not touched elsewhere. */
static void sparse(void) {
    start = malloc(16ul << 30);
    if (start == NULL)
        abort();
    table = (void **)(start + (8ul << 30));
}

static void nothing(int signal) { (void)signal; }

/* Real-time signals come all the time. */
static void signals(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2};
    struct itimerspec often = {{0, 50000}, {0, 50000}};
    timer_t timer;
    signal(SIGRTMIN + 2, nothing);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &often, NULL))
        abort();
}

/* A thread waits in the kernel for its child, which ends when this process does. The child says
 * ready, since the thread waits from then on. */
static void *wait_for_child(void *pipes) {
    char c;
    if (vfork() == 0) {
        close(((int *)pipes)[1]);
        if (write(1, "ready\n", 6) != 6 || read(((int *)pipes)[0], &c, 1) < 0)
            _exit(1);
        _exit(0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    static void *some[100];
    static int pipes[2];
    const char *edge = argc > 1 ? argv[1] : "";
    table = some;
    if (!strcmp(edge, "guard"))
        guard();
    else if (!strcmp(edge, "merged"))
        merged();
    else if (!strcmp(edge, "sparse"))
        sparse();
    else if (!strcmp(edge, "signals"))
        signals();
    fill();
    scrub();
    if (!strcmp(edge, "vfork")) {
        pthread_t thread;
        if (pipe(pipes) || pthread_create(&thread, NULL, wait_for_child, pipes))
            abort();
    } else {
        puts("ready");
        fflush(stdout);
    }
    for (char c; read(0, &c, 1) < 0;)
        continue;
    exit(0);
}
