/* A program that says itself what pages it has free, and fragments them when told to. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *kmem_alloc_pages_noprof(unsigned flags, unsigned order);
extern void kmem_free_pages(void *pages, unsigned order);
extern int malloc_trim(size_t);

enum { BLOCKS = 4096 };
static void *blocks[BLOCKS];

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    /* All of them out, then every second one back: single pages between others. */
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = kmem_alloc_pages_noprof(0, 0);
    int free_pages = 0;
    for (int i = 0; i < BLOCKS; i++)
        if ((uintptr_t)blocks[i] / 4096 % 2) {
            kmem_free_pages(blocks[i], 0);
            free_pages++;
        }
    /* Nothing is left on CPUs. */
    malloc_trim(0);
    printf("%d\nready\n", free_pages);
    getchar();
    for (int i = 0; i < BLOCKS; i++)
        if (!((uintptr_t)blocks[i] / 4096 % 2))
            kmem_free_pages(blocks[i], 0);
    malloc_trim(0);
    printf("ready\n");
    getchar();
    abort();
}
