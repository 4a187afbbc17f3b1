/* Makes known counts of calls from known call sites in four threads, prints them, and waits. */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define THREADS 4
#define ROUNDS 200
#define OBJECTS 100

struct counts {
    atomic_llong calls, bytes, frees, freed;
};
enum { SMALL, ZEROED, GROWN, LARGE, ALIGNED, RESIZED, SITES };
static const char *const names[SITES] = {"small", "zeroed", "grown", "large", "aligned", "resized"};
static struct counts counts[SITES];
/* Objects of each thread, for another one to free. */
static void *given[THREADS][OBJECTS];
static pthread_barrier_t barrier;

static void *got(int site, void *at) {
    counts[site].calls++;
    counts[site].bytes += malloc_usable_size(at);
    return at;
}

static void gone(int site, size_t size) {
    counts[site].frees++;
    counts[site].freed += size;
}

NOINLINE static void drop(int site, void *at) {
    gone(site, malloc_usable_size(at));
    free(at);
}

NOINLINE static void *small(int i) { return got(SMALL, malloc(1 + 40 * (i % 30))); }
NOINLINE static void *zeroed(int i) { return got(ZEROED, calloc(3, 1 + 11 * i)); }
NOINLINE static void *large(int i) { return got(LARGE, malloc(40000 + 5000 * i)); }
NOINLINE static void *aligned(int i) { return got(ALIGNED, aligned_alloc(512, 512 * (1 + i % 4))); }
/* The old size counts as freed at its own call site, whether the object moves or not. */
NOINLINE static void *grown(void *at) {
    size_t size = malloc_usable_size(at);
    gone(SMALL, size);
    return got(GROWN, realloc(at, 10 * size));
}
NOINLINE static void *resized(int site, void *at, size_t size) {
    gone(site, malloc_usable_size(at));
    return got(RESIZED, realloc(at, size));
}

static void *work(void *arg) {
    int me = (int)(size_t)arg;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < OBJECTS; i++)
            given[me][i] = small(i + round);
        pthread_barrier_wait(&barrier);
        void **theirs = given[(me + round) % THREADS];
        for (int i = 0; i < OBJECTS; i++) {
            if (i % 10 == 0)
                drop(GROWN, grown(theirs[i]));
            else if (i % 10 != 1 || round % 10 != 0) /* the rest stays */
                drop(SMALL, theirs[i]);
        }
        void *a = zeroed(round), *b = large(round % 40), *c = aligned(round);
        if (round % 3)
            drop(ZEROED, a);
        /* In place: a page run that shrinks, or grows; an object of the same class. */
        b = resized(LARGE, b, malloc_usable_size(b) * (round % 2 ? 2 : 1) - 20000);
        b = resized(RESIZED, b, malloc_usable_size(b) - 1);
        if (round % 20)
            drop(RESIZED, b);
        void *d = resized(SMALL, small(29), 40 * 29);
        if (round % 7)
            drop(RESIZED, d);
        drop(ALIGNED, c);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void) {
    char c;
    if (write(1, "ready\n", 6) < 0 || read(0, &c, 1) < 1)
        return 1;
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SITES; i++)
        printf("%s %lld %lld %lld %lld\n", names[i], counts[i].calls, counts[i].bytes,
               counts[i].frees, counts[i].freed);
    printf("ready\n");
    fflush(stdout);
    return read(0, &c, 1) < 0;
}
