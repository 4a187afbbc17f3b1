/* Prints the address of a block. */
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	void *block = malloc(64);
	printf("%zx\n", (size_t)block);
	free(block);
	return 0;
}
