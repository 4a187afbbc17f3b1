/* Allocates a little, prints one line, exits 0. */
#include "check.h"

int main(void)
{
	void *blocks[64];
	for (int i = 0; i < 64; i++)
		REQUIRE((blocks[i] = malloc((size_t)i * 100)) != NULL);
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
	puts("hello");
	return 0;
}
