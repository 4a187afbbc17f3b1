/* A program whose memory is known to the byte. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static void *volatile kept[4096];

NOINLINE static void leak(int n) {
    for (int i = 0; i < n; i++)
        kept[i] = malloc(100); /* leak */
}

NOINLINE static void spike(void) {
    void *volatile all[50];
    for (int i = 0; i < 50; i++)
        all[i] = memset(malloc(1 << 20), 1, 1 << 20); /* spike */
    for (int i = 0; i < 50; i++)
        free(all[i]);
}

NOINLINE static void large(void) {
    kept[4000] = calloc(3, 1 << 20); /* large */
}

NOINLINE static void *pin(void) {
    return malloc(64); /* pin */
}

NOINLINE static void *passing(void) {
    return malloc(64); /* passing */
}

/* 1000 objects that stay, each followed by many that go. */
NOINLINE static void fragment(void) {
    void **all = calloc(1000 * 100, sizeof(void *));
    for (int i = 0; i < 1000; i++) {
        kept[1000 + i] = pin();
        for (int k = 0; k < 100; k++)
            all[i * 100 + k] = passing();
    }
    for (int i = 0; i < 1000 * 100; i++)
        free(all[i]);
    free(all);
}

static void *churn(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    void *slots[256] = {0};
    for (;;) {
        state = state * 1664525 + 1013904223;
        void **slot = &slots[state >> 24];
        free(*slot);
        *slot = malloc(state >> 8 & 0x3fff);
    }
    return NULL;
}

static void wait_for_input(void) {
    puts("ready");
    fflush(stdout);
    char c;
    if (read(0, &c, 1) < 0)
        abort();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    leak(1000);
    large();
    if (!strcmp(what, "spike"))
        spike();
    if (!strcmp(what, "fragment"))
        fragment();
    if (!strcmp(what, "wait") || !strcmp(what, "fragment"))
        wait_for_input();
    if (!strcmp(what, "churn")) {
        for (size_t i = 1; i <= 3; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, churn, (void *)i);
        }
        wait_for_input();
    }
    if (!strcmp(what, "fork")) {
        if (fork() == 0) {
            leak(2000); /* twice as many: the first thousand leaks */
            _exit(0);
        }
        wait(NULL);
    }
    if (!strcmp(what, "kill"))
        raise(9);
    return 7;
}
