/* A program that prints its count of free pages, and fragments them on request. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 4096 };
static void *blocks[BLOCKS];

int main(void) {
    /* A symbol of the preloaded library. */
    void *(*alloc)(unsigned, unsigned) = dlsym(RTLD_DEFAULT, "kmem_alloc_pages_noprof");
    void (*release)(void *, unsigned) = dlsym(RTLD_DEFAULT, "kmem_free_pages");
    if (!alloc || !release)
        return 1;
    /* Without a buffer, which the first use of a stream would allocate. */
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    /* Allocates all of them, then frees every second one: single free pages. */
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = alloc(0, 0);
    int free_pages = 0;
    for (int i = 0; i < BLOCKS; i++)
        if ((uintptr_t)blocks[i] / 4096 % 2) {
            release(blocks[i], 0);
            free_pages++;
        }
    /* CPUs keep no pages. */
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
