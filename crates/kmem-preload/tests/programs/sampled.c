/*
 * Allocates 20 MB in blocks of 1000 bytes, calls done(), and frees them.
 */
#include <stdlib.h>

enum { BLOCKS = 20000, BYTES = 1000 };

static void *blocks[BLOCKS];

__attribute__((noinline)) void grow(void)
{
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = malloc(BYTES);
}

__attribute__((noinline)) void done(void)
{
	__asm__ volatile("");
}

int main(void)
{
	grow();
	done();
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	return 0;
}
