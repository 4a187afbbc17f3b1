/* Frees a block for the second time, or what is no block, at an unusual moment: CASE. */
#include "../misuse.h"
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static void *block;

/* A block that was freed. */
static void *freed(void)
{
	block = malloc(64);
	REQUIRE(block != NULL);
	announce(block);
	free(block);
	return block;
}

/* Ends this process as its child ended. */
static int end_like(pid_t child)
{
	int status = 0;
	REQUIRE(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

static void free_in_handler(int signal)
{
	(void)signal;
	free(block);
}

static int in_handler(void)
{
	freed();
	signal(SIGUSR1, free_in_handler);
	raise(SIGUSR1);
	go_on(64);
	return passed(UNNOTICED);
}

static int in_handler_on_its_stack(void)
{
	static char stack[65536];
	stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
	struct sigaction action = { .sa_handler = free_in_handler, .sa_flags = SA_ONSTACK };
	REQUIRE(sigaltstack(&other, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	block = stack + 64;
	announce(block);
	raise(SIGUSR1);
	go_on(64);
	return passed(UNNOTICED);
}

/* The handler frees a block that the interrupted function then frees again. */
static int before_handler_returns(void)
{
	block = malloc(64);
	announce(block);
	signal(SIGUSR1, free_in_handler);
	raise(SIGUSR1);
	free(block);
	go_on(64);
	return passed(UNNOTICED);
}

static void free_at_exit(void)
{
	free(block);
	go_on(64);
	passed(UNNOTICED);
}

static int at_exit(void)
{
	freed();
	atexit(free_at_exit);
	exit(0);
}

static int in_child(void)
{
	block = malloc(64);
	announce(block);
	pid_t child = fork();
	if (child == 0) {
		free(block);
		free(opaque(block));
		go_on(64);
		passed(UNNOTICED);
	}
	return end_like(child);
}

static int in_grandchild(void)
{
	block = malloc(20000);
	announce(block);
	pid_t child = fork();
	if (child == 0) {
		free(block);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			free(block);
			go_on(20000);
			passed(UNNOTICED);
		}
		end_like(grandchild);
	}
	return end_like(child);
}

/* A child of vfork shares the memory of its parent. */
static int by_vfork(void)
{
	block = malloc(64);
	announce(block);
	pid_t child = vfork();
	if (child == 0) {
		free(block);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	free(block);
	go_on(64);
	return passed(UNNOTICED);
}

static void free_before_fork(void)
{
	free(block);
}

static int in_fork_handler(void)
{
	freed();
	pthread_atfork(free_before_fork, NULL, NULL);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	go_on(64);
	return passed(UNNOTICED);
}

static void free_child(void)
{
	free(block);
	go_on(64);
	passed(UNNOTICED);
}

static int in_fork_handler_of_child(void)
{
	freed();
	pthread_atfork(NULL, NULL, free_child);
	return end_like(fork());
}

static void *work(void *destructor)
{
	pthread_key_t key;
	pthread_key_create(&key, (void (*)(void *))destructor);
	pthread_setspecific(key, block);
	return NULL;
}

static void in_thread(void *argument)
{
	pthread_t thread;
	REQUIRE(pthread_create(&thread, NULL, work, argument) == 0);
	pthread_join(thread, NULL);
}

static int at_thread_end(void)
{
	freed();
	in_thread((void *)free);
	go_on(64);
	return passed(UNNOTICED);
}

/* The stack of a thread that has ended. */
static void *address(void *unused)
{
	(void)unused;
	char here[64];
	return opaque((void *)((uintptr_t)here & ~(uintptr_t)15));
}

static int stack_of_ended_thread(void)
{
	pthread_t thread;
	REQUIRE(pthread_create(&thread, NULL, address, NULL) == 0);
	pthread_join(thread, &block);
	announce(block);
	free(block);
	go_on(64);
	return passed(UNNOTICED);
}

/* closedir frees, too. */
static int directory(void)
{
	DIR *directory = opendir("/");
	REQUIRE(directory != NULL);
	announce(directory);
	closedir(directory);
	closedir((DIR *)opaque(directory));
	go_on(32768);
	return passed(UNNOTICED);
}

/* An entry of the environment that setenv allocated, freed by the program and by the library. */
static int environment(void)
{
	char text[] = "A_NAME=of 64 bytes, so that it is one of the blocks that are held.";
	char *entry = strdup(text);
	announce(entry);
	putenv(entry);
	free(entry);
	free(getenv("A_NAME") ? getenv("A_NAME") - 7 : entry);
	go_on(64);
	return passed(UNNOTICED);
}

/* A list whose nodes are freed twice, one after the other. */
static int list(void)
{
	void *nodes[100];
	for (int i = 0; i < 100; i++)
		REQUIRE((nodes[i] = malloc(48)) != NULL);
	announce(nodes[0]);
	for (int i = 0; i < 200; i++)
		free(nodes[i % 100]);
	go_on(48);
	return passed(UNNOTICED);
}

/* A, B, A: the block that was freed last is another. */
static int alternating(void)
{
	void *a = malloc(64), *b = malloc(64);
	announce(a);
	free(a);
	free(b);
	free(opaque(a));
	go_on(64);
	return passed(UNNOTICED);
}

/* The first word is written between the frees, as by a program that clears its list. */
static int cleared_between(void)
{
	char *freed_block = freed();
	memset(freed_block, 0, 64);
	free(opaque(freed_block));
	go_on(64);
	return passed(UNNOTICED);
}

/* The block has a second owner when the first one frees it again. */
static int of_reused(void)
{
	char *first = freed(), *second = malloc(64);
	for (int i = 0; i < 1000 && second != first; i++)
		second = malloc(64);
	memset(second, 1, 64);
	free(first);
	char *third = malloc(64);
	memset(third, 2, 64);
	go_on(64);
	return passed(second == first && second == third ? UNNOTICED : HARMLESS);
}

static const struct {
	const char *name;
	int (*run)(void);
} CASES[] = {
	{ "in_handler", in_handler },
	{ "in_handler_on_its_stack", in_handler_on_its_stack },
	{ "before_handler_returns", before_handler_returns },
	{ "at_exit", at_exit },
	{ "in_child", in_child },
	{ "in_grandchild", in_grandchild },
	{ "by_vfork", by_vfork },
	{ "in_fork_handler", in_fork_handler },
	{ "in_fork_handler_of_child", in_fork_handler_of_child },
	{ "at_thread_end", at_thread_end },
	{ "stack_of_ended_thread", stack_of_ended_thread },
	{ "directory", directory },
	{ "environment", environment },
	{ "list", list },
	{ "alternating", alternating },
	{ "cleared_between", cleared_between },
	{ "of_reused", of_reused },
};

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
		if (is(argv[1], CASES[i].name))
			return CASES[i].run();
	return passed(NO_SUCH_CASE);
}
