/* A program that says itself what pages it has free, and fragments them when told to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 4096 };
static void *blocks[BLOCKS];

int main(void) {
    /* Of the library that is preloaded. */
    void *(*alloc)(unsigned, unsigned) = dlsym(RTLD_DEFAULT, "kmem_alloc_pages_noprof");
    void (*release)(void *, unsigned) = dlsym(RTLD_DEFAULT, "kmem_free_pages");
    if (!alloc || !release)
        return 1;
    /* No buffers that come with the first use of a stream. */
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    /* All of them out, then every second one back: single pages between others. */
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = alloc(0, 0);
    int free_pages = 0;
    for (int i = 0; i < BLOCKS; i++)
        if ((uintptr_t)blocks[i] / 4096 % 2) {
            release(blocks[i], 0);
            free_pages++;
        }
    /* Nothing is left on CPUs. */
    malloc_trim(0);
    printf("%d\nready\n", free_pages);
    getchar();
    for (int i = 0; i < BLOCKS; i++)
        if (!((uintptr_t)blocks[i] / 4096 % 2))
            release(blocks[i], 0);
    malloc_trim(0);
    printf("ready\n");
    getchar();
    abort();
}
