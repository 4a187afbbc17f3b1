/* A function that is told of refusals: what it is told, on which thread, and what it may do. */
#include "group_check.h"
#include <kmem/refusal.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

static kmem_group_t parent, tenant;
static struct kmem_refusal last;
static char site[512];
static int calls, depth, too_much_within;
static pthread_t caller;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void told(void *data, const struct kmem_refusal *refusal)
{
	CHECK(data == &calls && depth++ == 0);
	calls++;
	last = *refusal;
	caller = pthread_self();
	CHECK(kmem_refusal_site(refusal, site, sizeof site) == (int)strlen(site));
	CHECK(kmem_refusal_site(refusal, site, strlen(site)) == -ERANGE);
	CHECK(kmem_refusal_site(refusal, NULL, 9) == -EFAULT);
	CHECK(kmem_refusal_site(NULL, site, 9) == -EFAULT);
	/* The root pays, and a group at its max refuses nothing. */
	void *note = malloc(5000);
	CHECK(note && kmem_group_of(note) == KMEM_GROUP_ROOT);
	free(note);
	int64_t token = kmem_group_enter(tenant);
	note = malloc(3 << 20);
	CHECK(note && kmem_group_of(note) == tenant && kmem_group_leave(token) == 0);
	free(note);
	/* It cannot wait for itself, nor wait for a lock that its thread may hold. */
	CHECK(kmem_on_refusal(NULL, NULL) == -EDEADLK);
	if (pthread_mutex_trylock(&lock) == 0)
		pthread_mutex_unlock(&lock);
	if (too_much_within)
		CHECK(opaque(malloc(PTRDIFF_MAX)) == NULL);
	errno = E2BIG;
	depth--;
}

static void makes_groups(void)
{
	parent = new_group("parent");
	tenant = kmem_group_create(parent, "tenant");
	REQUIRE(tenant > 0);
	CHECK(kmem_group_set(parent, KMEM_GROUP_MAX, 1 << 20) == 0);
}

static void tells_who_asked_for_how_much_of_what(void)
{
	CHECK(kmem_on_refusal(told, &calls) == 0);
	int64_t token = kmem_group_enter(tenant);
	void *held = malloc(100000);
	CHECK(held && calls == 0);
	uint64_t charged = stat_of(parent).current + stat_of(parent).cached;
	pthread_mutex_lock(&lock);
	errno = 0;
	CHECK(opaque(malloc(2 << 20)) == NULL && errno == ENOMEM);
	pthread_mutex_unlock(&lock);
	CHECK_AT(calls == 1 && pthread_equal(caller, pthread_self()), calls);
	CHECK(last.size == sizeof last && last.reason == KMEM_REFUSAL_AT_MAX);
	CHECK(last.group == parent && last.payer == tenant);
	CHECK_AT(last.bytes == 2 << 20, last.bytes);
	CHECK_AT(last.limit == 1 << 20, last.limit);
	/* Before a refusal, what CPUs keep is given up. */
	CHECK_AT(last.usage >= held_by(parent) && last.usage <= charged, last.usage);
	CHECK(last.caller > (uintptr_t)makes_groups - (1 << 20));
	CHECK(strncmp(site, "refusals+0x", 11) == 0 && strstr(site, " func:refusals+0x"));
	CHECK(kmem_group_current() == tenant);
	/* Each refusal is told, and only those. */
	CHECK(opaque(calloc(1, 3 << 20)) == NULL && opaque(realloc(held, 4 << 20)) == NULL);
	CHECK_AT(calls == 3, calls);
	CHECK(opaque(aligned_alloc(4096, 2 << 20)) == NULL && calls == 4);
	CHECK(kmem_group_try_charge(tenant, 2 << 20) == -ENOMEM && calls == 4);
	kmem_group_leave(token);
	CHECK(stat_of(parent).oom_events == 5);
	free(held);
	CHECK(held_by(parent) == 0);
}

static void tells_of_a_lack_of_memory(void)
{
	calls = 0;
	errno = 0;
	CHECK(opaque(malloc(PTRDIFF_MAX)) == NULL && errno == ENOMEM);
	CHECK(calls == 1 && last.reason == KMEM_REFUSAL_NO_MEMORY);
	CHECK(last.group == KMEM_GROUP_ROOT && last.payer == KMEM_GROUP_ROOT);
	CHECK_AT(last.bytes == PTRDIFF_MAX && last.limit > last.usage, last.usage);
	/* A failure within the function is not told. */
	too_much_within = 1;
	CHECK(opaque(malloc(PTRDIFF_MAX)) == NULL && calls == 2);
	too_much_within = 0;
	CHECK(opaque(malloc(SIZE_MAX)) == NULL && calls == 3 && last.bytes == SIZE_MAX);
	CHECK(opaque(calloc(SIZE_MAX, 2)) == NULL && calls == 3);
}

static int stop;
static long refused, counted;

static void counts(void *data, const struct kmem_refusal *refusal)
{
	CHECK(refusal->reason == KMEM_REFUSAL_AT_MAX);
	free(malloc(100));
	__atomic_fetch_add((long *)data, 1, __ATOMIC_RELAXED);
}

static void *is_refused(void *unused)
{
	int64_t token = kmem_group_enter(tenant);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		CHECK(opaque(malloc(2 << 20)) == NULL);
		__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
	}
	kmem_group_leave(token);
	return NULL;
}

static void can_be_replaced_while_threads_are_refused(void)
{
	pthread_t threads[4];
	long one[2] = { 0, 0 };
	CHECK(kmem_on_refusal(counts, &one[1]) == 0);
	for (int i = 0; i < 4; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, is_refused, NULL));
	/* Two functions take turns. None is called after it was replaced. */
	for (int i = 0; i < 40; i++) {
		CHECK(kmem_on_refusal(counts, &one[i % 2]) == 0);
		long before = __atomic_load_n(&one[1 - i % 2], __ATOMIC_RELAXED);
		long enough = __atomic_load_n(&one[i % 2], __ATOMIC_RELAXED) + 10;
		while (__atomic_load_n(&one[i % 2], __ATOMIC_RELAXED) < enough)
			sched_yield();
		CHECK(__atomic_load_n(&one[1 - i % 2], __ATOMIC_RELAXED) == before);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	/* Refusals between two functions are reported. */
	CHECK_AT(one[0] + one[1] <= refused && one[0] >= 200 && one[1] >= 200, refused);
}

static sem_t within, go_on;

static void waits(void *data, const struct kmem_refusal *refusal)
{
	sem_post(&within);
	sem_wait(&go_on);
}

static void *is_refused_once(void *unused)
{
	int64_t token = kmem_group_enter(tenant);
	CHECK(opaque(malloc(2 << 20)) == NULL && kmem_group_leave(token) == 0);
	return NULL;
}

static void forks(void *data, const struct kmem_refusal *refusal)
{
	*(pid_t *)data = fork();
}

static void a_child_can_replace_it(void)
{
	pthread_t thread;
	sem_init(&within, 0, 0);
	sem_init(&go_on, 0, 0);
	CHECK(kmem_on_refusal(waits, NULL) == 0);
	REQUIRE(!pthread_create(&thread, NULL, is_refused_once, NULL));
	sem_wait(&within);
	pid_t child = fork();
	if (!child) {
		alarm(HUNG);
		calls = 0;
		int right = kmem_on_refusal(told, &calls) == 0;
		is_refused_once(NULL);
		_exit(!right || calls != 1 || check_failures);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	sem_post(&go_on);
	pthread_join(thread, NULL);
	/* One that is forked by the function itself returns from it, too. */
	child = -1;
	CHECK(kmem_on_refusal(forks, &child) == 0);
	is_refused_once(NULL);
	if (!child) {
		alarm(HUNG);
		_exit(kmem_on_refusal(NULL, NULL) != 0 || check_failures);
	}
	status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	if (!runs_on_kmem())
		return 0;
	makes_groups();
	if (argc > 1) {
		/* Nothing is reported, but for what fails within the function. */
		CHECK(kmem_on_refusal(told, &calls) == 0);
		is_refused_once(NULL);
		CHECK(calls == 1);
		if (strcmp(argv[1], "reported") == 0) {
			CHECK(kmem_on_refusal(NULL, NULL) == 0);
			is_refused_once(NULL);
			CHECK(calls == 1);
		}
		return RESULT();
	}
	tells_who_asked_for_how_much_of_what();
	tells_of_a_lack_of_memory();
	can_be_replaced_while_threads_are_refused();
	a_child_can_replace_it();
	CHECK(kmem_on_refusal(NULL, NULL) == 0);
	return RESULT();
}
