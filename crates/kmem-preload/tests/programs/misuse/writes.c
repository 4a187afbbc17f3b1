/* Writes outside of a block, or to a block that was freed: CASE SIZE [BYTES]. */
#include "heap.h"

/* Ends a case whose write may have hit other blocks. */
static int damage(unsigned char *block)
{
	int damaged = others_are_damaged();
	free(block);
	free_others();
	return passed(damaged ? UNNOTICED : HARMLESS);
}

static int behind(size_t size, size_t bytes)
{
	unsigned char *block = among_others(size);
	overwrite(block + size, bytes);
	return damage(block);
}

static int in_front(size_t size, size_t bytes)
{
	unsigned char *block = among_others(size);
	overwrite(block - bytes, bytes);
	return damage(block);
}

/* One byte at a distance, as with a wrong index. It skips all that lies between. */
static int far_behind(size_t size, size_t distance)
{
	unsigned char *block = among_others(size);
	overwrite(block + size + distance, 1);
	return damage(block);
}

static int far_in_front(size_t size, size_t distance)
{
	unsigned char *block = among_others(size);
	overwrite(block - distance, 1);
	return damage(block);
}

/* Everything that malloc_usable_size counts, and a byte more. */
static int behind_usable(size_t size, size_t bytes)
{
	unsigned char *block = among_others(size);
	overwrite(block + malloc_usable_size(block), bytes);
	return damage(block);
}

static int behind_calloc(size_t size, size_t bytes)
{
	unsigned char *block = (unsigned char *)calloc(size, 1);
	REQUIRE(block != NULL);
	announce(block);
	int slack = is_slack(block, size, bytes);
	overwrite(block + size, bytes);
	free(block);
	go_on(size);
	return passed(slack ? HARMLESS : UNNOTICED);
}

static int behind_aligned(size_t size, size_t bytes)
{
	unsigned char *block = (unsigned char *)aligned_alloc(64, size);
	REQUIRE(block != NULL);
	announce(block);
	int slack = is_slack(block, size, bytes);
	overwrite(block + size, bytes);
	free(block);
	go_on(size);
	return passed(slack ? HARMLESS : UNNOTICED);
}

/* A write behind a block that is never freed. */
static int behind_leaked(size_t size, size_t bytes)
{
	unsigned char *block = among_others(size);
	overwrite(block + size, bytes);
	go_on(size);
	return passed(others_are_damaged() ? UNNOTICED : HARMLESS);
}

/* The block shrinks, and its user goes on with its old size. */
static int behind_shrunk(size_t size, size_t bytes)
{
	unsigned char *block = (unsigned char *)realloc(among_others(size), size / 2);
	REQUIRE(block != NULL);
	announce(block);
	overwrite(block + size / 2, bytes);
	return damage(block);
}

static int after_free(size_t size, size_t offset)
{
	unsigned char *block = among_others(size);
	free(block);
	overwrite(block + offset, 1);
	free_others();
	return passed(UNNOTICED);
}

static int all_after_free(size_t size, size_t unused)
{
	(void)unused;
	unsigned char *block = among_others(size);
	free(block);
	overwrite(block, size);
	free_others();
	return passed(UNNOTICED);
}

/* The block has a second owner when the first one writes to it. */
static int after_reuse(size_t size, size_t unused)
{
	(void)unused;
	unsigned char *block = among_others(size), *second[100];
	free(block);
	int damaged = 0;
	for (size_t i = 0; i < 100; i++) {
		second[i] = (unsigned char *)malloc(size);
		memset(second[i], 1, size);
	}
	overwrite(block + size / 2, 1);
	for (size_t i = 0; i < 100; i++) {
		damaged |= second[i][size / 2] != 1;
		free(second[i]);
	}
	free_others();
	return passed(damaged ? UNNOTICED : HARMLESS);
}

/* A pointer that realloc made stale. */
static int after_realloc(size_t size, size_t offset)
{
	unsigned char *block = among_others(size);
	unsigned char *moved = (unsigned char *)realloc(block, 8 * size + 5000);
	REQUIRE(moved != NULL && moved != block);
	overwrite(block + offset, 1);
	free(moved);
	free_others();
	return passed(UNNOTICED);
}

/* A long time after the free: 16 MiB of blocks of another size were freed in between. */
static int long_after_free(size_t size, size_t offset)
{
	unsigned char *block = among_others(size);
	free(block);
	for (int i = 0; i < 4; i++)
		go_on(1000);
	overwrite(block + offset, 1);
	free_others();
	return passed(UNNOTICED);
}

static const struct {
	const char *name;
	int (*run)(size_t size, size_t number);
} CASES[] = {
	{ "behind", behind },
	{ "in_front", in_front },
	{ "far_behind", far_behind },
	{ "far_in_front", far_in_front },
	{ "behind_usable", behind_usable },
	{ "behind_calloc", behind_calloc },
	{ "behind_aligned", behind_aligned },
	{ "behind_leaked", behind_leaked },
	{ "behind_shrunk", behind_shrunk },
	{ "after_free", after_free },
	{ "all_after_free", all_after_free },
	{ "after_reuse", after_reuse },
	{ "after_realloc", after_realloc },
	{ "long_after_free", long_after_free },
};

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	size_t size = strtoul(argv[2], NULL, 0), number = argc > 3 ? strtoul(argv[3], NULL, 0) : 0;
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
		if (is(argv[1], CASES[i].name))
			return CASES[i].run(size, number);
	return passed(NO_SUCH_CASE);
}
