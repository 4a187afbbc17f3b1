/* Allocates and frees in rounds. Each byte on standard input starts one, and a line answers it.
 * The bytes '0' and '1' switch profiling, and '?' expects that there is nothing to switch. */
#include <errno.h>
#include <kmem/tag.h>
#include <stdlib.h>
#include <unistd.h>

/* The library is preloaded. */
__attribute__((weak)) int kmem_profiling_set(int on);
__attribute__((weak)) int kmem_profiling_get(void);

#define NOINLINE __attribute__((noinline))
#define OBJECTS 1000

static void *rounds[64][OBJECTS];
static int first, next;

NOINLINE static void allocate(void) {
    for (int i = 0; i < OBJECTS; i++)
        rounds[next][i] = malloc(100); /* round */
    next++;
}

NOINLINE static void release(void) {
    for (int i = 0; i < OBJECTS; i++)
        free(rounds[first][i]);
    first++;
}

int main(void) {
    char c = 'r';
    do {
        if (c == 'a')
            allocate();
        if (c == 'f')
            release();
        int on = c - '0';
        if ((on == 0 || on == 1) && (kmem_profiling_set(on) || kmem_profiling_get() != on))
            return 2;
        if (c == '?' && (kmem_profiling_set(1) != -ENOTSUP || kmem_profiling_get() != -ENOTSUP))
            return 3;
        if (write(1, "ready\n", 6) != 6)
            return 1;
    } while (read(0, &c, 1) == 1);
    return 0;
}
