// Calls of operator new from library code that is inlined into the program's own.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <unistd.h>
#include <vector>

static void *last;

__attribute__((noinline)) void *operator new(size_t size) {
    last = __builtin_return_address(0);
    return malloc(size);
}
void operator delete(void *p) noexcept { free(p); }
void operator delete(void *p, size_t) noexcept { free(p); }

namespace app {
struct Index {
    std::vector<int> entries;
    std::unique_ptr<long> spare;

    __attribute__((noinline)) void reserve(long n) {
        spare = std::make_unique<long>(n); // line 24
        __asm__ volatile("" : : "r"(spare.get()) : "memory");
    }
    __attribute__((noinline)) void build(int n) {
        entries.push_back(n);
        __asm__ volatile("" : : "r"(entries.data()) : "memory");
    }
};
} // namespace app

int main() {
    app::Index index;
    index.reserve(7);
    printf("unique %lx\n", (unsigned long)last);
    index.build(7);
    printf("pushed %lx\nready\n", (unsigned long)last);
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
