/* Scopes of threads: tokens that are wrong, threads that end inside, switches. With "cancelled",
 * threads that are cancelled while they make groups. */
#include "group_check.h"
#include <pthread.h>

enum { DEEP = 200 };

static int64_t others_token;

static void a_token_is_good_once(void)
{
	kmem_group_t outer = new_group("outer"), inner = new_group("inner");
	int64_t first = kmem_group_enter(outer);
	int64_t second = kmem_group_enter(inner);
	CHECK(kmem_group_leave(second) == 0);
	int64_t third = kmem_group_enter(inner);
	CHECK(second == first + 1 && third == second + 1);
	/* The scope of the old token is another one, although group and depth are the same. */
	CHECK(kmem_group_leave(second) == -EINVAL && kmem_group_current() == inner);
	CHECK(kmem_group_leave(others_token) == -EINVAL && kmem_group_current() == inner);
	CHECK(kmem_group_leave(third) == 0 && kmem_group_leave(first) == 0);
	CHECK(kmem_group_leave(first) == -EINVAL && kmem_group_current() == KMEM_GROUP_ROOT);
	uint64_t state = 7;
	first = kmem_group_enter(outer);
	for (int i = 0; i < 100000; i++) {
		int64_t made_up = (int64_t)next_random(&state) >> (i % 64);
		CHECK_AT(made_up == first || kmem_group_leave(made_up) == -EINVAL, made_up);
	}
	free(malloc(100));
	CHECK(kmem_group_current() == outer && kmem_group_leave(first) == 0);
	CHECK(kmem_group_delete(outer) == 0 && kmem_group_delete(inner) == 0);
	CHECK(kmem_group_dying() == 0);
}

static void scopes_nest_deeply(void)
{
	kmem_group_t groups[2] = { new_group("even"), new_group("odd") };
	for (int round = 0; round < 3; round++) {
		int64_t tokens[DEEP];
		for (int i = 0; i < DEEP; i++)
			CHECK_AT((tokens[i] = kmem_group_enter(groups[i % 2])) >= 0, i);
		for (int i = DEEP - 1; i >= 0; i--) {
			CHECK_AT(kmem_group_current() == groups[i % 2], i);
			CHECK_AT(kmem_group_enter(1LL << 40) < 0, i);
			CHECK_AT(i == 0 || kmem_group_leave(tokens[i - 1]) == -EINVAL, i);
			CHECK_AT(kmem_group_leave(tokens[i]) == 0, i);
		}
		CHECK(kmem_group_current() == KMEM_GROUP_ROOT);
	}
	CHECK(kmem_group_delete(groups[0]) == 0 && kmem_group_delete(groups[1]) == 0);
	CHECK(kmem_group_dying() == 0);
}

static void *ends_inside(void *groups)
{
	for (int i = 0; i < DEEP; i++)
		others_token = kmem_group_enter(((kmem_group_t *)groups)[i % 2]);
	CHECK(others_token >= 0);
	return NULL;
}

static void a_thread_that_ends_leaves_its_scopes(void)
{
	kmem_group_t groups[2] = { new_group("left"), new_group("right") };
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		REQUIRE(pthread_create(&thread, NULL, ends_inside, groups) == 0);
		pthread_join(thread, NULL);
	}
	CHECK(kmem_group_delete(groups[0]) == 0 && kmem_group_delete(groups[1]) == 0);
	CHECK(kmem_group_dying() == 0);
}

static void *ends_switched(void *group)
{
	CHECK(kmem_group_switch(*(kmem_group_t *)group) >= 0);
	return NULL;
}

static void a_thread_switches_between_groups_that_are_pinned(void)
{
	kmem_group_t one = new_group("one"), two = new_group("two");
	CHECK(kmem_group_pin(one) == 0 && kmem_group_pin(two) == 0);
	int64_t root = kmem_group_switch(one), first = kmem_group_switch(two);
	void *at = malloc(100);
	CHECK(kmem_group_of(at) == two && kmem_group_current() == two);
	/* Scopes of tokens and of switches nest in one another. */
	int64_t token = kmem_group_enter(one);
	int64_t second = kmem_group_switch(two);
	CHECK(kmem_group_leave(token) == -EINVAL && kmem_group_switch(second) >= 0);
	CHECK(kmem_group_leave(token) == 0 && kmem_group_current() == two);
	/* A number of no group leaves the thread where it is. */
	int64_t wrong[] = { -EINVAL, INT64_MIN, INT64_MAX, 1LL << 44 };
	for (int i = 0; i < 4; i++)
		CHECK_AT(kmem_group_switch(wrong[i]) == -EINVAL, i);
	CHECK(kmem_group_switch(two + (1 << 14)) == -ESRCH && kmem_group_current() == two);
	/* A deleted group stays while it is pinned, and its parent pays. */
	CHECK(kmem_group_delete(two) == 0 && kmem_group_of(at) == KMEM_GROUP_ROOT);
	free(at);
	CHECK(kmem_group_dying() == 1 && kmem_group_current() == KMEM_GROUP_ROOT);
	CHECK(kmem_group_switch(first) >= 0 && kmem_group_current() == one);
	CHECK(kmem_group_switch(two) >= 0 && kmem_group_switch(root) >= 0);
	CHECK(kmem_group_current() == KMEM_GROUP_ROOT && kmem_group_unpin(two) == 0);
	CHECK(kmem_group_dying() == 0 && kmem_group_switch(two) == -ESRCH);
	CHECK(kmem_group_unpin(two) == -ESRCH && kmem_group_pin(two) == -ESRCH);
	/* A thread may end in a group that it switched to. */
	pthread_t thread;
	REQUIRE(pthread_create(&thread, NULL, ends_switched, &one) == 0);
	pthread_join(thread, NULL);
	CHECK(kmem_group_unpin(one) == 0 && kmem_group_unpin(one) == -ESRCH);
	CHECK(kmem_group_delete(one) == 0 && kmem_group_dying() == 0);
}

static _Atomic int started;

static void *is_cancelled(void *name)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		kmem_group_t group = kmem_group_create(KMEM_GROUP_ROOT, name);
		started = 1;
		kmem_group_leave(kmem_group_enter(group));
		kmem_group_delete(group);
	}
}

static void a_cancelled_thread_keeps_no_lock(void)
{
	alarm(HUNG);
	for (int i = 0; i < 3000; i++) {
		started = 0;
		pthread_t thread;
		REQUIRE(pthread_create(&thread, NULL, is_cancelled, "cancelled") == 0);
		while (!started)
			sched_yield();
		for (volatile int spin = 0; spin < i % 500; spin++)
			;
		pthread_cancel(thread);
		pthread_join(thread, NULL);
		kmem_group_t group = kmem_group_find("cancelled");
		if (group > 0)
			CHECK(kmem_group_delete(group) == 0);
	}
	CHECK_AT(kmem_group_dying() == 0, kmem_group_dying());
	alarm(0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "cancelled")) {
		a_cancelled_thread_keeps_no_lock();
		return RESULT();
	}
	scopes_nest_deeply();
	a_thread_that_ends_leaves_its_scopes();
	a_token_is_good_once();
	a_thread_switches_between_groups_that_are_pinned();
	return RESULT();
}
