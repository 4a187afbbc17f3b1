/* Forks while other threads get and free objects of no bytes: FORKS THREADS. Each thread fills
 * several slabs and empties them again. Such slabs cannot be accessed. A child can access all
 * other memory. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

enum { OBJECTS = 12000, BLOCKS = 128, BYTES = 60000 };

static int stop;

static void *make_and_empty_slabs(void *unused)
{
	void **objects = calloc(OBJECTS, sizeof *objects);
	REQUIRE(objects != NULL);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		for (int i = 0; i < OBJECTS; i++)
			REQUIRE((objects[i] = malloc(0)) != NULL);
		for (int i = 0; i < OBJECTS; i++)
			free(objects[i]);
	}
	free(objects);
	return unused;
}

static void child(void)
{
	alarm(HUNG);
	static char *blocks[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		REQUIRE((blocks[i] = malloc(BYTES)) != NULL);
		fill(blocks[i], BYTES, (unsigned)i);
	}
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(holds(blocks[i], BYTES, (unsigned)i));
		free(blocks[i]);
	}
	_exit(RESULT());
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	int forks = atoi(argv[1]), threads = atoi(argv[2]);
	pthread_t workers[16];
	REQUIRE(threads <= 16);
	for (int i = 0; i < threads; i++)
		REQUIRE(pthread_create(&workers[i], NULL, make_and_empty_slabs, NULL) == 0);
	for (int i = 0; i < forks; i++) {
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0)
			child();
		int status = 0;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		REQUIRE(status == 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < threads; i++)
		pthread_join(workers[i], NULL);
	return RESULT();
}
