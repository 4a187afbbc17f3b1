/* Two threads free the same object at the same moment, again and again, until that is found out. */
#include "check.h"
#include <pthread.h>

static pthread_barrier_t start, end;
static void *volatile shared;

static void *second(void *unused)
{
	(void)unused;
	for (;;) {
		pthread_barrier_wait(&start);
		free(shared);
		pthread_barrier_wait(&end);
	}
}

int main(void)
{
	pthread_t thread;
	pthread_barrier_init(&start, NULL, 2);
	pthread_barrier_init(&end, NULL, 2);
	REQUIRE(pthread_create(&thread, NULL, second, NULL) == 0);
	for (int i = 0; i < 100000; i++) {
		shared = malloc(64);
		pthread_barrier_wait(&start);
		free(shared);
		pthread_barrier_wait(&end);
	}
	return 1;
}
