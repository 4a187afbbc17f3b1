/* A library whose functions are chosen at their first call, by code that allocates. */
#include <stdlib.h>

static void chosen(void) {
}

/* The dynamic linker calls it, from the first call of a function through the PLT. */
static void (*choose(void))(void) {
    void *volatile at = malloc(100);
    free(at);
    return chosen;
}

void first(void) __attribute__((ifunc("choose")));
void second(void) __attribute__((ifunc("choose")));
