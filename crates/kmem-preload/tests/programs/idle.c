/* A program that falls from its peak and then makes no calls. Argument: CASE. */
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { SIZE = 1000, COUNT = 100000, LEFT = 10 };
static char *objects[COUNT];

/* Number of threads, and whether the last one that is not this one lets no signal in. A new thread
 * names itself. */
static int threads(int *quiet)
{
	char path[300], text[4096];
	int count = 0;
	double end = seconds_now() + HUNG;
	DIR *tasks = opendir("/proc/self/task");
	REQUIRE(tasks);
	for (struct dirent *task; (task = readdir(tasks));) {
		unsigned long long blocked = 0;
		if (task->d_name[0] == '.')
			continue;
		count++;
		if (atoi(task->d_name) == getpid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
		do
			read_file(path, text, sizeof text);
		while (strncmp(text, "Name:\tkmem\n", 11) != 0 && seconds_now() < end);
		CHECK(seconds_now() < end);
		REQUIRE(strstr(text, "SigBlk:"));
		sscanf(strstr(text, "SigBlk:"), "SigBlk: %llx", &blocked);
		*quiet = (blocked & 1ull << (SIGTERM - 1)) && (blocked & 1ull << (SIGUSR1 - 1));
	}
	closedir(tasks);
	return count;
}

/* Uses 100 MB, and frees all but a little of each slab's memory. */
static void fall(void)
{
	for (int i = 0; i < COUNT; i++) {
		REQUIRE((objects[i] = malloc(SIZE)) != NULL);
		memset(objects[i], i, SIZE);
	}
	for (int i = LEFT; i < COUNT; i++)
		free(objects[i]);
}

static void pick_up(void)
{
	for (int i = 0; i < LEFT; i++) {
		CHECK(objects[i][SIZE - 1] == (char)i);
		free(objects[i]);
	}
}

/* Waits without a call of malloc until this much is resident, for a minute at most. */
static void wait_for_resident(size_t most)
{
	double end = seconds_now() + HUNG;
	while (resident_bytes() > most && seconds_now() < end)
		usleep(1000);
	CHECK_AT(resident_bytes() <= most, resident_bytes());
}

static void gives_back(void)
{
	size_t before = resident_bytes();
	int quiet = 0;
	fall();
	wait_for_resident(before + 4 * MIB);
	CHECK(threads(&quiet) == 2);
	CHECK(quiet);
	pick_up();
}

/* Falls again: the thread rests in between. */
static void again(void)
{
	gives_back();
	gives_back();
}

static void in_child(void)
{
	gives_back();
	pid_t child = fork();
	REQUIRE(child >= 0);
	if (!child) {
		int quiet = 0;
		CHECK(threads(&quiet) == 2);
		gives_back();
		_exit(RESULT());
	}
	int status = 0;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The parent's own goes on. */
	gives_back();
}

/* Until a child of vfork ends, it has the memory of its parent, but no thread may be its. */
static void in_vfork_child(void)
{
	pid_t child = vfork();
	REQUIRE(child >= 0);
	if (!child) {
		fall();
		for (int i = 0; i < LEFT; i++)
			free(objects[i]);
		int quiet;
		_exit(threads(&quiet) != 1);
	}
	int status = 0;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	gives_back();
}

/* Becomes a program of a user who may have one thread. */
static void refused(void)
{
	struct rlimit one = { 1, 1 };
	REQUIRE(setrlimit(RLIMIT_NPROC, &one) == 0);
	/* A limit does not hold for root. No other process has this user. */
	REQUIRE(getuid() != 0 || setuid(1000000 + (uid_t)getpid()) == 0);
	execl("/proc/self/exe", "idle", "without_thread", NULL);
	REQUIRE(!"exec");
}

static void without_thread(void)
{
	int quiet;
	fall();
	CHECK(threads(&quiet) == 1);
	pick_up();
}

static void *fall_later(void *unused)
{
	(void)unused;
	fall();
	return NULL;
}

/* The program ends with its last thread, which is not the main one. */
static void main_exits(void)
{
	pthread_t other;
	REQUIRE(pthread_create(&other, NULL, fall_later, NULL) == 0);
	pthread_exit(NULL);
}

static void *nothing(void *unused)
{
	return unused;
}

/* A join frees under a lock of the C library when it gives the stacks of threads back. */
static void many_stacks(void)
{
	enum { THREADS = 24 };
	pthread_t all[THREADS];
	pthread_attr_t attr;
	REQUIRE(pthread_attr_init(&attr) == 0);
	REQUIRE(pthread_attr_setstacksize(&attr, 8 * MIB) == 0);
	fall();
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < THREADS; i++)
			REQUIRE(pthread_create(&all[i], &attr, nothing, NULL) == 0);
		for (int i = 0; i < THREADS; i++)
			REQUIRE(pthread_join(all[i], NULL) == 0);
	}
	pick_up();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "again", again },     { "in_child", in_child },
		      { "refused", refused }, { "in_vfork_child", in_vfork_child },
		      { "many_stacks", many_stacks }, { "main_exits", main_exits },
		      { "without_thread", without_thread } };
	for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return RESULT();
		}
	return 2;
}
