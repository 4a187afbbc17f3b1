/* A library that allocates in the resolver of an indirect function. The dynamic linker calls it
 * while it relocates this library, and before it relocates the program. */
#include <stdlib.h>

static int three_more(int number) { return number + 3; }

static int (*resolve(void))(int)
{
	void *volatile block = malloc(100);
	free(block);
	return three_more;
}
static int add(int number) __attribute__((ifunc("resolve")));

int add_three(int number) { return add(number); }
