/* Holds COUNT objects of 1000 bytes, says so, and ends as the second word says. The words after
 * "exec" are the program that it becomes, those after "leave" one without kmem. */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) char *hold(size_t bytes)
{
	char *p = malloc(bytes);
	memset(p, 1, bytes);
	return p;
}

__attribute__((noinline)) char *hold_in_child(size_t bytes)
{
	char *p = malloc(bytes);
	memset(p, 2, bytes);
	return p;
}

static void fork_workers(int workers, int count)
{
	for (int i = 0; i < workers; i++) {
		if (fork() == 0) {
			for (int j = 0; j < count; j++)
				hold_in_child(1000);
			exit(0);
		}
	}
	while (wait(NULL) > 0)
		;
}

/* Frees an object again after its word says that it is live, as when two threads free it at the
 * same moment. The word is the one in the chunk of 64 KiB that the first free changes. Then the
 * CPU's array holds the object twice, and gives it back twice: when the program asks for that, or
 * when the array is full. Frees before have filled up the stock of all CPUs. */
static void free_twice_unseen(char *object, int trims)
{
	static char *others[20000];
	for (int i = 0; i < 20000; i++)
		others[i] = malloc(100);
	for (int i = 0; i < 10000; i++)
		free(others[i]);

	static unsigned before[1 << 14];
	unsigned *chunk = (unsigned *)((size_t)object & ~0xffffUL);
	memcpy(before, chunk, sizeof before);
	free(object);
	for (int i = 0; i < 1 << 14; i++) {
		if (chunk[i] != before[i])
			chunk[i] = before[i];
	}
	free(object);
	if (trims)
		malloc_trim(0); /* finds it */
	for (int i = 10000; i < 20000; i++)
		free(others[i]);
	exit(1);
}

static char *of_handler;

static void free_again(int signal)
{
	(void)signal;
	free(of_handler); /* in a handler */
}

/* Frees an object twice, the second time on a stack for signals. */
static void free_in_handler(char *object)
{
	static char stack[64 << 10];
	stack_t own = { .ss_sp = stack, .ss_size = sizeof stack };
	struct sigaction action = { .sa_handler = free_again, .sa_flags = SA_ONSTACK };

	of_handler = object;
	free(object);
	sigaltstack(&own, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
}

static volatile int grown;

/* Has the black box written to again and again: each time that use has grown by 3 %. */
static void *grow(void *unused)
{
	for (; grown < 4000; grown++)
		malloc(1 << 20);
	return unused;
}

/* Functions of kmem's library, which is preloaded. */
struct kmem_cache;
struct kmem_cache *kmem_cache_create_noprof(const char *name, size_t size, size_t align,
					    void (*ctor)(void *)) __attribute__((weak));
void kmem_cache_free(struct kmem_cache *cache, void *object) __attribute__((weak));
void kmem_free_percpu(void *handle) __attribute__((weak));
void kmem_vunmap(const void *at) __attribute__((weak));

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);
	const char *end = argc > 2 ? argv[2] : "";
	for (int i = 0; i < count; i++)
		hold(1000);
	char *freed = hold(100);
	printf("%d\n", getpid());
	fflush(stdout);
	if (strcmp(end, "exit") == 0)
		return 3;
	if (strcmp(end, "abort") == 0)
		abort();
	if (strcmp(end, "segv") == 0)
		*(volatile int *)8 = 1;
	if (strcmp(end, "use") == 0) {
		free(freed);
		*(volatile char *)freed = 1; /* after its free */
	}
	if (strcmp(end, "free") == 0) {
		free(freed);
		free(freed); /* twice */
	}
	if (strcmp(end, "handler") == 0)
		free_in_handler(freed);
	if (strcmp(end, "free_in_child") == 0) {
		if (fork() == 0)
			free(hold_in_child(1000) + 8); /* in the child */
		wait(NULL);
		return 0;
	}
	if (strcmp(end, "trim") == 0)
		free_twice_unseen(freed, 1);
	if (strcmp(end, "flush") == 0)
		free_twice_unseen(freed, 0);
	if (strcmp(end, "busy") == 0) {
		pthread_t thread;
		pthread_create(&thread, NULL, grow, NULL);
		while (grown < 10)
			;
		free(freed);
		free(freed);
	}
	if (strcmp(end, "cache") == 0)
		kmem_cache_free(kmem_cache_create_noprof("mine", 100, 8, NULL), freed); /* cache */
	if (strcmp(end, "percpu") == 0)
		kmem_free_percpu(freed); /* percpu */
	if (strcmp(end, "vmalloc") == 0)
		kmem_vunmap(freed); /* vmalloc */
	if (strcmp(end, "fork") == 0) {
		fork_workers(3, 4000);
		return 0;
	}
	if (strcmp(end, "vfork") == 0) {
		if (vfork() == 0)
			_exit(1);
		wait(NULL);
		hold(1000);
		return 0;
	}
	if (strcmp(end, "leave") == 0)
		unsetenv("LD_PRELOAD");
	if (strcmp(end, "exec") == 0 || strcmp(end, "leave") == 0) {
		execvp(argv[3], argv + 3);
		return 1;
	}
	if (strcmp(end, "grow") == 0)
		for (;;)
			hold(100000);
	for (;;)
		pause();
}
