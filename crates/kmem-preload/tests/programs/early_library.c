/* A library that allocates in its constructor and its destructor. */
#include <stdlib.h>
#include <string.h>

void *early_library_block;
int early_library_constructed;
static void *kept;

__attribute__((constructor)) static void construct(void)
{
	early_library_block = malloc(5000);
	memset(early_library_block, 1, 5000);
	kept = malloc(70);
	early_library_constructed++;
}

__attribute__((destructor)) static void destruct(void)
{
	free(kept);
	void *late = malloc(100);
	memset(late, 1, 100);
	free(late);
}
