/* Loses a block, prints one line, exits 0. */
#include "check.h"

int main(void)
{
	void *volatile block = malloc(100);
	REQUIRE(block != NULL);
	block = NULL;
	puts("lost");
	return 0;
}
