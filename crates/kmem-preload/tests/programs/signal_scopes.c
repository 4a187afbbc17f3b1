/* A signal handler allocates while its thread works under a tag and in a group. Without scopes of
 * its own it works for both; with them, for neither. */
#include "group_check.h"
#include <kmem/tag.h>
#include <signal.h>

enum { SIZE = 1000, CALLS = 50 };

/* 1 while the handler makes scopes of its own. */
static int apart;
static void *of_handler[2][CALLS];
static int calls;

static void handler(int number)
{
	(void)number;
	int64_t token = apart ? kmem_group_enter(KMEM_GROUP_ROOT) : 0;
	uintptr_t tag = apart ? kmem_tag_enter(KMEM_TAG_NAMED("of the handler")) : 0;
	of_handler[apart][calls++] = malloc(SIZE);
	if (apart) {
		kmem_tag_leave(tag);
		CHECK(kmem_group_leave(token) == 0);
	}
}

/* Interrupts a scope CALLS times. `made` counts allocations of the interrupted code. */
static void interrupt(kmem_group_t group, void **made)
{
	int64_t token = kmem_group_enter(group);
	uintptr_t tag = kmem_tag_enter(KMEM_TAG_NAMED("of the scope"));
	for (calls = 0; calls < CALLS;) {
		made[calls] = malloc(SIZE);
		REQUIRE(raise(SIGUSR1) == 0);
		CHECK_AT(kmem_group_current() == group, calls);
	}
	kmem_tag_leave(tag);
	CHECK(kmem_group_leave(token) == 0);
	CHECK(kmem_group_current() == KMEM_GROUP_ROOT);
}

int main(void)
{
	static void *made[2][CALLS];
	kmem_group_t group = new_group("interrupted");
	struct sigaction action = { .sa_handler = handler };
	REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
	/* Before any scope of the thread: the handler makes the first one. */
	apart = 1;
	REQUIRE(raise(SIGUSR1) == 0);
	uint64_t each = cost(of_handler[1][0]), root = stat_of(KMEM_GROUP_ROOT).own;
	CHECK(kmem_group_of(of_handler[1][0]) == KMEM_GROUP_ROOT && held_by(group) == 0);
	free(of_handler[1][0]);
	root -= each;

	apart = 0;
	interrupt(group, made[0]);
	CHECK_AT(held_by(group) == 2 * CALLS * each, held_by(group));
	CHECK_AT(stat_of(KMEM_GROUP_ROOT).own == root, stat_of(KMEM_GROUP_ROOT).own - root);
	apart = 1;
	interrupt(group, made[1]);
	CHECK_AT(held_by(group) == 3 * CALLS * each, held_by(group));
	CHECK_AT(stat_of(KMEM_GROUP_ROOT).own == root + CALLS * each,
		 stat_of(KMEM_GROUP_ROOT).own - root);
	/* The test reads the books here. */
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	/* With the buffers of the streams. */
	root = stat_of(KMEM_GROUP_ROOT).own;
	for (int i = 0; i < 2 * CALLS; i++) {
		free(made[i / CALLS][i % CALLS]);
		free(of_handler[i / CALLS][i % CALLS]);
	}
	CHECK(held_by(group) == 0 && stat_of(KMEM_GROUP_ROOT).own == root - CALLS * each);
	CHECK(kmem_group_delete(group) == 0 && kmem_group_dying() == 0);
	return RESULT();
}
