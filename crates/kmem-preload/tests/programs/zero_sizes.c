/* A request for no bytes gives a unique pointer that can be freed, from every entry point. */
#include "check.h"

static void unique(void *(*make)(void))
{
	void *blocks[200];
	for (int i = 0; i < 200; i++) {
		blocks[i] = make();
		CHECK(blocks[i] != NULL);
		for (int j = 0; j < i; j++)
			CHECK(blocks[i] != blocks[j]);
	}
	for (int i = 0; i < 200; i++)
		free(blocks[i]);
}

static void *by_malloc(void) { return malloc(0); }
static void *by_calloc_items(void) { return calloc(0, SIZE_MAX); }
static void *by_calloc_bytes(void) { return calloc(SIZE_MAX, 0); }
static void *by_calloc(void) { return calloc(0, 0); }
static void *by_realloc(void) { return realloc(NULL, 0); }
static void *by_memalign(void) { return memalign(64, 0); }
static void *by_aligned_alloc(void) { return aligned_alloc(64, 0); }
static void *by_valloc(void) { return valloc(0); }
static void *by_pvalloc(void) { return pvalloc(0); }
static void *by_posix_memalign(void)
{
	void *block = NULL;
	CHECK(posix_memalign(&block, 4096, 0) == 0);
	CHECK(is_aligned(block, 4096));
	return block;
}

int main(void)
{
	unique(by_malloc);
	unique(by_calloc_items);
	unique(by_calloc_bytes);
	unique(by_calloc);
	unique(by_realloc);
	unique(by_memalign);
	unique(by_aligned_alloc);
	unique(by_valloc);
	unique(by_pvalloc);
	unique(by_posix_memalign);

	void *page = valloc(0);
	CHECK(is_aligned(page, (size_t)sysconf(_SC_PAGESIZE)));
	free(page);
	page = pvalloc(0);
	CHECK(is_aligned(page, (size_t)sysconf(_SC_PAGESIZE)));
	free(page);

	/* Blocks of no bytes take no memory that others could use: what they gave back can be used. */
	static void *many[100000];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 100000; i++)
			REQUIRE((many[i] = malloc(0)) != NULL);
		CHECK(malloc_usable_size(many[round]) == 0);
		for (int i = 0; i < 100000; i++)
			free(many[i]);
		malloc_trim(0);
		for (int i = 0; i < 200; i++) {
			REQUIRE((many[i] = malloc(20000)) != NULL);
			memset(many[i], round, 20000);
		}
		for (int i = 0; i < 200; i++)
			free(many[i]);
	}

	/* A block of no bytes can grow. */
	char *grown = realloc(malloc(0), 100);
	REQUIRE(grown != NULL);
	memset(grown, 1, 100);
	free(grown);
	return RESULT();
}
