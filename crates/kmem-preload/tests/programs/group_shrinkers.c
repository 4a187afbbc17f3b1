/* Shrinkers that behave badly: they allocate, delete their group, remove themselves, wait for
 * others for long. */
#include "group_check.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

static kmem_group_t group;
static struct kmem_shrinker *shrinker;
static int calls, depth;
static void *cache[10000];
static int cached;

static size_t gives_back(void *data, kmem_group_t of, size_t bytes)
{
	size_t freed = 0;
	CHECK(of == group && data == cache && bytes > 0);
	CHECK(depth++ == 0);
	calls++;
	/* Above the limit, and without being called again. */
	void *note = malloc(5000);
	CHECK(note && kmem_group_of(note) == group);
	/* It cannot wait for itself. */
	CHECK(kmem_group_remove_shrinker(shrinker) == -EDEADLK);
	while (cached && freed < bytes) {
		freed += cost(cache[--cached]);
		free(cache[cached]);
	}
	free(note);
	depth--;
	return freed;
}

static void holds_a_group_at_its_limit(enum kmem_group_limit limit)
{
	group = new_group("cache");
	CHECK(kmem_group_add_shrinker(group, gives_back, cache, &shrinker) == 0);
	CHECK(kmem_group_set(group, limit, 1 << 20) == 0);
	int64_t token = kmem_group_enter(group);
	calls = 0;
	for (int i = 0; i < 20000; i++) {
		void *at = malloc(1000);
		CHECK_AT(at != NULL, i);
		cache[cached++] = at;
	}
	struct kmem_group_stat stat = stat_of(group);
	CHECK_AT(stat.current <= (1 << 20) + (64 << 10), stat.current);
	CHECK(calls > 10 && stat.oom_events == 0);
	CHECK((limit == KMEM_GROUP_MAX ? stat.max_events : stat.high_events) >= 10);
	/* A lower limit asks at once. */
	CHECK(kmem_group_set(group, limit, 1 << 19) == 0);
	CHECK_AT(held_by(group) <= 1 << 19, held_by(group));
	kmem_group_leave(token);
	while (cached)
		free(cache[--cached]);
	CHECK(kmem_group_remove_shrinker(shrinker) == 0);
	CHECK(kmem_group_delete(group) == 0 && kmem_group_dying() == 0);
}

static size_t deletes_the_group(void *data, kmem_group_t of, size_t bytes)
{
	calls++;
	CHECK(kmem_group_delete(of) == 0);
	return 0;
}

static void may_delete_its_group(void)
{
	group = new_group("short-lived");
	CHECK(kmem_group_add_shrinker(group, deletes_the_group, NULL, &shrinker) == 0);
	int64_t token = kmem_group_enter(group);
	void *at = malloc(100);
	calls = 0;
	CHECK(kmem_group_set(group, KMEM_GROUP_MAX, 50) == 0 && calls == 1);
	/* The parent pays now, who has no limit. */
	CHECK(kmem_group_current() == KMEM_GROUP_ROOT && kmem_group_of(at) == KMEM_GROUP_ROOT);
	void *more = malloc(100);
	CHECK(more && kmem_group_of(more) == KMEM_GROUP_ROOT);
	kmem_group_leave(token);
	free(at);
	free(more);
	CHECK(kmem_group_remove_shrinker(shrinker) == 0 && kmem_group_dying() == 0);
}

static sem_t within, go_on;

static size_t waits(void *data, kmem_group_t of, size_t bytes)
{
	sem_post(&within);
	sem_wait(&go_on);
	return 0;
}

static void *is_refused(void *unused)
{
	int64_t token = kmem_group_enter(group);
	CHECK(malloc(1 << 20) == NULL && kmem_group_leave(token) == 0);
	return NULL;
}

static void *removes(void *unused)
{
	CHECK(kmem_group_remove_shrinker(shrinker) == 0);
	return NULL;
}

static void disturbs_no_other_while_it_waits(void)
{
	pthread_t refused, remover;
	sem_init(&within, 0, 0);
	sem_init(&go_on, 0, 0);
	group = new_group("blocked");
	kmem_group_t other = new_group("other");
	CHECK(kmem_group_add_shrinker(group, waits, NULL, &shrinker) == 0);
	CHECK(kmem_group_set(group, KMEM_GROUP_MAX, 100000) == 0);
	REQUIRE(!pthread_create(&refused, NULL, is_refused, NULL));
	sem_wait(&within);
	/* Allocations go on in this group below its limit, in other groups, in groups that come and go,
	 * and in a child. */
	for (int i = 0; i < 1000; i++) {
		kmem_group_t at = i % 2 ? group : other;
		int64_t token = kmem_group_enter(at);
		void *block = malloc(i);
		CHECK(kmem_group_of(block) == at);
		kmem_group_leave(token);
		free(block);
		CHECK(kmem_group_delete(new_group("passing")) == 0);
	}
	CHECK(kmem_group_set(other, KMEM_GROUP_MAX, 0) == 0);
	pid_t child = fork();
	if (!child) {
		alarm(HUNG);
		int right = kmem_group_remove_shrinker(shrinker) == 0 && kmem_group_delete(other) == 0;
		_exit(!right);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	REQUIRE(!pthread_create(&remover, NULL, removes, NULL));
	sem_post(&go_on);
	pthread_join(refused, NULL);
	pthread_join(remover, NULL);
	CHECK(held_by(group) == 0 && stat_of(group).oom_events == 1);
	CHECK(kmem_group_delete(group) == 0 && kmem_group_delete(other) == 0 && kmem_group_dying() == 0);
}

int main(void)
{
	if (!runs_on_kmem())
		return 0;
	holds_a_group_at_its_limit(KMEM_GROUP_MAX);
	holds_a_group_at_its_limit(KMEM_GROUP_HIGH);
	may_delete_its_group();
	disturbs_no_other_while_it_waits();
	return RESULT();
}
