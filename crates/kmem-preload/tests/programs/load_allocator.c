/* A program on the C library's malloc loads the allocator at run time and uses it beside its own:
 * LIBRARY. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static void *(*their_malloc)(size_t);
static void *(*their_realloc)(void *, size_t);
static void (*their_free)(void *);
static size_t (*their_usable_size)(void *);

static void *work(void *seed)
{
	uint64_t state = (uintptr_t)seed * 977 + 1;
	char *blocks[200] = { NULL };
	size_t sizes[200] = { 0 };
	for (int i = 0; i < 20000; i++) {
		int slot = (int)(next_random(&state) % 200);
		if (blocks[slot]) {
			CHECK(holds(blocks[slot], sizes[slot], (unsigned)slot));
			their_free(blocks[slot]);
		}
		sizes[slot] = next_random(&state) % 3000;
		blocks[slot] = their_malloc(sizes[slot]);
		REQUIRE(blocks[slot] != NULL);
		fill(blocks[slot], sizes[slot], (unsigned)slot);
		free(malloc(sizes[slot]));
	}
	for (int slot = 0; slot < 200; slot++)
		their_free(blocks[slot]);
	return NULL;
}

static void *wait_then_work(void *gate)
{
	pthread_barrier_wait(gate);
	pthread_barrier_wait(gate);
	return work((void *)99);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	/* A thread that is older than the library must be able to use it. */
	pthread_barrier_t gate;
	pthread_t old_thread, threads[4];
	pthread_barrier_init(&gate, NULL, 2);
	REQUIRE(pthread_create(&old_thread, NULL, wait_then_work, &gate) == 0);
	pthread_barrier_wait(&gate);

	void *own = malloc(1000);
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		dprintf(2, "%s\n", dlerror());
	REQUIRE(library != NULL);
	their_malloc = (void *(*)(size_t))dlsym(library, "malloc");
	their_realloc = (void *(*)(void *, size_t))dlsym(library, "realloc");
	their_free = (void (*)(void *))dlsym(library, "free");
	their_usable_size = (size_t(*)(void *))dlsym(library, "malloc_usable_size");
	REQUIRE(their_malloc && their_realloc && their_free && their_usable_size);
	REQUIRE(their_malloc != malloc);

	char *block = their_malloc(100);
	REQUIRE(block != NULL);
	CHECK(their_usable_size(block) >= 100);
	fill(block, 100, 1);
	block = their_realloc(block, 100000);
	REQUIRE(block != NULL);
	CHECK(holds(block, 100, 1));

	pthread_barrier_wait(&gate);
	for (uintptr_t i = 0; i < 4; i++)
		REQUIRE(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	pthread_join(old_thread, NULL);

	/* Closing it must not unmap what still has users. */
	dlclose(library);
	CHECK(holds(block, 100, 1));
	their_free(block);
	their_free(their_malloc(10));
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	REQUIRE(library != NULL);
	CHECK((void (*)(void *))dlsym(library, "free") == their_free);
	their_free(their_malloc(10));
	free(own);
	return RESULT();
}
