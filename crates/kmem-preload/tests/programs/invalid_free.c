/* Frees, reallocs or asks the size of something malloc never gave: VERB CASE [OFFSET]. */
#include "misuse.h"
#include <dlfcn.h>
#include <sys/mman.h>

static char data_word[256] __attribute__((aligned(64))) = { 1 };
static char bss_word[256] __attribute__((aligned(64)));
static __thread char thread_word[64];

static void *target(const char *name, size_t offset)
{
	if (is(name, "interior_of_small"))
		return (char *)malloc(64) + offset;
	if (is(name, "interior_of_medium"))
		return (char *)malloc(20000) + offset;
	if (is(name, "interior_of_large"))
		return (char *)malloc(MIB) + offset;
	if (is(name, "interior_of_huge"))
		return (char *)malloc(64 * MIB) + offset;
	if (is(name, "interior_of_aligned"))
		return (char *)memalign(4096, 10000) + offset;
	if (is(name, "before_small"))
		return (char *)malloc(64) - offset;
	if (is(name, "freed")) {
		void *block = malloc(offset ? offset : 64);
		free(block);
		return opaque(block);
	}
	if (is(name, "stack")) {
		char *here = __builtin_frame_address(0);
		return (char *)((uintptr_t)here & ~(uintptr_t)63) + offset;
	}
	if (is(name, "data"))
		return data_word + offset;
	if (is(name, "bss"))
		return bss_word + offset;
	if (is(name, "thread_local"))
		return thread_word + offset;
	if (is(name, "literal"))
		return (char *)"a literal" + offset;
	if (is(name, "code"))
		return (char *)(uintptr_t)&target + offset;
	if (is(name, "libc_code"))
		return dlsym(RTLD_DEFAULT, "qsort");
	if (is(name, "mapped")) {
		char *map = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REQUIRE(map != MAP_FAILED);
		return map + offset;
	}
	if (is(name, "unmapped")) {
		char *map = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REQUIRE(map != MAP_FAILED);
		munmap(map, 8 * MIB);
		return map + offset;
	}
	if (is(name, "break"))
		return (char *)sbrk(65536) + offset;
	if (is(name, "environment"))
		return getenv("PATH") - 5;
	if (is(name, "far_behind_small"))
		return (char *)malloc(64) + offset;
	if (is(name, "number"))
		return (void *)offset;
	passed(NO_SUCH_CASE);
	return NULL;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	/* Not empty, so that there is metadata to walk into. */
	for (int i = 0; i < 100; i++)
		REQUIRE(malloc((size_t)i * 50) != NULL);
	void *pointer = target(argv[2], argc > 3 ? strtoul(argv[3], NULL, 0) : 0);
	announce(pointer);
	pointer = opaque(pointer);
	if (is(argv[1], "free")) {
		free(pointer);
	} else if (is(argv[1], "realloc")) {
		if (realloc(pointer, 1000) == NULL)
			return passed(REFUSED);
	} else if (is(argv[1], "usable_size")) {
		if (malloc_usable_size(pointer) == 0)
			return passed(REFUSED);
	} else {
		return passed(NO_SUCH_CASE);
	}
	go_on(64);
	go_on(20000);
	return passed(UNNOTICED);
}
