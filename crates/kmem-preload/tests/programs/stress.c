/* Threads allocate, resize and free at random, and hand blocks to one another. Every block carries
 * a pattern, which a thread checks before it resizes or frees the block.
 * Arguments: THREADS SECONDS SEED [migrate] [interrupt] [churn]. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>

enum { SHELF = 2048, OWN = 300 };

struct block {
	size_t size;
	size_t mark;
	uint64_t check;
};

static struct block *shelf[SHELF];
static int stop, migrate, churn, processors;
static cpu_set_t allowed;
static unsigned long operations, interrupted;

static uint64_t seal(const struct block *block)
{
	return (uint64_t)(uintptr_t)block ^ (block->size * 0x9e3779b97f4a7c15) ^ block->mark;
}

static size_t marked(size_t size)
{
	return size < 400 ? size : 400;
}

static struct block *dress(struct block *block, size_t size, uint64_t *state)
{
	REQUIRE(block != NULL);
	block->size = size;
	block->mark = next_random(state) & 0xffff;
	block->check = seal(block);
	fill(block + 1, marked(size), (unsigned)block->mark);
	if (size)
		((char *)(block + 1))[size - 1] = (char)pattern_at((unsigned)block->mark, size - 1);
	return block;
}

static void inspect(const struct block *block)
{
	REQUIRE(block->check == seal(block));
	REQUIRE(holds(block + 1, marked(block->size), (unsigned)block->mark));
	if (block->size)
		REQUIRE(((unsigned char *)(block + 1))[block->size - 1] ==
			pattern_at((unsigned)block->mark, block->size - 1));
}

static size_t random_size(uint64_t *state)
{
	uint64_t pick = next_random(state);
	unsigned kind = pick % 1000;
	pick >>= 12;
	if (kind < 700)
		return pick % 256;
	if (kind < 930)
		return pick % 2048;
	if (kind < 985)
		return pick % 32768;
	if (kind < 998)
		return pick % 400000;
	return pick % (5 * MIB);
}

static struct block *make(uint64_t *state)
{
	size_t size = random_size(state), total = size + sizeof(struct block);
	struct block *block;
	switch (next_random(state) % 10) {
	case 0:
		block = calloc(1, total);
		REQUIRE(block != NULL && all_zero(block, marked(total)));
		break;
	case 1: {
		size_t alignment = (size_t)16 << (next_random(state) % 12);
		block = memalign(alignment, total);
		REQUIRE(is_aligned(block, alignment));
		break;
	}
	case 2:
		block = realloc(NULL, total);
		break;
	default:
		block = malloc(total);
	}
	return dress(block, size, state);
}

static void discard(struct block *block)
{
	if (!block)
		return;
	inspect(block);
	block->check = 0;
	free(block);
}

static struct block *resize(struct block *block, uint64_t *state)
{
	size_t old = block->size, size = random_size(state);
	size_t mark = block->mark;
	inspect(block);
	block = realloc(block, size + sizeof *block);
	REQUIRE(block != NULL);
	REQUIRE(block->size == old && block->mark == mark);
	REQUIRE(holds(block + 1, marked(old < size ? old : size), (unsigned)mark));
	return dress(block, size, state);
}

static void move_to_processor(uint64_t *state)
{
	cpu_set_t one;
	int wanted = (int)(next_random(state) % (unsigned)processors);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && wanted-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			pthread_setaffinity_np(pthread_self(), sizeof one, &one);
			return;
		}
}

static void rounds(uint64_t *state, long limit)
{
	struct block *own[OWN] = { NULL };
	unsigned long done = 0;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED) && (!limit || done < (unsigned long)limit)) {
		int slot = (int)(next_random(state) % OWN);
		switch (next_random(state) % 8) {
		case 0:
		case 1: {
			struct block *fresh = make(state);
			discard(__atomic_exchange_n(&shelf[next_random(state) % SHELF], fresh, __ATOMIC_ACQ_REL));
			break;
		}
		case 2:
			if (own[slot])
				own[slot] = resize(own[slot], state);
			break;
		case 3: {
			struct block **place = &shelf[next_random(state) % SHELF];
			struct block *other = __atomic_exchange_n(place, NULL, __ATOMIC_ACQ_REL);
			discard(own[slot]);
			own[slot] = other ? resize(other, state) : NULL;
			break;
		}
		default:
			discard(own[slot]);
			own[slot] = make(state);
		}
		if (migrate && done % 64 == 0)
			move_to_processor(state);
		done++;
	}
	for (int slot = 0; slot < OWN; slot++)
		discard(own[slot]);
	__atomic_fetch_add(&operations, done, __ATOMIC_RELAXED);
}

static void *brief(void *seed)
{
	uint64_t state = (uintptr_t)seed | 1;
	rounds(&state, 500);
	return NULL;
}

static void *body(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15 + 7;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (churn) {
			pthread_t thread;
			REQUIRE(pthread_create(&thread, NULL, brief, (void *)(uintptr_t)next_random(&state)) == 0);
			pthread_join(thread, NULL);
		} else {
			rounds(&state, 0);
		}
	}
	return NULL;
}

static void count_interrupt(int number)
{
	(void)number;
	__atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 3);
	int threads = atoi(argv[1]), interrupt = 0;
	double end = seconds_now() + strtod(argv[2], NULL);
	for (int i = 4; i < argc; i++) {
		migrate |= !strcmp(argv[i], "migrate");
		interrupt |= !strcmp(argv[i], "interrupt");
		churn |= !strcmp(argv[i], "churn");
	}
	REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
	processors = CPU_COUNT(&allowed);
	struct sigaction action = { .sa_handler = count_interrupt, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, NULL);

	pthread_t ids[64];
	REQUIRE(threads <= 64);
	for (int i = 0; i < threads; i++) {
		uintptr_t seed = strtoul(argv[3], NULL, 0) * 64 + (unsigned)i + 1;
		REQUIRE(pthread_create(&ids[i], NULL, body, (void *)seed) == 0);
	}
	struct timespec pause = { 0, interrupt ? 50000 : 10000000 };
	while (seconds_now() < end) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		if (interrupt)
			for (int j = 0; j < threads; j++)
				pthread_kill(ids[j], SIGUSR1);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < SHELF; i++)
		discard(shelf[i]);
	dprintf(1, "%lu operations\n", operations);
	CHECK(operations > 0);
	return RESULT();
}
