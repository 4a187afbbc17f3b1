/* Each entry point changes errno only where its standard lets it. */
#include "check.h"
#include <dlfcn.h>

static void (*sized)(void *, size_t);
static void (*aligned_sized)(void *, size_t, size_t);
static void (*old_free)(void *);

static void free_keeps_errno(size_t size)
{
	void *block = malloc(size);
	REQUIRE(block != NULL);
	if (size)
		*(char *)opaque(block) = 1;
	errno = 1234;
	free(block);
	CHECK_AT(errno == 1234, size);

	block = memalign(4096, size);
	REQUIRE(block != NULL);
	errno = 1234;
	free(block);
	CHECK_AT(errno == 1234, size);

	if (sized) {
		block = malloc(size);
		errno = 1234;
		sized(block, size);
		CHECK_AT(errno == 1234, size);
	}
	if (aligned_sized) {
		block = aligned_alloc(64, size);
		errno = 1234;
		aligned_sized(block, 64, size);
		CHECK_AT(errno == 1234, size);
	}
	if (old_free) {
		block = malloc(size);
		errno = 1234;
		old_free(block);
		CHECK_AT(errno == 1234, size);
	}
}

int main(void)
{
	sized = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
	aligned_sized = (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
	old_free = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");

	errno = 1234;
	free(NULL);
	CHECK(errno == 1234);
	for (size_t size = 0; size < 300 * MIB; size = size * 2 + 1)
		free_keeps_errno(size);

	/* Many large blocks, so that some of them really go back to the system. */
	static void *blocks[64];
	for (int i = 0; i < 64; i++) {
		REQUIRE((blocks[i] = malloc(8 * MIB)) != NULL);
		memset(blocks[i], 1, 4096);
	}
	errno = 4321;
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
	CHECK(errno == 4321);

	errno = 99;
	CHECK(malloc_usable_size(NULL) == 0);
	CHECK(errno == 99);

	void *untouched = blocks;
	errno = 99;
	CHECK(posix_memalign(&untouched, 3, 8) == EINVAL);
	CHECK(posix_memalign(&untouched, 64, SIZE_MAX - 100) == ENOMEM);
	CHECK(untouched == blocks);
	CHECK(errno == 99 || !runs_on_kmem());
	return RESULT();
}
