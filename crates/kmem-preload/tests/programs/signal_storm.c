/* Signal handlers allocate and free while the interrupted code does, too: CASE SECONDS LARGEST. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { SHELF = 64, THREADS = 4 };

struct block {
	unsigned size;
	unsigned seed;
};

/* Blocks travel from handlers to interrupted code and back through here. */
static struct block *shelf[SHELF];
static unsigned long handler_calls;
static size_t largest;
static int stop, armed;

static size_t marked(size_t size)
{
	return size < 256 ? size : 256;
}

static void trade(uint64_t *state)
{
	size_t size = sizeof(struct block) + next_random(state) % largest;
	struct block *fresh = malloc(size);
	if (!fresh) {
		CHECK(errno == ENOMEM);
		return;
	}
	fresh->size = (unsigned)(size - sizeof *fresh);
	fresh->seed = (unsigned)*state;
	fill(fresh + 1, marked(fresh->size), fresh->seed);
	struct block **place = &shelf[next_random(state) % SHELF];
	struct block *old = __atomic_exchange_n(place, fresh, __ATOMIC_ACQ_REL);
	if (old) {
		CHECK(holds(old + 1, marked(old->size), old->seed));
		free(old);
	}
}

static void handler(int number)
{
	static uint64_t counter = 0x9e3779b97f4a7c15;
	int saved = errno;
	(void)number;
	uint64_t state = __atomic_add_fetch(&counter, 0x9e3779b97f4a7c15, __ATOMIC_RELAXED) | 1;
	next_random(&state);
	__atomic_fetch_add(&handler_calls, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 4; i++)
		trade(&state);
	void *pointer = realloc(malloc(10), 100);
	free(pointer);
	__atomic_store_n(&armed, 0, __ATOMIC_RELAXED);
	errno = saved;
}

static void *worker(void *seed)
{
	uint64_t state = (uintptr_t)seed * 7717 + 5;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		trade(&state);
	return NULL;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 3);
	double end = seconds_now() + strtod(argv[2], NULL);
	largest = strtoul(argv[3], NULL, 0);
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	sigemptyset(&action.sa_mask);
	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);

	if (!strcmp(argv[1], "timer")) {
		uint64_t state = 12345;
		while (seconds_now() < end || handler_calls <= 20)
			for (int i = 0; i < 100; i++) {
				if (!__atomic_exchange_n(&armed, 1, __ATOMIC_RELAXED)) {
					/* Once each time, so that a slow machine makes progress here. */
					struct itimerval soon = { { 0, 0 }, { 0, (long)(1 + next_random(&state) % 100) } };
					setitimer(ITIMER_REAL, &soon, NULL);
				}
				trade(&state);
			}
		struct itimerval never = { { 0, 0 }, { 0, 0 } };
		setitimer(ITIMER_REAL, &never, NULL);
	} else if (!strcmp(argv[1], "threads")) {
		pthread_t threads[THREADS];
		for (uintptr_t i = 0; i < THREADS; i++)
			REQUIRE(pthread_create(&threads[i], NULL, worker, (void *)(i + 1)) == 0);
		uint64_t state = 99;
		while (seconds_now() < end || handler_calls <= 20) {
			pthread_kill(threads[next_random(&state) % THREADS], SIGUSR1);
			trade(&state);
		}
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
	} else {
		return 4;
	}
	for (int i = 0; i < SHELF; i++)
		free(shelf[i]);
	return RESULT();
}
