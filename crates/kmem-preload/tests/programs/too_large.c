/* A request no machine can meet fails at once with ENOMEM, from every entry point, and changes
 * nothing. */
#include "check.h"

static unsigned long calls;

static void refused(size_t size)
{
	void *block;

	errno = 0;
	block = malloc(size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = calloc(1, size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = calloc(size, 1);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = realloc(NULL, size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = memalign(64, size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = aligned_alloc(4096, size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = valloc(size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);
	errno = 0;
	block = pvalloc(size);
	CHECK_AT(block == NULL && errno == ENOMEM, size);

	void *untouched = &calls;
	errno = 77;
	CHECK_AT(posix_memalign(&untouched, 64, size) == ENOMEM, size);
	CHECK_AT(untouched == &calls, size);
	CHECK_AT(errno == 77 || !runs_on_kmem(), size);
	calls += 9;
}

static void product_overflows(size_t items, size_t size)
{
	errno = 0;
	CHECK_AT(calloc(items, size) == NULL && errno == ENOMEM, items);
	char *old = malloc(100);
	REQUIRE(old != NULL);
	fill(old, 100, 5);
	errno = 0;
	CHECK_AT(reallocarray(old, items, size) == NULL && errno == ENOMEM, items);
	CHECK(holds(old, 100, 5));
	free(old);
}

int main(void)
{
	int mappings = mapping_count();
	double start = seconds_now();

	for (size_t below = 0; below < 3 * 4096; below += 7)
		refused(SIZE_MAX - below);
	for (size_t below = 0; below < 64; below++)
		refused(SIZE_MAX - below);
	for (size_t around = 0; around <= 2 * 4096; around += 64) {
		refused((size_t)PTRDIFF_MAX + around);
		refused((size_t)PTRDIFF_MAX - around);
		refused(((size_t)1 << 47) + around);
		refused(((size_t)1 << 47) - around);
	}
	for (int shift = 48; shift < 64; shift++) {
		refused((size_t)1 << shift);
		refused(((size_t)1 << shift) - 1);
	}
	double each = (seconds_now() - start) / (double)calls;
	CHECK(each < 1e-3);

	product_overflows(SIZE_MAX, 2);
	product_overflows(2, SIZE_MAX);
	product_overflows(SIZE_MAX, SIZE_MAX);
	product_overflows((size_t)1 << 33, (size_t)1 << 33);
	product_overflows((size_t)1 << 32, (size_t)1 << 32);
	product_overflows(((size_t)1 << 32) + 1, (size_t)1 << 32);
	product_overflows(SIZE_MAX / 7, 8);

	/* Alignment plus size wraps round. */
	for (int shift = 4; shift < 63; shift++) {
		errno = 0;
		size_t power = (size_t)1 << shift;
		CHECK_AT(memalign(power, SIZE_MAX - power + 1) == NULL && errno == ENOMEM, shift);
	}
	errno = 0;
	CHECK(memalign((size_t)1 << 62, 1) == NULL && errno == ENOMEM);

	/* The old block survives a refused growth. */
	size_t sizes[] = { 1, 64, 4000, 20000, 300000, 5 * MIB };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		char *old = malloc(sizes[i]);
		REQUIRE(old != NULL);
		fill(old, sizes[i], (unsigned)i);
		errno = 0;
		CHECK_AT(realloc(old, SIZE_MAX) == NULL && errno == ENOMEM, sizes[i]);
		errno = 0;
		CHECK_AT(realloc(old, PTRDIFF_MAX) == NULL && errno == ENOMEM, sizes[i]);
		CHECK_AT(holds(old, sizes[i], (unsigned)i), sizes[i]);
		free(old);
	}
	CHECK(mapping_count() < mappings + 40);
	return RESULT();
}
