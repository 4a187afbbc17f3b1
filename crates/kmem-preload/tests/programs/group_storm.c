/* Threads that charge, move between groups and free what others allocated, while groups are deleted
 * and limits change. At rest the sums are exact, and nothing is left over. */
#include "group_check.h"
#include <pthread.h>

enum { THREADS = 8, GROUPS = 100, SLOTS = 4096 };

static kmem_group_t parent, groups[GROUPS];
static void *slots[SLOTS];
static volatile int done;
static int rounds;

static void *moves(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9E3779B97F4A7C15u + 1;
	for (int i = 0; i < rounds; i++) {
		int64_t token = kmem_group_enter(groups[next_random(&state) % GROUPS]);
		CHECK(token >= 0);
		void *at = malloc(8 + next_random(&state) % 3000);
		CHECK(kmem_group_leave(token) == 0);
		free(__atomic_exchange_n(&slots[next_random(&state) % SLOTS], at, __ATOMIC_ACQ_REL));
	}
	return NULL;
}

/* Works in a group that comes and goes. */
static void *follows(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9E3779B97F4A7C15u + 7;
	while (!done) {
		int64_t token = kmem_group_enter(kmem_group_find("parent/victim"));
		for (int i = 0; i < 20; i++) {
			void *at = malloc(8 + next_random(&state) % 3000);
			CHECK(at);
			free(__atomic_exchange_n(&slots[next_random(&state) % SLOTS], at, __ATOMIC_ACQ_REL));
		}
		CHECK(kmem_group_leave(token) == (token < 0 ? -EINVAL : 0));
	}
	return NULL;
}

static void *looks(void *unused)
{
	while (!done) {
		kmem_group_t all[] = { parent, groups[5], kmem_group_find("parent/victim"), KMEM_GROUP_ROOT };
		for (int i = 0; i < 4; i++) {
			struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
			int got = kmem_group_stat(all[i], &stat);
			CHECK_AT(got == 0 || (i == 2 && (got == -ESRCH || got == -EINVAL)), got);
			CHECK_AT(stat.current < (uint64_t)1 << 40 && stat.own < (uint64_t)1 << 40, stat.current);
			CHECK_AT(stat.cached < (uint64_t)1 << 40 && stat.reserved == 0, stat.cached);
		}
	}
	return NULL;
}

static void empty(void)
{
	for (int i = 0; i < SLOTS; i++)
		free(__atomic_exchange_n(&slots[i], NULL, __ATOMIC_ACQ_REL));
}

static void nothing_is_left(void)
{
	empty();
	for (int i = 0; i < GROUPS; i++)
		CHECK_AT(held_by(groups[i]) == 0, held_by(groups[i]));
	CHECK_AT(held_by(parent) == 0 && kmem_group_dying() == 0, held_by(parent));
}

static void run(void *(*work)(void *), void (*meanwhile)(void))
{
	pthread_t threads[THREADS], looker;
	done = 0;
	REQUIRE(!pthread_create(&looker, NULL, looks, NULL));
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
	if (meanwhile) {
		meanwhile();
		done = 1;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	done = 1;
	pthread_join(looker, NULL);
}

static void comes_and_goes(void)
{
	for (int i = 0; i < rounds; i++) {
		kmem_group_t victim = kmem_group_create(parent, "victim");
		CHECK(victim > 0);
		int64_t token = kmem_group_enter(victim);
		void *at = malloc(100);
		kmem_group_leave(token);
		CHECK(kmem_group_delete(victim) == 0);
		free(at);
	}
}

/* Charges one group; a null is no surprise. */
static void *charges(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9E3779B97F4A7C15u + 3;
	int64_t token = kmem_group_enter(groups[0]);
	while (!done) {
		void *at = malloc(8 + next_random(&state) % 30000);
		free(__atomic_exchange_n(&slots[next_random(&state) % SLOTS], at, __ATOMIC_ACQ_REL));
	}
	CHECK(kmem_group_leave(token) == 0);
	return NULL;
}

static void limits_change(void)
{
	for (int i = 0; i < rounds / 10; i++) {
		uint64_t limit = (uint64_t)(1 + i % 8) << 18;
		CHECK(kmem_group_set(groups[0], KMEM_GROUP_MAX, limit) == 0);
		CHECK_AT(stat_of(groups[0]).peak <= 8 << 18, stat_of(groups[0]).peak);
		if (i % 100 == 0)
			empty();
	}
}

int main(int argc, char **argv)
{
	if (!runs_on_kmem())
		return 0;
	rounds = argc > 1 ? atoi(argv[1]) : 10000;
	parent = new_group("parent");
	for (int i = 0; i < GROUPS; i++) {
		char name[20];
		snprintf(name, sizeof name, "g%d", i);
		groups[i] = kmem_group_create(parent, name);
		REQUIRE(groups[i] > 0);
	}
	run(moves, NULL);
	nothing_is_left();
	run(follows, comes_and_goes);
	nothing_is_left();
	kmem_group_set(groups[0], KMEM_GROUP_MAX, 1 << 18);
	kmem_group_reset_peak(groups[0]);
	run(charges, limits_change);
	nothing_is_left();
	for (int i = 0; i < GROUPS; i++)
		CHECK(kmem_group_delete(groups[i]) == 0);
	CHECK(kmem_group_delete(parent) == 0 && kmem_group_dying() == 0);
	return RESULT();
}
