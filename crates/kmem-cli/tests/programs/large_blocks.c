/*
 * A function with a name that only this program knows, through which three others get blocks of
 * 1 MiB; with -DONE, one does. With -DWRAPPED they call it through a function with the name of a
 * wrapper. All memory is kept.
 */
#include <stdlib.h>

#define NOINLINE __attribute__((noipa))

static NOINLINE void *block_new(void)
{
	char *at = malloc(1 << 20);

	if (!at)
		abort();
	*at = 1;
	return at;
}

#ifdef WRAPPED
static NOINLINE void *xmalloc(void)
{
	char *at = block_new();

	*at = 2;
	return at;
}
#define block_new xmalloc
#endif

static void *kept[12];
static int count;

static NOINLINE void load_table(void)
{
	kept[count++] = block_new();
}

static NOINLINE void load_index(void)
{
	kept[count++] = block_new();
}

static NOINLINE void sort_rows(void)
{
	kept[count++] = block_new();
}

int main(void)
{
	for (int i = 0; i < 4; i++) {
		load_table();
#ifdef ONE
		load_table();
		load_table();
#else
		load_index();
		sort_rows();
#endif
	}
	return 0;
}
