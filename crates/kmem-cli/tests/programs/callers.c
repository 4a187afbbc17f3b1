/* One allocating function with two callers, or one with -DONE. With -DWRAPPED it allocates through
 * a function with the name of a wrapper.
 * Each byte on standard input starts a round of calls. */
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static void *volatile last;

#ifdef WRAPPED
NOINLINE static void *xmalloc(size_t size) { return malloc(size); }
#define malloc xmalloc
#endif

NOINLINE static void make(size_t size) { last = malloc(size); }

NOINLINE static void load(void) {
    for (int i = 0; i < 300; i++)
        make(100);
    last = 0;
}

NOINLINE static void build(void) {
    for (int i = 0; i < 200; i++)
        make(1000);
    last = 0;
}

NOINLINE static void both(void) {
    load();
#ifndef ONE
    build();
#endif
    last = 0;
}

int main(void) {
    char c;
    do {
        if (write(1, "ready\n", 6) != 6)
            return 1;
        if (read(0, &c, 1) != 1)
            return 0;
        both();
    } while (1);
}
