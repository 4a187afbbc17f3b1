/* Forks from a program whose other threads never stop allocating: FORKS FORKERS THREADS SECONDS.
 * Every child does some hundred operations. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static int stop;
static long forks_left;
static double deadline;
static char *inherited[200];

/* Large blocks are marked at their start only: the point is the allocator's state, not memory
 * bandwidth. */
static size_t marked(size_t size)
{
	return size < 128 ? size : 128;
}

static void mixed_operations(uint64_t state, int count)
{
	char *blocks[32] = { NULL };
	size_t sizes[32] = { 0 };
	for (int i = 0; i < count; i++) {
		int slot = (int)(next_random(&state) % 32);
		uint64_t pick = next_random(&state);
		size_t bound = pick % 100 < 90 ? 1000 : pick % 100 < 97 ? 20000 : 400000;
		size_t size = pick / 100 % bound;
		if (blocks[slot])
			CHECK(holds(blocks[slot], marked(sizes[slot]), (unsigned)slot));
		switch (pick / 7 % 5) {
		case 0:
			free(blocks[slot]);
			blocks[slot] = calloc(1, size);
			REQUIRE(blocks[slot] != NULL);
			CHECK(all_zero(blocks[slot], marked(size)));
			break;
		case 1:
			free(blocks[slot]);
			blocks[slot] = memalign((size_t)16 << (pick % 9), size);
			break;
		case 2:
			size++;
			blocks[slot] = realloc(blocks[slot], size);
			break;
		default:
			free(blocks[slot]);
			blocks[slot] = malloc(size);
		}
		REQUIRE(blocks[slot] != NULL);
		sizes[slot] = size;
		fill(blocks[slot], marked(size), (unsigned)slot);
	}
	for (int slot = 0; slot < 32; slot++)
		free(blocks[slot]);
}

static void *allocate_all_the_time(void *seed)
{
	uint64_t state = (uintptr_t)seed * 7919 + 3;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		mixed_operations(next_random(&state), 300);
	return NULL;
}

static void *thread_in_child(void *unused)
{
	mixed_operations(11, 50);
	return unused;
}

static void child(long number)
{
	alarm(HUNG);
	mixed_operations((uint64_t)number + 1, 300);
	for (int i = 0; i < 200; i++) {
		CHECK(holds(inherited[i], 500, (unsigned)i));
		free(inherited[i]);
	}
	if (number % 16 == 0) {
		pthread_t thread;
		REQUIRE(pthread_create(&thread, NULL, thread_in_child, NULL) == 0);
		pthread_join(thread, NULL);
	}
	if (number % 32 == 0) {
		pid_t grandchild = fork();
		if (grandchild == 0) {
			mixed_operations(77, 100);
			_exit(RESULT());
		}
		int status = 0;
		REQUIRE(waitpid(grandchild, &status, 0) == grandchild && status == 0);
	}
	_exit(RESULT());
}

static void *fork_all_the_time(void *unused)
{
	(void)unused;
	long number;
	while ((number = __atomic_fetch_sub(&forks_left, 1, __ATOMIC_RELAXED)) > 0 &&
	       seconds_now() < deadline) {
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0)
			child(number);
		int status = 0;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK_AT(status == 0, status);
		mixed_operations((uint64_t)number, 20);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 4);
	forks_left = atol(argv[1]);
	int forkers = atoi(argv[2]), threads = atoi(argv[3]);
	long wanted = forks_left;
	deadline = seconds_now() + strtod(argv[4], NULL);
	pthread_t workers[64], forker[64];
	for (int i = 0; i < 200; i++) {
		REQUIRE((inherited[i] = malloc(500)) != NULL);
		fill(inherited[i], 500, (unsigned)i);
	}
	for (int i = 0; i < threads; i++)
		REQUIRE(pthread_create(&workers[i], NULL, allocate_all_the_time,
				       (void *)(uintptr_t)(i + 1)) == 0);
	for (int i = 0; i < forkers; i++)
		REQUIRE(pthread_create(&forker[i], NULL, fork_all_the_time, NULL) == 0);
	for (int i = 0; i < forkers; i++)
		pthread_join(forker[i], NULL);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < threads; i++)
		pthread_join(workers[i], NULL);
	for (int i = 0; i < 200; i++)
		CHECK(holds(inherited[i], 500, (unsigned)i));
	dprintf(1, "%ld forks\n", wanted - (forks_left > 0 ? forks_left : 0));
	return RESULT();
}
