/* Allocates and frees in rounds. Each byte on standard input starts one, and a line answers it. */
#include <stdlib.h>
#include <unistd.h>

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
        if (write(1, "ready\n", 6) != 6)
            return 1;
    } while (read(0, &c, 1) == 1);
    return 0;
}
