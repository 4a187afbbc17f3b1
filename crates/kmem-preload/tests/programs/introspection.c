/* mallopt, mallinfo, malloc_info, malloc_stats and malloc_trim answer as the C library's documents
 * say. */
#include "check.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

int main(void)
{
	CHECK(mallopt(M_MXFAST, 64) == 1);
	CHECK(mallopt(M_TRIM_THRESHOLD, 128 * 1024) == 1);
	CHECK(mallopt(M_TOP_PAD, 4096) == 1);
	CHECK(mallopt(M_MMAP_THRESHOLD, 128 * 1024) == 1);
	CHECK(mallopt(M_MMAP_MAX, 65536) == 1);
	CHECK(mallopt(M_CHECK_ACTION, 3) == 1);
	CHECK(mallopt(M_PERTURB, 0) == 1);
	CHECK(mallopt(M_ARENA_TEST, 8) == 1);
	CHECK(mallopt(M_ARENA_MAX, 8) == 1);
	if (runs_on_kmem()) {
		CHECK(mallopt(12345, 1) == 0);
		CHECK(mallopt(-99, 1) == 0);
		CHECK(mallopt(INT_MIN, INT_MIN) == 0);
	}
	mallopt(M_MXFAST, -1);
	mallopt(M_ARENA_MAX, 0);

	struct mallinfo2 before = mallinfo2();
	static void *blocks[4000];
	for (int i = 0; i < 4000; i++)
		REQUIRE((blocks[i] = malloc(1000)) != NULL);
	struct mallinfo2 during = mallinfo2();
	CHECK(during.uordblks + during.hblkhd >= before.uordblks + before.hblkhd + 3900000);
	struct mallinfo narrow = mallinfo();
	CHECK(narrow.uordblks + narrow.hblkhd >= 3900000);
	for (int i = 0; i < 4000; i++)
		free(blocks[i]);
	struct mallinfo2 after = mallinfo2();
	/* Without profiling only whole slabs can be counted. */
	const char *settings = getenv("KMEM_CONF");
	size_t slack = settings && strstr(settings, "never") ? 2 * MIB : 100000;
	CHECK(after.uordblks + after.hblkhd <= before.uordblks + before.hblkhd + slack);

	char *text = NULL;
	size_t length = 0;
	FILE *stream = open_memstream(&text, &length);
	REQUIRE(stream != NULL);
	CHECK(malloc_info(0, stream) == 0);
	CHECK(malloc_info(1, stream) != 0);
	fclose(stream);
	CHECK(strncmp(text, "<malloc", 7) == 0);
	CHECK(strstr(text, "</malloc>") != NULL);
	free(text);

	FILE *unwritable = fopen("/dev/null", "r");
	REQUIRE(unwritable != NULL);
	int outcome = malloc_info(0, unwritable);
	CHECK(!runs_on_kmem() || outcome != 0);
	fclose(unwritable);
	FILE *full = fopen("/dev/full", "w");
	if (full) {
		setvbuf(full, NULL, _IONBF, 0);
		outcome = malloc_info(0, full);
		CHECK(!runs_on_kmem() || outcome != 0);
		fclose(full);
	}

	malloc_stats();

	/* malloc_trim gives freed memory back at once. */
	size_t resident = resident_bytes();
	static void *many[100000];
	for (int i = 0; i < 100000; i++) {
		REQUIRE((many[i] = malloc(2000)) != NULL);
		memset(many[i], 1, 2000);
	}
	CHECK(resident_bytes() > resident + 150 * MIB);
	for (int i = 0; i < 100000; i++)
		free(many[i]);
	malloc_trim(0);
	CHECK_AT(resident_bytes() < resident + 24 * MIB, resident_bytes());
	CHECK(malloc_trim(0) == 0 || malloc_trim(0) == 1);
	return RESULT();
}
