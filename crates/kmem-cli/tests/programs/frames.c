/* Calls malloc with invalid frame pointers, one kind for each byte on standard input. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define EACH 1000

static void *volatile kept[64 * EACH];
static int next;

/* Calls malloc(size) with this frame pointer. */
void *with_frame(size_t size, uintptr_t frame);
__asm__(".text\n"
        ".type with_frame, @function\n"
        "with_frame:\n"
        "    push %rbp\n"
        "    mov %rsi, %rbp\n"
        "    call malloc@PLT\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size with_frame, . - with_frame\n");

NOINLINE static void many(uintptr_t frame) {
    for (int i = 0; i < EACH; i++)
        kept[next++] = with_frame(100, frame);
}

static void *on_thread(void *arg) {
    many((uintptr_t)arg);
    return NULL;
}

int main(void) {
    /* Above the frames of `many` and of the allocator, where frames of callers are. */
    uintptr_t words[512];
    uintptr_t base = (uintptr_t)words, ret = (uintptr_t)main;
    uintptr_t top = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    for (char line[512]; fgets(line, sizeof line, maps);) {
        uintptr_t from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= base && base < to)
            top = to;
    }
    fclose(maps);
    char *guarded = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(guarded, 4096, PROT_NONE);
    /* Points to itself. */
    words[0] = base, words[1] = ret;
    /* A cycle of two. */
    words[10] = base + 8 * 12, words[11] = ret, words[12] = base + 8 * 10, words[13] = ret;
    /* Downwards. */
    words[20] = base, words[21] = ret;
    /* Invalid return addresses. */
    words[30] = base + 8 * 32, words[31] = 0, words[32] = 0, words[33] = ret;
    words[40] = base + 8 * 42, words[41] = UINTPTR_MAX, words[42] = 0, words[43] = ret;
    /* Ends in memory that is not mapped. */
    words[50] = 0x5000, words[51] = ret;
    words[60] = top - 8, words[61] = ret;
    /* Longer than the longest chain, and across the end of one read. */
    for (int i = 100; i < 500; i += 2)
        words[i] = base + 8 * (i + 2), words[i + 1] = ret;
    words[500] = 0, words[501] = ret;
    const uintptr_t hostile[] = {
        0, 1, 8, 0x5000, UINTPTR_MAX, UINTPTR_MAX - 7, UINTPTR_MAX - 15,
        (uintptr_t)1 << 47, ((uintptr_t)1 << 47) - 8, 0xffff800000000000, 0x8000000000000000,
        base + 1, base + 4, base + 7, base, base + 80, base + 96, base + 160, base + 240,
        base + 320, base + 400, base + 480, base + 800, base + 800 + 8,
        top - 16, top - 8, top - 4, top, top + 8, top + 4096,
        (uintptr_t)guarded, (uintptr_t)guarded + 4096 - 8, (uintptr_t)guarded + 8192 - 8,
        (uintptr_t)main, (uintptr_t)&next,
    };
    const int kinds = sizeof hostile / sizeof *hostile;
    for (int i = 0;; i++) {
        if (i < kinds)
            printf("%d more\nready\n", kinds - i);
        else
            printf("ready\n");
        fflush(stdout);
        char c;
        if (read(0, &c, 1) != 1)
            return 0;
        if (i < kinds)
            many(hostile[i]);
        if (i == kinds - 1) {
            /* On another thread, which has another stack. */
            pthread_t thread;
            pthread_create(&thread, NULL, on_thread, (void *)base);
            pthread_join(thread, NULL);
        }
    }
}
