/* All of malloc_usable_size belongs to the caller, and it stays the same until realloc. */
#include "check.h"

static void whole(size_t size)
{
	enum { NEIGHBOURS = 5 };
	char *blocks[NEIGHBOURS];
	size_t usable[NEIGHBOURS];
	for (int i = 0; i < NEIGHBOURS; i++) {
		blocks[i] = malloc(size);
		REQUIRE(blocks[i] != NULL);
		usable[i] = malloc_usable_size(blocks[i]);
		CHECK_AT(usable[i] >= size, size);
		fill(blocks[i], usable[i], (unsigned)(size + (size_t)i));
	}
	for (int i = 0; i < NEIGHBOURS; i++) {
		CHECK_AT(malloc_usable_size(blocks[i]) == usable[i], size);
		CHECK_AT(holds(blocks[i], usable[i], (unsigned)(size + (size_t)i)), size);
	}
	/* realloc sees the bytes behind the requested size, too. */
	blocks[0] = realloc(blocks[0], usable[0] + 100);
	REQUIRE(blocks[0] != NULL);
	CHECK_AT(holds(blocks[0], size, (unsigned)size), size);
	for (int i = 0; i < NEIGHBOURS; i++)
		free(blocks[i]);
}

int main(void)
{
	CHECK(malloc_usable_size(NULL) == 0);
	for (size_t size = 0; size <= 2100; size++)
		whole(size);
	for (size_t size = 2100; size < 6 * MIB; size += 1 + size / 5)
		whole(size);
	for (int k = 4; k < 22; k++) {
		char *block = memalign((size_t)1 << k, 777);
		REQUIRE(block != NULL);
		size_t usable = malloc_usable_size(block);
		CHECK_AT(usable >= 777, k);
		memset(block, 1, usable);
		CHECK_AT(malloc_usable_size(block) == usable, k);
		free(block);
	}
	return RESULT();
}
