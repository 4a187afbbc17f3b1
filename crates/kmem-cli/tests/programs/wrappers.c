/*
 * Memory that comes through wrappers. Some are functions of the C library. One has a name that is
 * known, and one a name that only this program knows. All memory is kept.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

static void *volatile kept;

static NOINLINE void *xmalloc(size_t size)
{
	void *at = malloc(size);

	if (!at)
		abort();
	return at;
}

static NOINLINE void *pool_take(size_t size)
{
	char *at = xmalloc(size);

	*at = 0;
	return at;
}

static NOINLINE void by_strdup(void)
{
	for (int i = 0; i < 100; i++)
		kept = strdup("thirty-two bytes, with their end");
}

static NOINLINE void by_xmalloc(void)
{
	for (int i = 0; i < 200; i++)
		kept = xmalloc(1000);
}

static NOINLINE void by_pool(void)
{
	for (int i = 0; i < 300; i++)
		kept = pool_take(2000);
}

static NOINLINE void by_line(void)
{
	char *line = NULL;
	size_t size = 0;
	FILE *file = fmemopen("a line\n", 7, "r");

	if (!file || getline(&line, &size, file) != 7)
		abort();
	fclose(file);
	kept = line;
}

int main(void)
{
	by_strdup();
	by_xmalloc();
	by_pool();
	by_line();
	return 0;
}
