// Allocates in many places of glibc, libstdc++ and its own, on several threads, under the sampler.
#include <algorithm>
#include <alloca.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fnmatch.h>
#include <ftw.h>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex.h>
#include <regex>
#include <search.h>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define NOINLINE __attribute__((noinline))

extern std::atomic<int> sampler_on __asm__("sampler_on");

static NOINLINE void take(size_t size) {
    void *volatile at = malloc(size);
    free(at);
}

static int compare(const void *a, const void *b) {
    take(100);
    return *(const int *)a - *(const int *)b;
}

static int compare_with(const void *a, const void *b, void *more) {
    take((size_t)more);
    return *(const int *)b - *(const int *)a;
}

static int visit(const char *path, const struct stat *, int, struct FTW *) {
    free(strdup(path));
    return 0;
}

static int compare_words(const void *a, const void *b) {
    take(20);
    return strcmp((const char *)a, (const char *)b);
}

// Callbacks of the C library, and its own allocations.
static NOINLINE void c_library() {
    int numbers[40];
    for (int i = 0; i < 40; i++)
        numbers[i] = i * 7919 % 40;
    qsort(numbers, 40, sizeof *numbers, compare);
    qsort_r(numbers, 40, sizeof *numbers, compare_with, (void *)200);
    int wanted = 3;
    bsearch(&wanted, numbers, 40, sizeof *numbers, compare);
    // Elements so large that it allocates.
    std::vector<char> large(2000 * 3);
    qsort(large.data(), 3, 2000, compare_words);

    FILE *file = fopen("/proc/self/status", "r");
    char *line = nullptr;
    size_t room = 0;
    while (getline(&line, &room, file) > 0)
        free(strdup(line));
    free(line);
    fclose(file);
    nftw("/proc/self/fdinfo", visit, 4, FTW_PHYS);
    struct dirent **names;
    int count = scandir("/proc/self/fdinfo", &names, nullptr, alphasort);
    while (count > 0)
        free(names[--count]);
    free(names);
    void *root = nullptr;
    for (const char *word : {"one", "two", "three", "four"})
        tsearch(word, &root, compare_words);
    tdestroy(root, [](void *) { take(30); });
    regex_t pattern;
    regcomp(&pattern, "(a|b)*c[[:digit:]]+x?(de)*", REG_EXTENDED);
    regmatch_t matches[3];
    regexec(&pattern, "ababc123dede", 3, matches, 0);
    regfree(&pattern);
    char *text = nullptr;
    if (asprintf(&text, "%.300f %s %d", 1e300, "word", 5) > 0)
        free(text);
}

struct Failure : std::runtime_error {
    using runtime_error::runtime_error;
};

struct Guard {
    int number;
    // Runs while an exception is in flight.
    ~Guard() {
        std::string text(40 + number, 'x');
        take(text.size());
    }
};

static NOINLINE int throwing(int depth) {
    Guard guard{depth};
    if (depth == 0)
        throw Failure("the bottom of a recursion that is long enough to allocate");
    return throwing(depth - 1) + 1;
}

// Strings, streams, containers, and exceptions in flight.
static NOINLINE void cxx_library() {
    std::string text;
    for (int i = 0; i < 200; i++)
        text += char('a' + i % 26);
    std::ostringstream out;
    for (int i = 0; i < 20; i++)
        out << text << i * 1.5 << std::hex << i;
    std::istringstream in(out.str());
    std::string word;
    while (in >> word)
        take(word.size());
    std::map<std::string, std::vector<int>> map;
    for (int i = 0; i < 30; i++)
        map[text.substr(i, 20)].push_back(i);
    for (int depth : {0, 1, 5, 12}) {
        try {
            throwing(depth);
        } catch (const std::exception &failure) {
            take(strlen(failure.what()));
            try {
                std::rethrow_exception(std::current_exception());
            } catch (const Failure &again) {
                take(50);
            }
        }
    }
    try {
        std::vector<int>().at(7);
    } catch (const std::out_of_range &) {
        take(60);
    }
    std::regex pattern("(([a-c]+)|d)*(x|y)?[0-9]{2,4}");
    std::smatch matches;
    std::string subject = "abcabcdabc2024";
    std::regex_match(subject, matches, pattern);
    std::vector<std::string> words;
    for (int i = 0; i < 40; i++)
        words.push_back(std::to_string(i * 7919 % 40) + " and more, so that it is not short");
    std::sort(words.begin(), words.end(), [](const std::string &a, const std::string &b) {
        take(10);
        return a < b;
    });
    auto shared = std::make_shared<std::string>(text);
    std::function<void(int)> again = [&](int n) {
        take(n);
        if (n > 0)
            again(n - 1);
    };
    again(10);
}

static unsigned random_number(unsigned &state) {
    state = state * 1664525 + 1013904223;
    return state >> 16;
}

// Frames of many sizes and kinds, one in the other, in random order.
template <int N> struct Nest {
    static NOINLINE size_t fixed(int depth, unsigned &state) {
        volatile char room[N * 24 + 8];
        room[0] = 1;
        size_t sum = next(depth, state) + room[0];
        return sum;
    }
    // A frame of a size that varies: it is addressed by a frame pointer.
    static NOINLINE size_t varying(int depth, unsigned &state) {
        volatile char *room = (char *)alloca(random_number(state) % 300 + 1);
        room[0] = 1;
        size_t sum = next(depth, state) + room[0];
        return sum;
    }
    // Many registers in use across calls.
    static NOINLINE size_t busy(int depth, unsigned &state) {
        size_t a = state, b = a * 3, c = b ^ a, d = c * 5, e = d + b, f = e ^ c;
        size_t sum = next(depth, state);
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
        sum += next(depth - 3, state) + a + b + c + d + e + f;
        return sum;
    }
    static NOINLINE size_t __attribute__((optimize("no-omit-frame-pointer")))
    with_pointer(int depth, unsigned &state) {
        volatile int here = depth;
        return next(here, state) + 1;
    }
    static size_t next(int depth, unsigned &state);
};

template <int N> size_t Nest<N>::next(int depth, unsigned &state) {
    if (depth <= 0) {
        take(depth + 100);
        return 0;
    }
    switch (random_number(state) % 4) {
    case 0: return Nest<(N * 5 + 1) % 7>::fixed(depth - 1, state);
    case 1: return Nest<(N * 3 + 2) % 7>::varying(depth - 1, state);
    case 2: return Nest<(N * 3 + 1) % 7>::with_pointer(depth - 1, state);
    default: return Nest<(N * 5 + 3) % 7>::busy(depth - 1, state);
    }
}

static NOINLINE size_t deep(int depth) {
    if (depth == 0) {
        take(70);
        return 0;
    }
    std::string text(depth % 60, 'x');
    return deep(depth - 1) + text.size();
}

static void all(unsigned seed) {
    for (int round = 0; round < 3; round++) {
        c_library();
        cxx_library();
    }
    for (int i = 0; i < 300; i++) {
        unsigned state = seed * 1000 + i % 200;
        Nest<0>::fixed(i % 25 + 1, state);
    }
    deep(200);
}

static const size_t STACK = 256 << 10;

static char *new_stack() {
    return (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static ucontext_t outside, inside;

static void coroutine() {
    cxx_library();
    swapcontext(&inside, &outside);
    unsigned state = 5;
    Nest<0>::fixed(20, state);
}

// A stack that is unmapped again.
static NOINLINE void coroutines() {
    for (int i = 0; i < 5; i++) {
        char *stack = new_stack();
        getcontext(&inside);
        inside.uc_stack.ss_sp = stack;
        inside.uc_stack.ss_size = STACK;
        inside.uc_link = &outside;
        makecontext(&inside, coroutine, 0);
        swapcontext(&outside, &inside);
        take(40);
        swapcontext(&outside, &inside);
        munmap(stack, STACK);
        take(41);
    }
}

static void on_signal(int) {
    unsigned state = 3;
    Nest<0>::fixed(20, state);
}

// Callers of a handler are not found, so this is not sampled.
static NOINLINE void handlers() {
    sampler_on = 0;
    stack_t other = {};
    other.ss_sp = new_stack();
    other.ss_size = STACK;
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    for (int flags : {0, SA_ONSTACK}) {
        action.sa_flags = flags;
        sigaction(SIGUSR1, &action, nullptr);
        raise(SIGUSR1);
    }
    other.ss_flags = SS_DISABLE;
    sigaltstack(&other, nullptr);
    munmap(other.ss_sp, STACK);
    sampler_on = 1;
}

static void *on_own_stack(void *) {
    all(7);
    return nullptr;
}

// Threads on stacks that the program made, and on small ones.
static NOINLINE void stacks() {
    char *stack = new_stack();
    for (bool own : {true, false}) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (own)
            pthread_attr_setstack(&attributes, stack, STACK);
        else
            pthread_attr_setstacksize(&attributes, 128 << 10);
        pthread_t thread;
        pthread_create(&thread, &attributes, on_own_stack, nullptr);
        pthread_join(thread, nullptr);
    }
    munmap(stack, STACK);
}

typedef void *(*Call)(size_t);

// Two libraries, of which one takes the place of the other. Their code differs in the size of a
// frame alone. Returns whether they were at one address.
static bool plugins(const char *first, const char *second) {
    void *before = nullptr;
    bool same = false;
    for (int i = 0; i < 10; i++) {
        void *library = dlopen(i % 2 ? second : first, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        Call call = (Call)dlsym(library, "call");
        for (int j = 0; j < 3; j++)
            free(call(80));
        same |= (void *)call == before;
        before = (void *)call;
        dlclose(library);
    }
    return same;
}

int main(int, char **arguments) {
    sampler_on = 1;
    all(1);
    std::vector<std::thread> threads;
    for (unsigned i = 2; i < 5; i++)
        threads.emplace_back(all, i);
    for (auto &thread : threads)
        thread.join();
    coroutines();
    std::thread(coroutines).join();
    handlers();
    stacks();
    bool same = plugins(arguments[1], arguments[2]);
    sampler_on = 0;
    printf("%s\nready\n", same ? "same" : "apart");
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
