/* A child that shares the parent's memory allocates and frees before it becomes another program:
 * ROUNDS. */
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static int stop;

/* Replaces small blocks at random and looks whether another thread or process wrote to them. */
static void churn(uint64_t seed, int rounds, const int *ended)
{
	enum { SLOTS = 64 };
	char *blocks[SLOTS] = { NULL };
	size_t sizes[SLOTS] = { 0 };
	uint64_t state = seed;
	for (int i = 0; i < rounds && !__atomic_load_n(ended, __ATOMIC_RELAXED); i++) {
		int slot = (int)(next_random(&state) % SLOTS);
		if (blocks[slot])
			REQUIRE(holds(blocks[slot], sizes[slot], (unsigned)(seed + (unsigned)slot)));
		free(blocks[slot]);
		sizes[slot] = next_random(&state) % 100;
		REQUIRE((blocks[slot] = malloc(sizes[slot])) != NULL);
		fill(blocks[slot], sizes[slot], (unsigned)(seed + (unsigned)slot));
	}
	for (int slot = 0; slot < SLOTS; slot++)
		free(blocks[slot]);
}

static void *allocate(void *seed)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		churn((uintptr_t)seed, 100000, &stop);
	return NULL;
}

static void *volatile left_by_child, *volatile freed_by_child;

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	int rounds = atoi(argv[1]);
	char *arguments[] = { "true", NULL };
	pthread_t threads[3];
	int never = 0;
	for (uintptr_t i = 0; i < 3; i++)
		REQUIRE(pthread_create(&threads[i], NULL, allocate, (void *)(i * 1000 + 17)) == 0);
	for (int i = 0; i < rounds; i++) {
		freed_by_child = malloc(300);
		left_by_child = NULL;
		pid_t pid = vfork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			churn(99999, 20000, &never);
			free(freed_by_child);
			left_by_child = malloc(400);
			execv("/bin/true", arguments);
			_exit(1);
		}
		int status = 0;
		REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
		REQUIRE(left_by_child != NULL);
		fill(left_by_child, 400, 1);
		CHECK(holds(left_by_child, 400, 1));
		free(left_by_child);

		pid = vfork();
		REQUIRE(pid >= 0);
		if (pid == 0)
			_exit(7);
		REQUIRE(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);

		REQUIRE(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ) == 0);
		REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
	}
	REQUIRE(system("exit 9") >> 8 == 9);
	FILE *pipe = popen("echo from a pipe", "r");
	REQUIRE(pipe != NULL);
	char *line = NULL;
	size_t capacity = 0;
	REQUIRE(getline(&line, &capacity, pipe) > 0);
	CHECK(strcmp(line, "from a pipe\n") == 0);
	free(line);
	CHECK(pclose(pipe) == 0);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	return RESULT();
}
