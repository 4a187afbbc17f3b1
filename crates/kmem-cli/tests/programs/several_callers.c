/*
 * A function with a name that only this program knows, through which two others allocate; with
 * -DONE, one does. With -DWRAPPED it allocates through a function with the name of a wrapper. All
 * memory is kept.
 */
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))

static void *volatile kept;

#ifdef WRAPPED
static NOINLINE void *xmalloc(size_t size)
{
	void *at = malloc(size);

	if (!at)
		abort();
	return at;
}
#define malloc xmalloc
#endif

static NOINLINE void *node_new(size_t size)
{
	char *at = malloc(size);

	*at = 0;
	return at;
}

static NOINLINE void parse_list(void)
{
	for (int i = 0; i < 1000; i++)
		kept = node_new(200);
}

static NOINLINE void parse_map(void)
{
	for (int i = 0; i < 1000; i++)
		kept = node_new(100);
}

int main(void)
{
	for (int i = 0; i < 50; i++) {
		parse_list();
#ifndef ONE
		parse_map();
#endif
	}
	return 0;
}
