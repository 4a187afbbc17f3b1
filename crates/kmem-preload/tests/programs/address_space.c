/* Uses most of a limited address space. Arguments: CASE [SIZE]. "one" allocates 90 % of the limit,
 * three times. "many" allocates blocks of SIZE bytes. "later" sets the limit itself: then threads
 * and libraries must have room. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

static void *body(void *unused)
{
	return unused;
}

static size_t limit_now(void)
{
	struct rlimit limit;
	REQUIRE(getrlimit(RLIMIT_AS, &limit) == 0);
	return limit.rlim_cur;
}

static void all_but_the_heap_works(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, body, NULL) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
	      MAP_FAILED);
	CHECK(dlopen("libm.so.6", RTLD_NOW) != NULL);
}

/* Returns how many bytes it got. */
static size_t use_up(size_t size)
{
	size_t got = 0;
	while (malloc(size))
		got += size;
	return got;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	if (!strcmp(argv[1], "one"))
		for (int i = 0; i < 3; i++) {
			void *volatile block = malloc(limit_now() / 100 * 90);
			CHECK(block != NULL);
			free(block);
		}
	if (!strcmp(argv[1], "many")) {
		size_t got = use_up(strtoul(argv[2], NULL, 10));
		CHECK_AT(got >= limit_now() / 100 * 90, got);
	}
	if (!strcmp(argv[1], "later")) {
		struct rlimit limit = { 1024 * MIB, 1024 * MIB };
		CHECK(setrlimit(-1, &limit) == -1 && errno == EINVAL);
		if (argc > 2)
			REQUIRE(prlimit(getpid(), RLIMIT_AS, &limit, NULL) == 0);
		else
			REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
		REQUIRE(limit_now() == limit.rlim_cur);
		all_but_the_heap_works();
		size_t got = use_up(3 * MIB);
		CHECK_AT(got >= 750 * MIB, got);
	}
	return RESULT();
}
