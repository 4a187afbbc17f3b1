/* Memory from calloc is zero, also where a dirty block was freed a moment ago. */
#include "check.h"

int main(void)
{
	static void *blocks[512];
	for (size_t size = 1; size < 3 * MIB; size += 1 + size / 3) {
		size_t count = size < 8192 ? 512 : size < 200000 ? 32 : 4;
		for (int round = 0; round < 2; round++) {
			for (size_t i = 0; i < count; i++) {
				REQUIRE((blocks[i] = calloc(1, size)) != NULL);
				CHECK_AT(all_zero(blocks[i], size), size);
				memset(blocks[i], 0xa5, malloc_usable_size(blocks[i]));
			}
			for (size_t i = 0; i < count; i++)
				free(blocks[(i * 7) % count]);
		}
	}
	for (int i = 0; i < 3; i++) {
		char *large = malloc(40 * MIB);
		REQUIRE(large != NULL);
		memset(large, 0xff, 40 * MIB);
		free(large);
		if (i == 1)
			malloc_trim(0);
		large = calloc(40, MIB);
		REQUIRE(large != NULL);
		CHECK(all_zero(large, 40 * MIB));
		memset(large, 0xff, 40 * MIB);
		free(large);
	}
	return RESULT();
}
