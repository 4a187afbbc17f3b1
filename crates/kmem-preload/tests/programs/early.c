/* Allocates at every point of a process's life before main: in the program's own preinit array and
 * constructors, in a needed library's constructors (see early_library.c). */
#include "check.h"

extern void *early_library_block;
extern int early_library_constructed;

static void *preinit_block, *first_block, *last_block;

static void preinit(void)
{
	preinit_block = malloc(100);
	fill(preinit_block, 100, 1);
}
__attribute__((section(".preinit_array"), used)) static void (*preinit_entry)(void) = preinit;

__attribute__((constructor(101))) static void construct_first(void)
{
	first_block = calloc(10, 100);
}

__attribute__((constructor)) static void construct_last(void)
{
	free(first_block);
	last_block = realloc(NULL, 100000);
	fill(last_block, 100000, 2);
}

int main(void)
{
	REQUIRE(preinit_block && last_block && early_library_block);
	CHECK(holds(preinit_block, 100, 1));
	CHECK(holds(last_block, 100000, 2));
	CHECK(early_library_constructed == 1);
	free(preinit_block);
	free(last_block);
	free(early_library_block);
	return RESULT();
}
