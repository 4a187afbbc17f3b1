/* Under KMEM_CONF=group-by:thread-name every thread works in the group named after it. The argument
 * says what to try. */
#include "group_check.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <threads.h>

static char program[32];

/* This thread pays for what it allocates as a group of that name, below the root. */
static void works_as(const char *name)
{
	kmem_group_t group = kmem_group_find(name);
	CHECK_AT(group > 0, group);
	uint64_t before = held_by(group);
	void *at = malloc(5000);
	CHECK_AT(kmem_group_of(at) == group && held_by(group) == before + cost(at), kmem_group_of(at));
	free(at);
	CHECK(held_by(group) == before && kmem_group_current() == group);
	CHECK(kmem_group_parent(group) == KMEM_GROUP_ROOT);
}

static void *starts_as(void *name)
{
	works_as(name);
	return name;
}

static void run(void *(*function)(void *), void *argument)
{
	pthread_t thread;
	void *result = NULL;
	REQUIRE(!pthread_create(&thread, NULL, function, argument));
	CHECK(!pthread_join(thread, &result) && (result == argument || result == PTHREAD_CANCELED));
}

static void *names_itself(void *name)
{
	works_as(program);
	CHECK(!pthread_setname_np(pthread_self(), "first name"));
	works_as("first name");
	run(starts_as, "first name");
	CHECK(!prctl(PR_SET_NAME, "second name"));
	works_as("second name");
	errno = 0;
	CHECK(prctl(PR_SET_NAME, NULL) == -1 && errno == EFAULT);
	CHECK(pthread_setname_np(pthread_self(), "0123456789abcdef") == ERANGE);
	works_as("second name");
	CHECK(!prctl(PR_SET_NAME, "0123456789abcdefgh"));
	works_as("0123456789abcde");
	char is[16];
	CHECK(!prctl(PR_GET_NAME, is) && !strcmp(is, "0123456789abcde"));
	return name;
}

static void *odd_names(void *argument)
{
	const char *names[][2] = { { "a/b/c", "a_b_c" }, { "/", "_" }, { "", "_" }, { ".", "_" },
				   { "..", "__" },
				   { "\xff\xfe!", "__!" }, { "tab\there\x1b[1m", "tab_here_[1m" },
				   { "caf\xc3\xa9", "caf\xc3\xa9" }, { "15 bytes of \xe2\x82\xac", "15 bytes of \xe2\x82\xac" },
				   { "cut in a \xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", "cut in a \xe2\x82\xac\xe2\x82\xac" } };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		CHECK(!prctl(PR_SET_NAME, names[i][0]));
		char name[KMEM_GROUP_NAME_SIZE] = "";
		CHECK(kmem_group_name(kmem_group_current(), name, sizeof name) > 0);
		CHECK_AT(!strcmp(name, names[i][1]), i);
		works_as(names[i][1]);
	}
	return argument;
}

static sem_t within, go_on;

static void *is_named(void *scope)
{
	int64_t token = scope ? kmem_group_enter(*(kmem_group_t *)scope) : 0;
	sem_post(&within);
	sem_wait(&go_on);
	if (scope) {
		void *at = malloc(100);
		CHECK(kmem_group_of(at) == *(kmem_group_t *)scope);
		free(at);
		CHECK(kmem_group_leave(token) == 0);
	}
	/* The first call of each kind comes after the name. */
	void *at = scope ? calloc(10, 10) : malloc(100);
	CHECK(kmem_group_of(at) == kmem_group_find("named"));
	free(at);
	works_as("named");
	return scope;
}

static void named_by_others(void)
{
	kmem_group_t group = new_group("its own scope");
	sem_init(&within, 0, 0);
	sem_init(&go_on, 0, 0);
	for (int scoped = 0; scoped < 2; scoped++) {
		pthread_t thread;
		REQUIRE(!pthread_create(&thread, NULL, is_named, scoped ? &group : NULL));
		sem_wait(&within);
		CHECK(!pthread_setname_np(thread, "twice"));
		CHECK(!pthread_setname_np(thread, "named"));
		sem_post(&go_on);
		pthread_join(thread, NULL);
	}
	works_as(program);
	CHECK(kmem_group_delete(group) == 0 && kmem_group_delete(kmem_group_find("named")) == 0);
	CHECK(kmem_group_dying() == 0);
}

static int c11(void *name)
{
	works_as(name);
	return 42;
}

static pthread_key_t late;
static int late_calls;

static void allocates_late(void *round)
{
	void *at = malloc(100);
	late_calls++;
	CHECK(kmem_group_of(at) == kmem_group_find("ends"));
	free(at);
	if ((uintptr_t)round < 3)
		pthread_setspecific(late, (char *)round + 1);
}

static void *ends(void *how)
{
	prctl(PR_SET_NAME, "ends");
	pthread_setspecific(late, (void *)1);
	if (how == &late) {
		pthread_cancel(pthread_self());
		pthread_testcancel();
	}
	if (how == &late_calls)
		pthread_exit(how);
	return how;
}

static void *exits(void *result)
{
	pthread_exit(result);
}

static void ends_of_threads(void)
{
	thrd_t thread;
	/* The first time, the C library loads what it needs for this. */
	run(exits, NULL);
	int result = 0;
	CHECK(thrd_create(&thread, c11, program) == thrd_success);
	CHECK(thrd_join(thread, &result) == thrd_success && result == 42);
	REQUIRE(!pthread_key_create(&late, allocates_late));
	run(ends, NULL);
	run(ends, &late_calls);
	run(ends, &late);
	CHECK_AT(late_calls == 9, late_calls);
	/* None of them is in it any more. */
	CHECK(kmem_group_delete(kmem_group_find("ends")) == 0 && kmem_group_dying() == 0);
}

static void *in_many(void *name)
{
	pthread_setname_np(pthread_self(), name);
	free(malloc(100));
	return name;
}

static void many_threads(void)
{
	static char *names[] = { "worker 0", "worker 1", "worker 2", "worker 3", "worker 4" };
	kmem_group_t before = new_group("before");
	CHECK(kmem_group_delete(before) == 0);
	for (int i = 0; i < 10000; i++)
		run(in_many, names[i % 5]);
	for (int i = 0; i < 5; i++)
		CHECK(kmem_group_delete(kmem_group_find(names[i])) == 0);
	CHECK(kmem_group_dying() == 0);
	/* The place is free as before. */
	kmem_group_t after = new_group("after");
	CHECK_AT((before & 16383) == (after & 16383), after);
	CHECK(kmem_group_delete(after) == 0);
}

/* More names than there can be groups: the rest work for the root, and go on as ever. */
static void many_names(void)
{
	char name[16];
	int rest = 0;
	for (int i = 0; i < 20000; i++) {
		snprintf(name, sizeof name, "name %d", i);
		CHECK(!prctl(PR_SET_NAME, name));
		void *at = malloc(100);
		rest += kmem_group_of(at) == KMEM_GROUP_ROOT;
		free(at);
	}
	CHECK_AT(rest > 3000 && rest < 20000, rest);
	CHECK(!prctl(PR_SET_NAME, "name 1"));
	works_as("name 1");
}

static int status_of(pid_t child)
{
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

static void *forks(void *argument)
{
	prctl(PR_SET_NAME, "forks");
	pid_t child = fork();
	if (!child) {
		alarm(HUNG);
		works_as("forks");
		run(names_itself, (prctl(PR_SET_NAME, program), argument));
		works_as(program);
		CHECK(kmem_group_find("second name") > 0);
		child = vfork();
		if (!child) {
			prctl(PR_SET_NAME, "grandchild");
			_exit(0);
		}
		CHECK(status_of(child) == 0);
		works_as(program);
		_exit(RESULT());
	}
	CHECK(status_of(child) == 0);
	CHECK(kmem_group_find("second name") == -ESRCH);
	works_as("forks");
	/* A child that shares memory with us is not this thread. */
	child = vfork();
	if (!child) {
		prctl(PR_SET_NAME, "child");
		_exit(0);
	}
	CHECK(status_of(child) == 0 && kmem_group_find("child") == -ESRCH);
	works_as("forks");
	return argument;
}

int main(int argc, char **argv)
{
	if (!runs_on_kmem())
		return 0;
	if (argc > 1) {
		/* The option is not given, or cannot be had. */
		CHECK(!prctl(PR_SET_NAME, "x") && kmem_group_find("x") < 0);
		void *at = malloc(1);
		CHECK(kmem_group_of(at) == KMEM_GROUP_ROOT || kmem_group_of(at) == -ENOTSUP);
		free(at);
		return RESULT();
	}
	prctl(PR_GET_NAME, program);
	works_as(program);
	run(starts_as, program);
	forks(NULL);
	prctl(PR_SET_NAME, program);
	run(names_itself, NULL);
	run(odd_names, NULL);
	named_by_others();
	ends_of_threads();
	works_as(program);
	many_threads();
	many_names();
	return RESULT();
}
