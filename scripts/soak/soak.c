/* Storms: threads, forks, signals, changes of the CPU, libraries that come and go, groups.
 *
 * usage: soak SECONDS PLUGIN STORM..
 *
 * After each storm all but the main thread have ended, and the program holds what it has counted:
 * objects, and their bytes by malloc_usable_size. Then it prints a line, and waits for one on its
 * input. So its caller can compare the books with these numbers:
 *
 *	rest STORM SECONDS OBJECTS BYTES WHAT
 *
 * Every object has its own address in its first and last word. A storm that finds another word
 * there ends the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kmem/group.h"

#define SLOTS 20000
#define THREADS 8
#define NAMES 16

extern char **environ;

/* Objects that are held. The thread that takes one out of its slot has it alone. */
static _Atomic(void *) slots[SLOTS];
static atomic_long objects, bytes, calls, done[4];
static atomic_int over;
static const char *plugin;

static void die(const char *format, ...)
{
	char text[300];
	va_list list;
	va_start(list, format);
	int len = vsnprintf(text, sizeof(text) - 1, format, list);
	va_end(list);
	text[len] = '\n';
	(void)!write(2, text, len + 1);
	_exit(1);
}

static uint64_t next(uint64_t *state)
{
	/* xorshift (Marsaglia, 2003). */
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

static size_t size(uint64_t number)
{
	switch (number % 32) {
	case 0:
		return 16 + number / 32 % 300000;
	case 1 ... 5:
		return 16 + number / 32 % 9000;
	default:
		return 16 + number / 32 % 500;
	}
}

static void mark(void *at)
{
	size_t len = malloc_usable_size(at) & ~(size_t)7;
	*(void **)at = at;
	*(void **)((char *)at + len - 8) = at;
}

static void check(void *at)
{
	size_t len = malloc_usable_size(at) & ~(size_t)7;
	if (len < 16 || *(void **)at != at || *(void **)((char *)at + len - 8) != at)
		die("soak: the object at %p of %zu bytes was written to", at, len);
}

static void count(void *at, long sign)
{
	atomic_fetch_add(&objects, sign);
	atomic_fetch_add(&bytes, sign * (long)malloc_usable_size(at));
}

/* Null: there is no memory, or the group is at its limit. */
static __attribute__((noinline)) void *soak_alloc(uint64_t number)
{
	size_t len = size(number);
	void *at = NULL;
	switch (number >> 60) {
	case 0:
		at = aligned_alloc(64, (len + 63) & ~(size_t)63);
		break;
	case 1:
		at = calloc(1, len);
		break;
	default:
		at = malloc(len);
	}
	if (at)
		mark(at);
	return at;
}

/* The old object if there is no memory. */
static __attribute__((noinline)) void *soak_resize(void *at, uint64_t number)
{
	void *new = realloc(at, size(number));
	if (new)
		mark(new);
	return new ? new : at;
}

/* One step: something is freed, changed or made in a random slot. */
static void step(uint64_t *state)
{
	uint64_t number = next(state);
	_Atomic(void *) *slot = &slots[number % SLOTS];
	void *at = atomic_exchange(slot, NULL);
	atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
	if (at)
		check(at), count(at, -1);
	if (at && number >> 62 == 0) {
		at = soak_resize(at, next(state));
	} else {
		free(at);
		at = number >> 61 == 7 ? NULL : soak_alloc(next(state));
	}
	if (!at)
		return;
	count(at, 1);
	at = atomic_exchange(slot, at);
	if (at)
		count(at, -1), free(at);
}

static void steps(uint64_t seed, int times)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15 | 1;
	while (times--)
		step(&state);
}

static void *work(void *seed)
{
	for (uint64_t round = 0; !atomic_load(&over); round++)
		steps((uintptr_t)seed + round * THREADS, 1000);
	return NULL;
}

/* -- Storms: each runs until `over` is set ----------------------------------------------------- */

static void *short_life(void *seed)
{
	steps((uintptr_t)seed, 40);
	switch ((uintptr_t)seed % 3) {
	case 0:
		pthread_exit(NULL);
	case 1:
		/* Cancelled, if it is, where it holds nothing. */
		pthread_testcancel();
		usleep(1);
	}
	return NULL;
}

static void *make_threads(void *seed)
{
	for (uintptr_t round = (uintptr_t)seed; !atomic_load(&over); round += THREADS) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, short_life, (void *)round))
			continue;
		if (round % 3 == 1)
			pthread_cancel(thread);
		if (pthread_join(thread, NULL))
			die("soak: a thread cannot be joined");
		atomic_fetch_add(&done[0], 1);
	}
	return NULL;
}

/* The work of a forked child. It leaves the parent's slots alone: the kernel copied its memory
 * while other threads went on. So a slot and the object in it may be of two moments. */
static void child_steps(uint64_t seed, int times)
{
	for (int i = 0; i < SLOTS; i++)
		atomic_store_explicit(&slots[i], NULL, memory_order_relaxed);
	steps(seed, times);
	_exit(0);
}

static void reap(pid_t child)
{
	int status;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			die("soak: a child is lost: %s", strerror(errno));
	if (status)
		die("soak: a child ended with status %#x", status);
}

static void *fork_children(void *seed)
{
	for (uintptr_t round = (uintptr_t)seed; !atomic_load(&over); round += THREADS) {
		steps(round, 20);
		pid_t child;
		if (round / THREADS % 4 == 0) {
			char *command[] = { "true", NULL };
			if (posix_spawnp(&child, "true", NULL, NULL, command, environ))
				continue;
			atomic_fetch_add(&done[1], 1);
		} else {
			child = fork();
			if (child == 0)
				child_steps(round, 300);
			if (child < 0)
				continue;
			atomic_fetch_add(&done[0], 1);
		}
		reap(child);
	}
	return NULL;
}

static _Thread_local uint64_t handler_state;

static void on_signal(int number)
{
	int before = errno;
	if (!handler_state)
		handler_state = (uint64_t)gettid() << 20 | 1;
	step(&handler_state);
	if (number == SIGUSR2 && atomic_fetch_add(&done[1], 1) % 64 == 0) {
		pid_t child = fork();
		if (child == 0)
			child_steps(handler_state, 50);
		if (child > 0)
			reap(child);
	}
	atomic_fetch_add(&done[0], 1);
	errno = before;
}

static void *under_signals(void *seed)
{
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 };
	event._sigev_un._tid = gettid();
	struct itimerspec every = { { 0, 50000 + 1000 * (long)(uintptr_t)seed }, { 0, 50000 } };
	timer_t timer;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &every, NULL))
		die("soak: no timer: %s", strerror(errno));
	for (uintptr_t round = (uintptr_t)seed; !atomic_load(&over); round += THREADS) {
		steps(round, 500);
		raise(SIGUSR2);
	}
	timer_delete(timer);
	/* The last signal may be on its way. */
	signal(SIGUSR1, SIG_IGN);
	return NULL;
}

static void *change_cpus(void *seed)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	for (uintptr_t round = (uintptr_t)seed; !atomic_load(&over); round += THREADS) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(round / THREADS % cpus, &set);
		sched_setaffinity(0, sizeof(set), &set);
		atomic_fetch_add(&done[0], 1);
		steps(round, 30);
	}
	return NULL;
}

/* A library with tags of its own: what it allocates outlives it. */
static void *load_plugins(void *seed)
{
	char name[300];
	snprintf(name, sizeof(name), "%s.%d", plugin, (int)(uintptr_t)seed);
	for (uintptr_t round = (uintptr_t)seed; !atomic_load(&over); round += THREADS) {
		void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
		void *(*plugin_alloc)(size_t) = library ? dlsym(library, "plugin_alloc") : NULL;
		if (!plugin_alloc)
			die("soak: %s", dlerror());
		void *held[20];
		for (int i = 0; i < 20; i++)
			mark(held[i] = plugin_alloc(size(round * 20 + i)));
		dlclose(library);
		for (int i = 0; i < 20; i++)
			check(held[i]), free(held[i]);
		steps(round, 20);
		atomic_fetch_add(&done[0], 1);
	}
	return NULL;
}

static _Atomic(kmem_group_t) groups[NAMES];

static void *use_groups(void *seed)
{
	uint64_t state = (uintptr_t)seed | 1;
	for (uintptr_t round = (uintptr_t)seed; !atomic_load(&over); round += THREADS) {
		_Atomic(kmem_group_t) *place = &groups[next(&state) % NAMES];
		kmem_group_t group = atomic_load(place);
		switch (next(&state) % 8) {
		case 0:
			/* Its parent pays for what it holds. */
			if (group && atomic_compare_exchange_strong(place, &group, 0)) {
				if (kmem_group_delete(group))
					die("soak: a group cannot be deleted");
				atomic_fetch_add(&done[1], 1);
			}
			break;
		case 1:
			if (!group) {
				char name[32];
				snprintf(name, sizeof(name), "g%lu-%lu", (long)(uintptr_t)seed, round);
				kmem_group_t new = kmem_group_create(KMEM_GROUP_ROOT, name);
				kmem_group_t none = 0;
				if (new > 0 && !atomic_compare_exchange_strong(place, &none, new))
					kmem_group_delete(new);
			}
			break;
		case 2:
			if (group > 0)
				kmem_group_set(group, KMEM_GROUP_MAX, next(&state) % (4 << 20));
			atomic_fetch_add(&done[2], 1);
			break;
		default:
			/* It may be deleted meanwhile. */
			if (group > 0) {
				int64_t token = kmem_group_enter(group);
				steps(round, 50);
				if (token >= 0)
					kmem_group_leave(token);
				atomic_fetch_add(&done[0], 1);
			}
		}
	}
	return NULL;
}

static const struct {
	const char *name;
	void *(*run)(void *);
	/* Names of the counts in `done`. */
	const char *what[4];
} storms[] = {
	{ "threads", make_threads, { "threads" } },
	{ "forks", fork_children, { "forks", "commands" } },
	{ "signals", under_signals, { "signals", "from the thread itself" } },
	{ "cpus", change_cpus, { "changes of the CPU" } },
	{ "plugins", load_plugins, { "libraries loaded and unloaded" } },
	{ "groups", use_groups, { "stays in groups", "groups deleted", "limits moved" } },
};

static void storm(int number, int seconds)
{
	pthread_t threads[THREADS];
	atomic_store(&over, 0);
	atomic_store(&calls, 0);
	for (int i = 0; i < 4; i++)
		atomic_store(&done[i], 0);
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_signal);
	for (uintptr_t i = 0; i < THREADS; i++) {
		/* Half of them only allocate and free. */
		void *(*run)(void *) = i % 2 ? work : storms[number].run;
		if (pthread_create(&threads[i], NULL, run, (void *)(i + 1)))
			die("soak: no thread");
	}
	struct timespec left = { seconds, 0 };
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	atomic_store(&over, 1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < NAMES; i++) {
		kmem_group_t group = atomic_exchange(&groups[i], 0);
		if (group > 0)
			kmem_group_delete(group);
	}
	printf("rest %s %d %ld %ld %ld calls", storms[number].name, seconds, atomic_load(&objects),
	       atomic_load(&bytes), atomic_load(&calls));
	for (int i = 0; i < 4 && storms[number].what[i]; i++)
		printf(", %ld %s", atomic_load(&done[i]), storms[number].what[i]);
	printf("\n");
	fflush(stdout);
	char line[8];
	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

int main(int count, char **names)
{
	int seconds = atoi(names[1]);
	plugin = names[2];
	for (int i = 3; i < count; i++) {
		size_t number = 0;
		while (number < sizeof(storms) / sizeof(*storms) &&
		       strcmp(names[i], storms[number].name))
			number++;
		if (number == sizeof(storms) / sizeof(*storms))
			die("soak: there is no storm %s", names[i]);
		storm(number, seconds);
	}
	return 0;
}
