/* realloc keeps the bytes both sizes share, whatever the two sizes and however the block was
 * made. */
#include "check.h"
#include <sys/mman.h>

static void resize(void *block, size_t from, size_t to)
{
	REQUIRE(block != NULL);
	fill(block, from, (unsigned)(from ^ to));
	char *moved = realloc(block, to);
	REQUIRE(moved != NULL);
	CHECK_AT(holds(moved, from < to ? from : to, (unsigned)(from ^ to)), to);
	memset(moved, 0x5a, to);
	free(moved);
}

int main(void)
{
	static const size_t sizes[] = {
		1, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257,
		500, 511, 512, 513, 1000, 1023, 1024, 1025, 2000, 2048, 3000, 4095, 4096, 4097, 8000, 8192,
		8193, 12000, 16384, 16385, 30000, 32768, 32769, 50000, 65535, 65536, 65537, 100000, 131072,
		200000, 262144, 300000, 524288, 1000000, 2097152, 3000000, 4194304, 4194305, 9000000,
	};
	enum { COUNT = sizeof sizes / sizeof *sizes };
	for (int i = 0; i < COUNT; i++)
		for (int j = 0; j < COUNT; j++)
			if (sizes[i] + sizes[j] < 600000 || (i + j) % 5 == 0)
				resize(malloc(sizes[i]), sizes[i], sizes[j]);
	for (int i = 0; i < COUNT; i += 3) {
		resize(memalign(64, sizes[i]), sizes[i], sizes[(i + 1) % COUNT]);
		resize(memalign(65536, sizes[i]), sizes[i], sizes[(i + 7) % COUNT]);
		resize(calloc(1, sizes[i]), sizes[i], sizes[(i + 3) % COUNT]);
	}

	/* Steady growth, as of a string that is appended to. */
	char *text = NULL;
	size_t length = 0;
	while (length < 6 * MIB) {
		size_t longer = length + 1 + length / 9;
		text = realloc(text, longer);
		REQUIRE(text != NULL);
		for (size_t i = length; i < longer; i++)
			text[i] = (char)pattern_at(3, i);
		length = longer;
	}
	CHECK(holds(text, length, 3));
	while (length > 1) {
		length -= 1 + length / 7;
		if (!length)
			break;
		text = realloc(text, length);
		REQUIRE(text != NULL);
	}
	CHECK((unsigned char)*text == pattern_at(3, 0));
	free(text);

	/* The kernel may move pages for a huge block; its bytes come along. */
	char *huge = malloc(80 * MIB);
	REQUIRE(huge != NULL);
	for (size_t i = 0; i < 80 * MIB; i += 4096)
		huge[i] = (char)(i >> 12);
	huge = realloc(huge, 200 * MIB);
	REQUIRE(huge != NULL);
	for (size_t i = 0; i < 80 * MIB; i += 4096)
		CHECK(huge[i] == (char)(i >> 12));
	huge[200 * MIB - 1] = 1;
	huge = realloc(huge, 100);
	REQUIRE(huge != NULL);
	CHECK(*huge == 0);
	free(huge);

	/* A null pointer: an allocation. No bytes: a free, and a null pointer. */
	char *fresh = realloc(NULL, 1000);
	REQUIRE(fresh != NULL);
	memset(fresh, 1, 1000);
	CHECK(realloc(fresh, 0) == NULL);
	size_t before = resident_bytes();
	for (int i = 0; i < 20000; i++) {
		size_t size = (size_t)(i % 16 + 1) * 4096;
		char *block = malloc(size);
		REQUIRE(block != NULL);
		memset(block, 1, size);
		CHECK(realloc(block, 0) == NULL);
	}
	CHECK(resident_bytes() < before + 64 * MIB);

	int *array = reallocarray(NULL, 100, sizeof *array);
	REQUIRE(array != NULL);
	fill(array, 100 * sizeof *array, 9);
	array = reallocarray(array, 100000, sizeof *array);
	REQUIRE(array != NULL);
	CHECK(holds(array, 100 * sizeof *array, 9));
	free(array);
	return RESULT();
}
