/* Grows by a megabyte from 300 call sites for each byte on standard input. An s stands for 50 small
 * objects. Prints its live memory. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define STEP (1 << 20)

static void *last;
static long long live;

#define SITE(n)                                                                                    \
    NOINLINE static void site_##n(size_t size) {                                                   \
        void **at = malloc(size);                                                                  \
        *at = last;                                                                                \
        last = at;                                                                                 \
        live += malloc_usable_size(at);                                                            \
    }
#define TEN(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9)
#define HUNDRED(m, n)                                                                              \
    TEN(m, n##0) TEN(m, n##1) TEN(m, n##2) TEN(m, n##3) TEN(m, n##4)                               \
    TEN(m, n##5) TEN(m, n##6) TEN(m, n##7) TEN(m, n##8) TEN(m, n##9)
#define ALL(m) HUNDRED(m, 1) HUNDRED(m, 2) HUNDRED(m, 3)

ALL(SITE)
#define ENTRY(n) site_##n,
static void (*const sites[])(size_t) = {ALL(ENTRY)};

NOINLINE static void small(void) {
    void **at = malloc(300);
    *at = last;
    last = at;
}

int main(void) {
    unsigned random = 1;
    for (;;) {
        printf("%lld\nready\n", live);
        fflush(stdout);
        char c;
        if (read(0, &c, 1) != 1)
            return 0;
        if (c == 's') {
            for (int i = 0; i < 50; i++)
                small();
            continue;
        }
        for (long long next = live + STEP; live < next;) {
            random = random * 1664525 + 1013904223;
            unsigned size = 16 + (random >> 8) % 2000;
            /* Some of the allocations are page runs. */
            if (random >> 24 == 7)
                size *= 64;
            sites[(random >> 4) % 300](size);
        }
    }
}
