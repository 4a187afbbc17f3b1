/* Frees a block twice: CASE [SIZE]. */
#include "misuse.h"
#include <pthread.h>

static void *block;
static pthread_barrier_t barrier;

static void *free_it(void *unused)
{
	(void)unused;
	free(block);
	return NULL;
}

static void *free_at_barrier(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&barrier);
	free(block);
	return NULL;
}

static void *allocate_and_free(void *size)
{
	block = malloc((size_t)size);
	REQUIRE(block != NULL);
	free(block);
	return NULL;
}

static void in_thread(void *(*work)(void *), void *argument)
{
	pthread_t thread;
	REQUIRE(pthread_create(&thread, NULL, work, argument) == 0);
	REQUIRE(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	const char *name = argv[1];
	size_t size = argc > 2 ? strtoul(argv[2], NULL, 0) : 64;

	block = malloc(size);
	REQUIRE(block != NULL);
	if (is(name, "immediate")) {
		announce(block);
		free(block);
		free(opaque(block));
	} else if (is(name, "after_other_frees")) {
		void *others[1000];
		for (int i = 0; i < 1000; i++)
			REQUIRE((others[i] = malloc(size)) != NULL);
		announce(block);
		free(block);
		for (int i = 0; i < 1000; i++)
			free(others[i]);
		free(opaque(block));
	} else if (is(name, "after_frees_of_other_sizes")) {
		void *others[500];
		for (int i = 0; i < 500; i++)
			REQUIRE((others[i] = malloc(size + 200 + (size_t)i * 30)) != NULL);
		announce(block);
		free(block);
		for (int i = 0; i < 500; i++)
			free(others[i]);
		free(opaque(block));
	} else if (is(name, "from_another_thread")) {
		announce(block);
		free(block);
		in_thread(free_it, NULL);
	} else if (is(name, "first_by_another_thread")) {
		announce(block);
		in_thread(free_it, NULL);
		free(block);
	} else if (is(name, "after_thread_exit")) {
		in_thread(allocate_and_free, (void *)size);
		announce(block);
		free(block);
	} else if (is(name, "by_two_threads_at_once")) {
		pthread_t threads[2];
		pthread_barrier_init(&barrier, NULL, 2);
		announce(block);
		for (int i = 0; i < 2; i++)
			REQUIRE(pthread_create(&threads[i], NULL, free_at_barrier, NULL) == 0);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
	} else if (is(name, "after_trim")) {
		announce(block);
		free(block);
		malloc_trim(0);
		free(opaque(block));
	} else if (is(name, "of_aligned")) {
		block = memalign(4096, size);
		REQUIRE(block != NULL);
		announce(block);
		free(block);
		free(opaque(block));
	} else if (is(name, "after_realloc_moved")) {
		void *barrier_block = malloc(size);
		void *moved = realloc(block, size * 50 + 5000);
		REQUIRE(moved != NULL && barrier_block != NULL && moved != block);
		announce(block);
		free(opaque(block));
	} else if (is(name, "after_realloc_to_nothing")) {
		announce(block);
		if (realloc(block, 0) != NULL)
			return passed(HARMLESS);
		free(opaque(block));
	} else if (is(name, "in_forked_child")) {
		announce(block);
		free(block);
		if (fork() == 0)
			free(opaque(block));
		else
			free(opaque(block));
	} else {
		return passed(NO_SUCH_CASE);
	}
	go_on(size);
	return passed(UNNOTICED);
}
