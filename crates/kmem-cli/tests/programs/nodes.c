/* A program with memory of two nodes: CPU n is of node n. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static void *volatile kept[1000];

NOINLINE static void near(void) {
    for (int i = 0; i < 100; i++)
        kept[i] = malloc(1000); /* near */
}

NOINLINE static void far(void) {
    for (int i = 0; i < 300; i++)
        kept[100 + i] = malloc(1000); /* far */
    kept[999] = malloc(1 << 20); /* large */
}

static void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set))
        abort();
}

int main(void) {
    char byte;
    run_on(0);
    near();
    run_on(1);
    far();
    puts("ready");
    fflush(stdout);
    return read(0, &byte, 1) < 0;
}
