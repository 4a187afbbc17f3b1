/* Stacks of threads in areas of vmalloc, for which a group pays. Argument: "overflow" for a thread
 * that uses more than its stack. */
#include "group_check.h"
#include <kmem.h>
#include <pthread.h>
#include <signal.h>

/* With their guards, areas of this length follow each other without a gap. */
enum { STACKS = 16, PAGES = 15, PAGE = 4096, SIZE = PAGES * PAGE };

static char *overflown;

/* Writes to the stack, page by page, down to this depth. */
static __attribute__((noinline)) int use(size_t bytes)
{
	volatile char page[PAGE];

	memset((char *)page, 0x55, PAGE);
	return bytes > PAGE ? use(bytes - PAGE) + page[bytes % PAGE] : page[0];
}

static void *work(void *stack)
{
	char local;

	CHECK(&local >= (char *)stack && &local < (char *)stack + SIZE);
	CHECK(use(SIZE / 2) != 0);
	CHECK(kmem_group_current() == KMEM_GROUP_ROOT);
	CHECK(kmem_group_of_address(&local) == kmem_group_of(stack));
	return stack;
}

static void faulted(int number, siginfo_t *info, void *context)
{
	char *at = info->si_addr;

	(void)context;
	if (at < overflown && at >= overflown - PAGE)
		dprintf(1, "guard\n");
	/* The next access ends the program. */
	signal(number, SIG_DFL);
}

static void *overflow(void *stack)
{
	static char handlers[1 << 16];
	stack_t other = { .ss_sp = handlers, .ss_size = sizeof(handlers) };
	struct sigaction action = { .sa_sigaction = faulted, .sa_flags = SA_ONSTACK | SA_SIGINFO };

	overflown = stack;
	REQUIRE(!sigaltstack(&other, NULL) && !sigaction(SIGSEGV, &action, NULL));
	use(2 * SIZE);
	return NULL;
}

static pthread_t start(void *(*run)(void *), void *stack)
{
	pthread_attr_t attributes;
	pthread_t thread;

	REQUIRE(!pthread_attr_init(&attributes));
	REQUIRE(!pthread_attr_setstack(&attributes, stack, SIZE));
	REQUIRE(!pthread_create(&thread, &attributes, run, stack));
	pthread_attr_destroy(&attributes);
	return thread;
}

int main(int argc, char **argv)
{
	kmem_group_t group = new_group("stacks");
	char *stacks[STACKS], *guarded = NULL;
	pthread_t threads[STACKS];
	int64_t token = kmem_group_enter(group);

	for (int i = 0; i < STACKS; i++) {
		stacks[i] = vmalloc(SIZE);
		REQUIRE(stacks[i]);
		/* The pages, and a word of four bytes for each. */
		CHECK_AT(held_by(group) == (i + 1) * (uint64_t)PAGES * (PAGE + 4), held_by(group));
		CHECK(kmem_group_of(stacks[i]) == group);
	}
	CHECK(kmem_group_leave(token) == 0);
	if (argc > 1 && !strcmp(argv[1], "overflow")) {
		/* Stacks grow down, to the page behind the area below. */
		for (int i = 0; i < STACKS && !guarded; i++)
			for (int below = 0; below < STACKS; below++)
				if (stacks[below] + SIZE + PAGE == stacks[i])
					guarded = stacks[i];
		REQUIRE(guarded);
		pthread_join(start(overflow, guarded), NULL);
		return 1;
	}
	for (int i = 0; i < STACKS; i++)
		threads[i] = start(work, stacks[i]);
	for (int i = 0; i < STACKS; i++) {
		void *stack;

		REQUIRE(!pthread_join(threads[i], &stack));
		CHECK(stack == stacks[i]);
	}
	/* The group pays for no work of the threads. */
	CHECK_AT(held_by(group) == STACKS * (uint64_t)PAGES * (PAGE + 4), held_by(group));
	for (int i = 0; i < STACKS; i++) {
		vfree(stacks[i]);
		CHECK(held_by(group) == (STACKS - i - 1) * (uint64_t)PAGES * (PAGE + 4));
	}
	CHECK(kmem_group_delete(group) == 0 && kmem_group_dying() == 0);
	return RESULT();
}
