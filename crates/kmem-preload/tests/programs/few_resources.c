/* Runs with next to no descriptors, stack or locked memory: CASE. */
#include "check.h"
#include <pthread.h>

static void *body(void *unused)
{
	uint64_t state = 4;
	for (int i = 0; i < 20000; i++) {
		size_t size = next_random(&state) % (i % 50 ? 2000 : 2 * MIB);
		char *block = malloc(size + 1);
		REQUIRE(block != NULL);
		block[size] = 1;
		free(block);
	}
	return unused;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	struct rlimit limit = { 3, 3 };
	if (!strcmp(argv[1], "descriptors"))
		REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max = 0;
	if (!strcmp(argv[1], "locked_memory"))
		REQUIRE(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (!strcmp(argv[1], "file_size"))
		REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	pthread_t threads[4];
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 65536);
	for (int i = 0; i < 4; i++)
		REQUIRE(pthread_create(&threads[i], &attributes, body, NULL) == 0);
	body(NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return RESULT();
}
