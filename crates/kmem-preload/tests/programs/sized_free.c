/* C23's free_sized and free_aligned_sized give the memory back. */
#include "check.h"
#include <dlfcn.h>

int main(void)
{
	void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
	void (*aligned_sized)(void *, size_t, size_t) =
		(void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
	if (!sized || !aligned_sized) {
		CHECK(!runs_on_kmem());
		return RESULT();
	}
	sized(NULL, 100);
	aligned_sized(NULL, 64, 100);
	size_t before = resident_bytes();
	for (int round = 0; round < 400; round++)
		for (size_t size = 0; size < 600000; size = size * 2 + 1) {
			char *block = malloc(size);
			REQUIRE(block != NULL);
			memset(block, 1, size);
			sized(block, size);
			size_t alignment = (size_t)16 << (round % 10);
			block = aligned_alloc(alignment, size);
			REQUIRE(block != NULL);
			memset(block, 1, size);
			aligned_sized(block, alignment, size);
			block = calloc(1, size);
			REQUIRE(block != NULL);
			sized(block, size);
		}
	CHECK(resident_bytes() < before + 64 * MIB);
	return RESULT();
}
