/* Threads that come and go; each leaves half of its blocks to others. Memory must not grow with the
 * number of threads that ever lived: THREADS. How much free memory is kept changes from moment to
 * moment. So the least near the end is compared with the most near the beginning. */
#include "check.h"
#include <pthread.h>

enum { SHELF = 4096, BLOCKS = 50, AT_ONCE = 8, LOOKS = 20 };
static void *shelf[SHELF];

static void *body(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15 + 1;
	void *own[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		size_t size = 1 + next_random(&state) % (i % 10 ? 500 : 20000);
		REQUIRE((own[i] = malloc(size)) != NULL);
		memset(own[i], 1, size);
	}
	for (int i = 0; i < BLOCKS; i++)
		if (i % 2)
			free(own[i]);
		else
			free(__atomic_exchange_n(&shelf[next_random(&state) % SHELF], own[i], __ATOMIC_ACQ_REL));
	return NULL;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	uintptr_t threads = strtoul(argv[1], NULL, 0);
	size_t early = 0, late = SIZE_MAX;
	uintptr_t next_look = threads / 10;
	for (uintptr_t done = 0; done < threads; done += AT_ONCE) {
		pthread_t ids[AT_ONCE];
		for (uintptr_t i = 0; i < AT_ONCE; i++)
			REQUIRE(pthread_create(&ids[i], NULL, body, (void *)(done + i + 1)) == 0);
		for (int i = 0; i < AT_ONCE; i++)
			pthread_join(ids[i], NULL);
		if (done < next_look)
			continue;
		next_look += threads / LOOKS;
		size_t now = resident_bytes();
		if (done < threads / 10 * 3)
			early = early > now ? early : now;
		else if (done >= threads / 10 * 8)
			late = late < now ? late : now;
	}
	dprintf(1, "resident up to %zu KiB near the beginning, from %zu KiB near the end\n",
		early >> 10, late >> 10);
	CHECK(late < early + early / 20 + 3 * MIB || !runs_on_kmem());
	for (int i = 0; i < SHELF; i++)
		free(shelf[i]);
	return RESULT();
}
