/* Allocates in code that the program did not call. The dynamic linker calls it when it binds a
 * function at the first call, and the kernel calls signal handlers. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define STACK (256 << 10)

extern int sampler_on;

void first(void);
void second(void);

static NOINLINE void take(int number) {
    void *volatile at = malloc(100 + number);
    free(at);
}

static void on_signal(int number) {
    take(number);
    __asm__ volatile("");
}

static NOINLINE void bind(int which) {
    if (which)
        first();
    else
        second();
    __asm__ volatile("");
}

/* Calls itself a few times, and then interrupts itself. */
static NOINLINE void interrupt(int calls) {
    if (calls)
        interrupt(calls - 1);
    else
        raise(SIGUSR1);
    __asm__ volatile("");
}

int main(void) {
    stack_t other = {.ss_size = STACK};
    other.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (other.ss_sp == MAP_FAILED || sigaltstack(&other, NULL))
        return 1;
    sampler_on = 1;
    bind(0);
    bind(1);
    for (int flags = 0; flags < 2; flags++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags ? SA_ONSTACK : 0};
        sigaction(SIGUSR1, &action, NULL);
        for (int i = 0; i < 5; i++)
            interrupt(i);
    }
    sampler_on = 0;
    puts("ready");
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
