/* Arguments that each function of kmem/group.h accepts or refuses, and what it leaves unchanged. */
#include "group_check.h"
#include <pthread.h>
#include <sys/eventfd.h>

#define ROOT KMEM_GROUP_ROOT

static void names(void)
{
	char longest[258];
	memset(longest, 'x', 257);
	longest[257] = 0;
	const char *bad[] = { "", "a/b", "/", ".", "..", "\xff", "caf\xc3", longest + 1, longest };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK_AT(kmem_group_create(ROOT, bad[i]) == -EINVAL, i);
	CHECK(kmem_group_create(ROOT, NULL) == -EFAULT);

	kmem_group_t group = new_group(longest + 2);
	char name[KMEM_GROUP_NAME_SIZE];
	CHECK(kmem_group_name(group, name, sizeof name) == 255 && !strcmp(name, longest + 2));
	name[0] = '#';
	CHECK(kmem_group_name(group, name, 255) == -ERANGE && name[0] == '#');
	CHECK(kmem_group_name(group, NULL, 256) == -EFAULT);
	CHECK(kmem_group_name(ROOT, name, 1) == 0 && name[0] == 0);
	CHECK(kmem_group_find(longest + 2) == group);
	CHECK(kmem_group_create(ROOT, longest + 2) == -EEXIST);
	kmem_group_t below = kmem_group_create(group, "below \xe2\x82\xac");
	CHECK(below > 0 && kmem_group_parent(below) == group && kmem_group_parent(group) == ROOT);
	CHECK(kmem_group_parent(ROOT) == 0);
	char path[600];
	snprintf(path, sizeof path, "/%s/below \xe2\x82\xac", longest + 2);
	CHECK(kmem_group_find(path) == below && kmem_group_find(path + 1) == below);
	CHECK(kmem_group_find("") == ROOT && kmem_group_find("/") == ROOT);
	CHECK(kmem_group_find("absent") == -ESRCH && kmem_group_find("..") == -ESRCH);
	CHECK(kmem_group_find(NULL) == -EFAULT);
	CHECK(kmem_group_delete(group) == -EBUSY);
	CHECK(kmem_group_delete(below) == 0 && kmem_group_delete(group) == 0);
}

static pthread_barrier_t start;

static void *creates(void *out)
{
	pthread_barrier_wait(&start);
	*(kmem_group_t *)out = kmem_group_create(ROOT, "contested");
	return NULL;
}

static void one_name_for_many_threads(void)
{
	enum { THREADS = 64 };
	pthread_t threads[THREADS];
	kmem_group_t made[THREADS], one = 0;
	pthread_barrier_init(&start, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, creates, &made[i]));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++) {
		CHECK_AT(made[i] == -EEXIST || (made[i] > 0 && !one), made[i]);
		if (made[i] > 0)
			one = made[i];
	}
	CHECK(kmem_group_find("contested") == one && kmem_group_delete(one) == 0);
}

static void as_many_as_there_can_be(void)
{
	static kmem_group_t all[20000];
	int first = 0;
	for (int round = 0; round < 3; round++) {
		int count = 0;
		char name[20];
		for (;; count++) {
			REQUIRE(count < 20000);
			snprintf(name, sizeof name, "g%d", count);
			all[count] = kmem_group_create(ROOT, name);
			if (all[count] < 0)
				break;
		}
		CHECK_AT(all[count] == -ENOSPC && count >= 255, all[count]);
		CHECK_AT(!round || count == first, count);
		first = count;
		while (count--)
			CHECK(kmem_group_delete(all[count]) == 0);
	}
	CHECK(kmem_group_dying() == 0);
}

static size_t shrinks(void *data, kmem_group_t group, size_t bytes)
{
	return 0;
}

static void *plain;

/* Every function refuses this number; `no` is how. */
static void refused(kmem_group_t number, int no)
{
	struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
	struct kmem_shrinker *shrinker = NULL;
	char name[KMEM_GROUP_NAME_SIZE];
	kmem_group_t mine = kmem_group_current();
	CHECK_AT(kmem_group_create(number, "x") == no, number);
	CHECK_AT(kmem_group_delete(number) == no, number);
	CHECK_AT(kmem_group_name(number, name, sizeof name) == no, number);
	CHECK_AT(kmem_group_parent(number) == no, number);
	CHECK_AT(kmem_group_set(number, KMEM_GROUP_MAX, 0) == no, number);
	CHECK_AT(kmem_group_stat(number, &stat) == no && stat.max == 0, number);
	CHECK_AT(kmem_group_reset_peak(number) == no, number);
	CHECK_AT(kmem_group_notify(number, -1) == no, number);
	CHECK_AT(kmem_group_try_charge(number, 1) == no, number);
	CHECK_AT(kmem_group_uncharge(number, 1) == no, number);
	CHECK_AT(kmem_group_add_shrinker(number, shrinks, NULL, &shrinker) == no && !shrinker, number);
	int64_t token = kmem_group_enter(number);
	CHECK_AT(token == no && kmem_group_current() == mine, number);
	CHECK(kmem_group_leave(token) == -EINVAL && kmem_group_current() == mine);
}

static void numbers(void)
{
	kmem_group_t group = new_group("short-lived");
	int64_t token = kmem_group_enter(group);
	kmem_group_t bad[] = { 0, -1, -ESRCH, INT64_MIN, INT64_MAX, 1, ROOT - 1, (kmem_group_t)1 << 44,
			       group | (kmem_group_t)1 << 46 };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		refused(bad[i], -EINVAL);
	refused(INT_MAX, -ESRCH);
	refused(group + ROOT, -ESRCH);
	CHECK(kmem_group_leave(token) == 0 && kmem_group_delete(group) == 0);
	refused(group, -ESRCH);
	kmem_group_t again = new_group("short-lived");
	CHECK(again != group);
	refused(group, -ESRCH);
	/* Deleted, but something is charged to it. */
	token = kmem_group_enter(again);
	void *at = malloc(100);
	CHECK(kmem_group_leave(token) == 0 && kmem_group_of(at) == again);
	CHECK(kmem_group_delete(again) == 0 && kmem_group_dying() == 1);
	refused(again, -ESRCH);
	CHECK(kmem_group_of(at) == ROOT);
	CHECK(new_group("short-lived") > 0 && kmem_group_delete(kmem_group_find("short-lived")) == 0);
	free(at);
	CHECK(kmem_group_dying() == 0);
}

static void levels(void)
{
	kmem_group_t at[40] = { ROOT };
	int depth = 0;
	while (depth < 39 && (at[depth + 1] = kmem_group_create(at[depth], "down")) > 0)
		depth++;
	CHECK_AT(depth == 31 && at[depth + 1] == -ELOOP, depth);
	for (; depth; depth--)
		CHECK(kmem_group_delete(at[depth]) == 0);
}

static void limits(void)
{
	kmem_group_t group = new_group("limited");
	CHECK(stat_of(group).max == KMEM_GROUP_NO_LIMIT && stat_of(group).high == KMEM_GROUP_NO_LIMIT);
	for (int limit = KMEM_GROUP_MAX; limit <= KMEM_GROUP_LOW; limit++) {
		CHECK(kmem_group_set(ROOT, limit, 1 << 30) == -EPERM);
		CHECK(kmem_group_set(group, limit, 1000 + limit) == 0);
	}
	CHECK(kmem_group_set(group, (enum kmem_group_limit)3, 0) == -EINVAL);
	CHECK(kmem_group_set(group, (enum kmem_group_limit)-1, 0) == -EINVAL);
	struct kmem_group_stat stat = stat_of(group);
	CHECK(stat.max == 1000 && stat.high == 1001 && stat.low == 1002);
	CHECK(kmem_group_delete(ROOT) == -EPERM);

	int64_t token = kmem_group_enter(group);
	kmem_group_set(group, KMEM_GROUP_HIGH, KMEM_GROUP_NO_LIMIT);
	kmem_group_set(group, KMEM_GROUP_MAX, 0);
	errno = 0;
	CHECK(malloc(1) == NULL && errno == ENOMEM);
	CHECK(malloc(1 << 20) == NULL && calloc(1, 1) == NULL);
	CHECK(held_by(group) == 0);
	kmem_group_set(group, KMEM_GROUP_MAX, (uint64_t)-1);
	void *large = malloc(1 << 20);
	CHECK(large && held_by(group) == cost(large));
	/* Below what it holds: that stays, and nothing more is granted. */
	CHECK(kmem_group_set(group, KMEM_GROUP_MAX, 4097) == 0);
	CHECK(malloc(1) == NULL && held_by(group) == cost(large));
	CHECK(realloc(large, 2 << 20) == NULL && held_by(group) == cost(large));
	free(large);
	void *small = malloc(1000);
	CHECK(small && held_by(group) == cost(small));
	stat = stat_of(group);
	CHECK(stat.max_events >= 4 && stat.oom_events == stat.max_events && !stat.over_limit);
	CHECK(stat.peak >= 1 << 20 && stat.peak >= stat.current + stat.cached);
	CHECK(kmem_group_reset_peak(group) == 0 && stat_of(group).peak < 1 << 20);
	struct kmem_group_kinds kinds = KMEM_GROUP_KINDS_INIT;
	CHECK(kmem_group_kinds(group, &kinds) == 0 && kinds.vmalloc == 0 && kinds.percpu == 0);
	stat = stat_of(group);
	CHECK(kinds.slab + kinds.pages == stat.current - stat.reserved && kinds.slab > 0);
	kinds.size--;
	CHECK(kmem_group_kinds(group, &kinds) == -EINVAL && kmem_group_kinds(group, NULL) == -EFAULT);
	free(small);
	kmem_group_leave(token);
	CHECK(held_by(group) == 0 && kmem_group_delete(group) == 0);
}

static void reservations(void)
{
	kmem_group_t group = new_group("reserved");
	kmem_group_set(group, KMEM_GROUP_MAX, 1 << 20);
	CHECK(kmem_group_try_charge(group, 1 << 20) == 0);
	CHECK(kmem_group_try_charge(group, 1) == -ENOMEM);
	CHECK(kmem_group_uncharge(group, (1 << 20) + 1) == -EINVAL);
	CHECK(kmem_group_uncharge(group, UINT64_MAX) == -EINVAL);
	CHECK(held_by(group) == 1 << 20 && stat_of(group).reserved == 1 << 20);
	CHECK(kmem_group_uncharge(group, 1 << 19) == 0);
	kmem_group_set(group, KMEM_GROUP_MAX, KMEM_GROUP_NO_LIMIT);
	CHECK(kmem_group_try_charge(group, UINT64_MAX) == -ENOMEM);
	CHECK(kmem_group_try_charge(group, (uint64_t)1 << 63) == -ENOMEM);
	CHECK(held_by(group) == 1 << 19);
	/* The parent's when the group is deleted, and taken back by its number still. */
	CHECK(kmem_group_delete(group) == 0 && kmem_group_dying() == 1);
	CHECK(kmem_group_uncharge(group, 1 << 19) == 0 && kmem_group_dying() == 0);
	CHECK(kmem_group_uncharge(group, 1) == -ESRCH);
}

static void scopes(void)
{
	kmem_group_t outer = new_group("outer"), inner = new_group("inner");
	CHECK(kmem_group_current() == ROOT);
	int64_t first = kmem_group_enter(outer);
	int64_t second = kmem_group_enter(inner);
	CHECK(kmem_group_current() == inner);
	/* Not the scope the thread is in. */
	CHECK(kmem_group_leave(first) == -EINVAL && kmem_group_current() == inner);
	CHECK(kmem_group_leave(second) == 0 && kmem_group_current() == outer);
	CHECK(kmem_group_leave(second) == -EINVAL && kmem_group_current() == outer);
	CHECK(kmem_group_leave(INT64_MAX) == -EINVAL && kmem_group_leave(-EINVAL) == -EINVAL);
	/* Work for the root in between. */
	int64_t root = kmem_group_enter(ROOT);
	void *at = malloc(10);
	CHECK(kmem_group_current() == ROOT && kmem_group_of(at) == ROOT);
	CHECK(kmem_group_leave(root) == 0 && kmem_group_current() == outer);
	/* The group goes while a thread is in it. */
	CHECK(kmem_group_delete(outer) == 0 && kmem_group_current() == ROOT && kmem_group_dying() == 1);
	CHECK(kmem_group_leave(first) == 0 && kmem_group_dying() == 0);
	CHECK(kmem_group_delete(inner) == 0);
	CHECK(kmem_group_of(NULL) == -EINVAL);
	CHECK(kmem_group_of_address((char *)at + 5) == ROOT);
	CHECK(kmem_group_of_address(NULL) == -ENOENT && kmem_group_of_address(&at) == -ENOENT);
	free(at);
	/* Without books, an object that no group pays for may be free. */
	const char *conf = getenv("KMEM_CONF");
	int has_books = !conf || !strstr(conf, "mem_profiling:never");
	CHECK(kmem_group_of_address(at) == (has_books ? -ENOENT : ROOT));
}

static void structures(void)
{
	kmem_group_t group = new_group("structures");
	uint64_t sizes[] = { 0, 8, sizeof(struct kmem_group_stat) - 8,
			     sizeof(struct kmem_group_stat) + 8, UINT64_MAX };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
		stat.size = sizes[i];
		CHECK_AT(kmem_group_stat(group, &stat) == -EINVAL && stat.max == 0, sizes[i]);
	}
	CHECK(kmem_group_stat(group, NULL) == -EFAULT);
	struct kmem_shrinker *shrinker;
	CHECK(kmem_group_add_shrinker(group, NULL, NULL, &shrinker) == -EFAULT);
	CHECK(kmem_group_add_shrinker(group, shrinks, NULL, NULL) == -EFAULT);
	CHECK(kmem_group_remove_shrinker(NULL) == -EFAULT);
	CHECK(kmem_group_delete(group) == 0);
}

static void events(void)
{
	kmem_group_t group = new_group("events");
	int fd = eventfd(0, EFD_NONBLOCK);
	uint64_t count = 0;
	CHECK(kmem_group_notify(group, -2) == -EBADF && kmem_group_notify(group, 100000) == -EBADF);
	CHECK(kmem_group_notify(group, fd) == 0);
	kmem_group_set(group, KMEM_GROUP_MAX, 0);
	int64_t token = kmem_group_enter(group);
	CHECK(malloc(1) == NULL);
	CHECK(read(fd, &count, 8) == 8 && count == 2);
	CHECK(kmem_group_notify(group, -1) == 0 && malloc(1) == NULL);
	CHECK(read(fd, &count, 8) == -1);
	kmem_group_leave(token);
	CHECK(kmem_group_delete(group) == 0);
	close(fd);
}

static void without_books(void)
{
	struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
	CHECK(kmem_group_create(ROOT, "x") == -ENOTSUP && kmem_group_find("") == -ENOTSUP);
	CHECK(kmem_group_current() == -ENOTSUP && kmem_group_of(plain) == -ENOTSUP);
	CHECK(kmem_group_enter(ROOT) == -ENOTSUP && kmem_group_stat(ROOT, &stat) == -ENOTSUP);
	CHECK(kmem_group_delete(ROOT + 1) == -ENOTSUP && kmem_group_dying() == -ENOTSUP);
}

int main(int argc, char **argv)
{
	if (!runs_on_kmem())
		return 0;
	plain = malloc(1);
	if (argc > 1) {
		without_books();
		return RESULT();
	}
	void (*parts[])(void) = { names, one_name_for_many_threads, as_many_as_there_can_be, numbers,
				  levels, reservations, scopes, structures };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		errno = 77;
		parts[i]();
		CHECK_AT(errno == 77, i);
	}
	limits();
	events();
	CHECK(kmem_group_dying() == 0);
	return RESULT();
}
