/* Allocates below code that was made at run time, which has no table of frames. One piece of it has
 * a frame pointer of its own, and another one has none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

extern int sampler_on;

typedef void Call(void (*)(void));

static NOINLINE void allocate(void) {
    void *volatile at = malloc(100);
    free(at);
}

/* It keeps the frame pointer of its caller. */
static NOINLINE void run(Call *code) {
    code(allocate);
    __asm__ volatile("");
}

static NOINLINE __attribute__((optimize("no-omit-frame-pointer"))) void run_in_frame(Call *code) {
    run(code);
    __asm__ volatile("");
}

static Call *make(const void *code, size_t len) {
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
    if (at == MAP_FAILED)
        exit(1);
    return memcpy(at, code, len);
}

int main(void) {
    /* push rbp; mov rbp, rsp; push 0; push 0; call rdi; leave; ret */
    static const unsigned char with[] = {0x55, 0x48, 0x89, 0xe5, 0x6a, 0,
                                         0x6a, 0,    0xff, 0xd7, 0xc9, 0xc3};
    /* sub rsp, 24; call rdi; add rsp, 24; ret */
    static const unsigned char without[] = {0x48, 0x83, 0xec, 0x18, 0xff, 0xd7,
                                            0x48, 0x83, 0xc4, 0x18, 0xc3};
    Call *calls[] = {make(with, sizeof with), make(without, sizeof without)};
    for (int i = 0; i < 20; i++) {
        sampler_on = 1;
        run_in_frame(calls[i % 2]);
        sampler_on = 0;
    }
    printf("%p %p\nready\n", (void *)calls[0], (void *)calls[1]);
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
