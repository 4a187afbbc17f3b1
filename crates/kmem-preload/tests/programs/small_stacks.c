/* Allocates on small stacks, and measures how much stack a call takes: LIMIT in bytes. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

static void every_size(void)
{
	for (size_t size = 1; size < 40 * MIB; size = size * 2 + 1) {
		char *block = malloc(size);
		REQUIRE(block != NULL);
		*block = 1;
		block = realloc(block, size * 3);
		REQUIRE(block != NULL);
		free(block);
		block = calloc(1, size);
		free(opaque(block));
		block = memalign(4096, size);
		free(opaque(block));
	}
	void *blocks[100];
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 100; i++)
			REQUIRE((blocks[i] = malloc(3000)) != NULL);
		for (int i = 0; i < 100; i++)
			free(blocks[i]);
	}
	malloc_trim(0);
}

static void *thread_body(void *unused)
{
	every_size();
	return unused;
}

static volatile int handled;

static void handler(int number)
{
	(void)number;
	every_size();
	handled = 1;
}

enum { STACK = 64 * 1024 };
static unsigned char *stack;
static ucontext_t here, there;
static void (*measured)(void);

static void on_context(void) { measured(); }

/* How deep below the frame of the measured function the stack was written. */
static size_t depth(void (*function)(void))
{
	memset(stack, 0xa7, STACK);
	measured = function;
	REQUIRE(getcontext(&there) == 0);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = STACK;
	there.uc_link = &here;
	makecontext(&there, on_context, 0);
	REQUIRE(swapcontext(&here, &there) == 0);
	size_t untouched = 0;
	while (untouched < STACK && stack[untouched] == 0xa7)
		untouched++;
	return STACK - untouched;
}

static void *kept[3];
static void nothing(void) {}
static void allocate_small(void) { kept[0] = malloc(64); }
static void free_small(void) { free(kept[0]); }
static void allocate_medium(void) { kept[1] = malloc(30000); }
static void free_medium(void) { free(kept[1]); }
static void allocate_large(void) { kept[2] = malloc(70 * MIB); }
static void grow_large(void) { kept[2] = realloc(kept[2], 150 * MIB); }
static void free_large(void) { free(kept[2]); }
static void allocate_aligned(void) { kept[0] = memalign(MIB, 64); }
static void allocate_zeroed(void) { kept[1] = calloc(30, 1000); }
static void trim(void) { malloc_trim(0); }
static void allocate_many(void)
{
	static void *many[2000];
	for (int i = 0; i < 2000; i++)
		many[i] = malloc(100);
	for (int i = 0; i < 2000; i++)
		free(many[i]);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	size_t limit = strtoul(argv[1], NULL, 0);

	/* First of all, so that the paths that run only once are seen. */
	stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(stack != MAP_FAILED);
	size_t base = depth(nothing);
	static const struct {
		const char *name;
		void (*function)(void);
	} steps[] = {
		{ "malloc(64)", allocate_small }, { "malloc(30000)", allocate_medium },
		{ "malloc(70 MiB)", allocate_large }, { "realloc(150 MiB)", grow_large },
		{ "free of 64", free_small }, { "free of 30000", free_medium },
		{ "free of 150 MiB", free_large }, { "memalign(1 MiB, 64)", allocate_aligned },
		{ "calloc(30, 1000)", allocate_zeroed }, { "2000 blocks", allocate_many },
		{ "malloc_trim", trim }, { "free", free_small }, { "free", free_medium },
	};
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		size_t used = depth(steps[i].function) - base;
		if (used > limit) {
			dprintf(2, "%s takes %zu bytes of stack, more than %zu\n", steps[i].name, used, limit);
			check_failures++;
		}
	}

	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	REQUIRE(pthread_attr_setstacksize(&attributes, 16384) == 0);
	for (int i = 0; i < 20; i++) {
		pthread_t threads[4];
		for (int j = 0; j < 4; j++)
			REQUIRE(pthread_create(&threads[j], &attributes, thread_body, NULL) == 0);
		for (int j = 0; j < 4; j++)
			pthread_join(threads[j], NULL);
	}

	size_t handler_stack = (size_t)sysconf(_SC_MINSIGSTKSZ) + 6144;
	void *bottom = mmap(NULL, handler_stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	stack_t alternate = { .ss_sp = bottom, .ss_size = handler_stack };
	REQUIRE(sigaltstack(&alternate, NULL) == 0);
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	CHECK(handled);
	return RESULT();
}
