/* A program with memory from several call sites and threads. It waits, and then dies as its
 * argument says. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define THREADS 4

static void *volatile kept[THREADS + 1][2000];
static pthread_barrier_t done;

NOINLINE static void small(int thread, int n) {
    for (int i = 0; i < n; i++)
        kept[thread][i] = malloc(16 + 16 * (i % 40)); /* small */
}

NOINLINE static void freed(void) {
    void *volatile all[500];
    for (int i = 0; i < 500; i++)
        all[i] = malloc(200);
    for (int i = 0; i < 500; i += 2)
        free(all[i]);
}

NOINLINE static void touched(int thread) {
    kept[thread][1990] = memset(malloc(700000), 1, 700000); /* touched */
}

NOINLINE static void untouched(int thread) {
    kept[thread][1991] = malloc(5 << 20); /* untouched */
}

static void *work(void *arg) {
    int thread = (int)(size_t)arg;
    small(thread, 300 * thread);
    touched(thread);
    pthread_barrier_wait(&done);
    for (;;)
        pause();
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    pthread_barrier_init(&done, NULL, THREADS + 1);
    for (size_t i = 1; i <= THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    small(0, 1000);
    freed();
    untouched(0);
    pthread_barrier_wait(&done);
    if (write(1, "ready\n", 6) < 0)
        return 1;
    char c;
    if (read(0, &c, 1) < 0)
        return 1;
    if (!strcmp(how, "segv"))
        *(volatile int *)8 = 1;
    abort();
}
