/* Handlers registered with pthread_atfork allocate and free, before and after those of the
 * allocator: FORKS. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static int stop;
static __thread void *carried[3];
static long calls[3];

static void use_memory(int step)
{
	for (int i = 0; i < 50; i++)
		free(opaque(malloc((size_t)i * 100)));
	free(carried[step]);
	carried[step] = malloc(1000);
	REQUIRE(carried[step] != NULL);
	fill(carried[step], 1000, (unsigned)step);
	__atomic_fetch_add(&calls[step], 1, __ATOMIC_RELAXED);
}

static void prepare(void) { use_memory(0); }
static void parent(void)
{
	CHECK(holds(carried[0], 1000, 0));
	use_memory(1);
}
static void child(void)
{
	CHECK(holds(carried[0], 1000, 0));
	use_memory(2);
}

__attribute__((constructor)) static void register_early(void)
{
	pthread_atfork(prepare, parent, child);
}

static void *allocate(void *unused)
{
	uint64_t state = 5;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		free(opaque(malloc(next_random(&state) % 100000)));
	return unused;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	int forks = atoi(argv[1]);
	pthread_atfork(prepare, parent, child);
	pthread_atfork(NULL, NULL, child);
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		REQUIRE(pthread_create(&threads[i], NULL, allocate, NULL) == 0);
	for (int i = 0; i < forks; i++) {
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			alarm(HUNG);
			CHECK(calls[2] == 3);
			use_memory(0);
			_exit(RESULT());
		}
		int status = 0;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK_AT(status == 0, status);
	}
	CHECK(calls[0] == 2 * forks && calls[1] == 2 * forks);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return RESULT();
}
