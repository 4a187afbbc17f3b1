/* Objects that are reached in every way, and objects that are leaked, each kind by its own
 * function. It prints ready, and waits. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

struct node {
    struct node *volatile next;
    char text[40];
};

static void *volatile global;
static __thread void *volatile local;
static char *volatile interior;
static struct node *volatile list;
static int released[2];

NOINLINE static void *by_global(void) { return malloc(100); }
NOINLINE static void *by_thread_local(void) { return malloc(200); }
NOINLINE static void *by_interior(void) { return malloc(300); }
NOINLINE static void *by_stack(void) { return malloc(400); }
NOINLINE static void *by_stack_of_thread(void) { return malloc(500); }
NOINLINE static void *by_large_block(void) { return malloc(600); }
NOINLINE static struct node *by_list(void) { return calloc(1, sizeof(struct node)); }

NOINLINE static void *leaked(void) { return malloc(70); }
NOINLINE static void *leaked_large(void) { return malloc(3 << 20); }
NOINLINE static struct node *leaked_list(void) { return calloc(1, sizeof(struct node)); }
NOINLINE static struct node *leaked_ring(void) { return calloc(1, sizeof(struct node)); }
NOINLINE static void *leaked_by_leak(void) { return malloc(900); }

#ifdef __x86_64__
#define CLEAR(n) __asm__ volatile("pxor %%xmm" #n ", %%xmm" #n : : : "xmm" #n)
#else
#define CLEAR(n) (void)0
#endif

/* Writes over what functions have left in vector registers and on the stack. A new thread has the
 * registers of its maker. The linker saves them on its stack when a function is first called. */
NOINLINE static void scrub(void) {
    CLEAR(0); CLEAR(1); CLEAR(2); CLEAR(3);
    CLEAR(4); CLEAR(5); CLEAR(6); CLEAR(7);
    CLEAR(8); CLEAR(9); CLEAR(10); CLEAR(11);
    CLEAR(12); CLEAR(13); CLEAR(14); CLEAR(15);
    volatile char stale[32 << 10];
    memset((char *)stale, 1, sizeof stale);
}

NOINLINE static void leak(void) {
    for (int i = 0; i < 100; i++)
        memset(leaked(), 1, 70);
    /* A block of many pages, with a pointer behind its first megabyte. */
    char *large = leaked_large();
    memset(large, 1, 3 << 20);
    *(void *volatile *)(large + (2 << 20)) = memset(leaked_by_leak(), 1, 900);
    struct node *next = NULL;
    for (int i = 0; i < 10; i++) {
        struct node *node = leaked_list();
        node->next = next;
        next = node;
    }
    struct node *ring = leaked_ring();
    ring->next = leaked_ring();
    ring->next->next = ring;
}

NOINLINE static void keep(void) {
    global = memset(by_global(), 1, 100);
    local = memset(by_thread_local(), 1, 200);
    interior = (char *)memset(by_interior(), 1, 300) + 150;
    void **large = calloc(1, 1 << 20);
    large[100000] = memset(by_large_block(), 1, 600);
    for (int i = 0; i < 50; i++) {
        struct node *node = by_list();
        node->next = list;
        list = node;
    }
    *(void *volatile *)&list->text[8] = large;
}

static void *thread(void *started) {
    scrub();
    void *volatile own = memset(by_stack_of_thread(), 1, 500);
    *(volatile int *)started = 1;
    if (write(released[1], "x", 1) != 1)
        abort();
    for (;;)
        pause();
    return own;
}

int main(int argc, char **argv) {
    void *volatile own = memset(by_stack(), 1, 400);
    static int started;
    pthread_t other;
    char c;
    keep();
    if (argc < 2 || strcmp(argv[1], "clean"))
        leak();
    scrub();
    if (pipe(released) || pthread_create(&other, NULL, thread, &started) ||
        read(released[0], &c, 1) != 1)
        abort();
    scrub();
    puts("ready");
    fflush(stdout);
    while (argc > 2) {
        void *old = own;
        own = malloc(400);
        free(old);
        usleep(10);
    }
    if (read(0, &c, 1) < 0)
        abort();
    /* Not a return: the other thread and this frame are there while a tool looks for leaks. */
    exit(own == NULL);
}
