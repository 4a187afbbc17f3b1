/* Allocates in the resolver of an indirect function. The dynamic linker calls it while it relocates
 * the program: before any constructor, and before the thread-local variables have their first
 * values. */
#include "check.h"

static void *blocks[100];

static int add_two(int number) { return number + 2; }

static int (*resolve_add(void))(int)
{
	for (int i = 0; i < 100; i++) {
		blocks[i] = malloc((size_t)i * 300 + 1);
		if (blocks[i])
			*(char *)blocks[i] = (char)i;
	}
	for (int i = 0; i < 100; i += 2)
		free(blocks[i]);
	return add_two;
}
static int add(int number) __attribute__((ifunc("resolve_add")));

int main(void)
{
	CHECK(add(40) == 42);
	for (int i = 1; i < 100; i += 2) {
		REQUIRE(blocks[i] != NULL);
		CHECK(*(char *)blocks[i] == (char)i);
		free(blocks[i]);
	}
	for (int i = 0; i < 1000; i++)
		free(opaque(malloc((size_t)i)));
	return RESULT();
}
