/* A parent of one thread leaves freed and dirty memory of all sizes. Its children free, replace and
 * resize the blocks that they inherited, and find zeroes where calloc promises them.
 * Arguments: LARGEST ROUNDS. */
#include "check.h"
#include <sys/wait.h>

enum { BLOCKS = 200, DIRTY = 100 };

static char *blocks[BLOCKS];
static size_t sizes[BLOCKS];
static size_t largest;

static size_t draw(uint64_t *state)
{
	return next_random(state) % largest + 1;
}

static size_t marked(size_t size)
{
	return size < 2000 ? size : 2000;
}

static void replace(int slot, uint64_t *state)
{
	if (blocks[slot])
		REQUIRE(holds(blocks[slot], marked(sizes[slot]), (unsigned)slot));
	free(blocks[slot]);
	sizes[slot] = draw(state);
	REQUIRE((blocks[slot] = malloc(sizes[slot])) != NULL);
	fill(blocks[slot], marked(sizes[slot]), (unsigned)slot);
}

static void leave_dirt(uint64_t *state)
{
	void *dirty[DIRTY];
	for (int i = 0; i < DIRTY; i++) {
		size_t size = draw(state);
		REQUIRE((dirty[i] = malloc(size)) != NULL);
		memset(dirty[i], 0xaa, size);
	}
	for (int i = 0; i < DIRTY; i++)
		free(dirty[i]);
}

static void child(uint64_t state)
{
	alarm(HUNG);
	for (int i = 0; i < 2000; i++)
		replace((int)(next_random(&state) % BLOCKS), &state);
	for (int i = 0; i < DIRTY; i++) {
		size_t size = draw(&state);
		char *block = calloc(1, size);
		REQUIRE(block != NULL);
		CHECK_AT(all_zero(block, size), size);
	}
	for (int slot = 0; slot < BLOCKS; slot++) {
		size_t size = draw(&state);
		blocks[slot] = realloc(blocks[slot], size);
		REQUIRE(blocks[slot] != NULL);
		CHECK(holds(blocks[slot], marked(size < sizes[slot] ? size : sizes[slot]), (unsigned)slot));
		free(blocks[slot]);
	}
	_exit(RESULT());
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	largest = strtoul(argv[1], NULL, 0);
	int rounds = atoi(argv[2]);
	uint64_t state = 17;
	for (int slot = 0; slot < BLOCKS; slot++)
		replace(slot, &state);
	for (int round = 0; round < rounds && !check_failures; round++) {
		leave_dirt(&state);
		for (int i = 0; i < 100; i++)
			replace((int)(next_random(&state) % BLOCKS), &state);
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0)
			child(state + (unsigned)round);
		int status = 0;
		REQUIRE(waitpid(pid, &status, 0) == pid);
		CHECK_AT(status == 0, status);
	}
	for (int slot = 0; slot < BLOCKS; slot++)
		replace(slot, &state);
	return RESULT();
}
