/* Fills and empties some mebibytes with blocks of one size after the other: MEBIBYTES. */
#include "check.h"

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 64,     1000,   200,         4000, 30000,
					100000, 500000, 3000000, 48,   700000 };
	REQUIRE(argc > 1);
	size_t total = strtoul(argv[1], NULL, 10) * MIB;
	for (int round = 0; round < 20; round++)
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			size_t count = total / sizes[i];
			char **blocks = malloc(count * sizeof *blocks);
			REQUIRE(blocks);
			for (size_t j = 0; j < count; j++) {
				REQUIRE((blocks[j] = malloc(sizes[i])) != NULL);
				memset(blocks[j], 1, sizes[i]);
			}
			for (size_t j = count; j-- > 0;)
				free(blocks[j]);
			free(blocks);
		}
	return RESULT();
}
