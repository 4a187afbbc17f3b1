/* Prints return addresses of calls whose places are known, then waits. */
#include <stdio.h>
#include <unistd.h>

#ifndef SHARED
#define NOINLINE __attribute__((noinline))
NOINLINE void *here(void) { return __builtin_return_address(0); }

NOINLINE static void *in_static(void) {
    void *p = here(); /* line 10 */
    __asm__ volatile("" : "+r"(p));
    return p;
}

static inline __attribute__((always_inline)) void *inlined(void) {
    void *p = here(); /* line 16 */
    __asm__ volatile("" : "+r"(p));
    return p;
}

NOINLINE void *outer(void) {
    void *p = inlined();
    __asm__ volatile("" : "+r"(p));
    return p;
}
#ifdef WITH_LIBRARY
void *in_library(void *(*)(void));
#endif

int main(void) {
    printf("in_static %lx\n", (unsigned long)in_static());
    printf("outer %lx\n", (unsigned long)outer());
#ifdef WITH_LIBRARY
    printf("in_library %lx\n", (unsigned long)in_library(here));
#endif
    printf("ready\n");
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
#else
void *in_library(void *(*f)(void)) {
    void *p = f(); /* line 43 */
    __asm__ volatile("" : "+r"(p));
    return p;
}
#endif
