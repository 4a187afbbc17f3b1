/* fork takes the lock of all open streams while other threads hold stream locks and want memory:
 * SECONDS. An allocator that takes its own locks before a fork deadlocks here. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static int stop;

static int running(void)
{
	return !__atomic_load_n(&stop, __ATOMIC_RELAXED);
}

static void *grow_memory_streams(void *unused)
{
	while (running()) {
		char *text = NULL;
		size_t length = 0;
		FILE *stream = open_memstream(&text, &length);
		REQUIRE(stream != NULL);
		for (int i = 0; i < 100; i++)
			fputs("some text that makes the buffer grow and grow ", stream);
		fclose(stream);
		free(text);
	}
	return unused;
}

static void *open_and_close(void *unused)
{
	while (running()) {
		FILE *stream = fopen("/dev/null", "w");
		REQUIRE(stream != NULL);
		fputs("text", stream);
		fclose(stream);
	}
	return unused;
}

static void *flush_all(void *unused)
{
	while (running())
		fflush(NULL);
	return unused;
}

static void *allocate(void *unused)
{
	uint64_t state = 4711;
	while (running()) {
		void *blocks[50];
		for (int i = 0; i < 50; i++)
			blocks[i] = malloc(next_random(&state) % 5000);
		for (int i = 0; i < 50; i++)
			free(blocks[i]);
	}
	return unused;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	double end = seconds_now() + strtod(argv[1], NULL);
	void *(*work[])(void *) = { grow_memory_streams, grow_memory_streams, open_and_close,
				    flush_all, allocate };
	enum { THREADS = sizeof work / sizeof *work };
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_create(&threads[i], NULL, work[i], NULL) == 0);
	long forks = 0;
	/* Some at least, however slow the machine is. */
	while (seconds_now() < end || forks <= 3) {
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			alarm(HUNG);
			char *text = NULL;
			size_t length = 0;
			FILE *stream = open_memstream(&text, &length);
			REQUIRE(stream != NULL);
			fprintf(stream, "child %d", 1);
			fclose(stream);
			free(text);
			_exit(0);
		}
		int status = 0;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK_AT(status == 0, status);
		forks++;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return RESULT();
}
