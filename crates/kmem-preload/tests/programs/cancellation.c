/* Threads are cancelled between and, with "async", inside allocator calls; the others go on: CASE
 * ROUNDS. */
#include "check.h"
#include <pthread.h>

static void *body(void *barrier)
{
	uint64_t state = 3;
	void *blocks[100] = { NULL };
	pthread_barrier_wait(barrier);
	for (;;) {
		int slot = (int)(next_random(&state) % 100);
		free(blocks[slot]);
		blocks[slot] = malloc(next_random(&state) % 50000);
		pthread_testcancel();
	}
	return NULL;
}

static void *asynchronous_body(void *barrier)
{
	int old;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
	return body(barrier);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	void *(*function)(void *) = strcmp(argv[1], "async") ? body : asynchronous_body;
	int rounds = atoi(argv[2]);
	for (int i = 0; i < rounds; i++) {
		pthread_barrier_t barrier;
		pthread_t threads[2];
		pthread_barrier_init(&barrier, NULL, 3);
		for (int j = 0; j < 2; j++)
			REQUIRE(pthread_create(&threads[j], NULL, function, &barrier) == 0);
		pthread_barrier_wait(&barrier);
		for (int j = 0; j < i % 50; j++)
			free(opaque(malloc((size_t)j * 100)));
		for (int j = 0; j < 2; j++) {
			void *result;
			pthread_cancel(threads[j]);
			pthread_join(threads[j], &result);
			CHECK(result == PTHREAD_CANCELED);
		}
		for (size_t size = 1; size < 4 * MIB; size = size * 3 + 1)
			free(opaque(malloc(size)));
	}
	return RESULT();
}
