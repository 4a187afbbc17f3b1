/* A program that does not use kmem itself, built with -include kmem/hooks.h and its own feature
 * macros. */
#define _GNU_SOURCE
#define _XOPEN_SOURCE 600
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <malloc.h>
#include <unistd.h>
#include <wchar.h>

static int answers;

/* A copy of the one in expect.h, which is for programs that use kmem.h. */
static void row(const char *mark, size_t bytes, size_t calls)
{
	char line[100];
	int length = sprintf(line, "row %s %s %lu %lu\n", mark, strcmp(mark, "inner") ? "main" : "inner",
			     (unsigned long)bytes, (unsigned long)calls);
	if (write(1, line, (size_t)length) != length)
		_exit(9);
}

static void check(void)
{
	char answer;
	if (write(1, "check\n", 6) != 6 || read(0, &answer, 1) != 1)
		_exit(9);
}

/* An allocation in an argument belongs to its own line. */
static char *inner(void)
{
	return strdup("inner"); /* at inner */
}

int main(int argc, char **argv)
{
	char *plain, *array, *grown, *more, *aligned, *old, *text, *start, *nested, *loop[10];
	void *posix = NULL, *odd = &odd;
	volatile size_t too_much = (size_t)-1 / 2 + 10;
	wchar_t *wide;
	int i;
	(void)argv;
	answers = argc > 1;

	plain = malloc(100); /* at malloc */
	array = calloc(25, 4); /* at calloc */
	grown = realloc(NULL, 10);
	grown = realloc(grown, 100); /* at realloc */
	more = reallocarray(NULL, 10, 10); /* at reallocarray */
	aligned = aligned_alloc(64, 64); /* at aligned_alloc */
	old = memalign(128, 128); /* at memalign */
	if (posix_memalign(&posix, 4096, 4096)) /* at posix_memalign */
		return 1;
	text = strdup("a text that is somewhat longer than others"); /* at strdup */
	start = strndup("a text", 3); /* at strndup */
	wide = wcsdup(L"wide"); /* at wcsdup */
	nested = strdup(inner()); /* at nested */
	for (i = 0; i < 10; i++)
		loop[i] = malloc(1 + i * 1000); /* at loop */
	if (!plain || !array || !grown || !more || !aligned || !old || !nested)
		return 1;
	for (i = 0; i < 100; i++)
		if (array[i])
			return 1;
	if (((uintptr_t)aligned | (uintptr_t)old) % 64 || (uintptr_t)posix % 4096)
		return 1;
	if (!answers) {
		printf("%s %s %ls %s\n", text, start, wide, nested);
		errno = 0;
		i = malloc(too_much) == NULL;
		printf("too much: %d %d\n", i, errno == ENOMEM);
		errno = 0;
		i = calloc(too_much, 3) == NULL;
		printf("overflow: %d %d\n", i, errno == ENOMEM);
		errno = 0;
		i = realloc(grown, too_much) == NULL;
		printf("grow: %d %d\n", i, errno == ENOMEM);
		errno = 0;
		i = reallocarray(more, too_much, 3) == NULL;
		printf("array: %d %d\n", i, errno == ENOMEM);
		errno = 0;
		i = posix_memalign(&odd, 3, 10);
		printf("odd: %d %d %d\n", i == EINVAL, errno, odd == &odd);
		i = posix_memalign(&odd, 64, too_much);
		/* glibc also sets errno, which the standard does not promise. */
		printf("much: %d %d\n", i == ENOMEM, odd == &odd);
		printf("nothing: %d\n", realloc(malloc(10), 0) == NULL);
		errno = 0;
		free(malloc(10));
		printf("fine: %d\n", errno);
		return 0;
	}

	row("malloc", malloc_usable_size(plain), 1);
	row("calloc", malloc_usable_size(array), 1);
	row("realloc", malloc_usable_size(grown), 1);
	row("reallocarray", malloc_usable_size(more), 1);
	row("aligned_alloc", malloc_usable_size(aligned), 1);
	row("memalign", malloc_usable_size(old), 1);
	row("posix_memalign", malloc_usable_size(posix), 1);
	row("strdup", malloc_usable_size(text), 1);
	row("strndup", malloc_usable_size(start), 1);
	row("wcsdup", malloc_usable_size(wide), 1);
	row("nested", malloc_usable_size(nested), 1);
	row("inner", 16, 1);
	{
		size_t sum = 0;
		for (i = 0; i < 10; i++)
			sum += malloc_usable_size(loop[i]);
		row("loop", sum, 10);
	}
	check();
	free(plain);
	free(text);
	free(wide);
	free(posix);
	for (i = 1; i < 10; i++)
		free(loop[i]);
	row("calloc", malloc_usable_size(array), 1);
	row("realloc", malloc_usable_size(grown), 1);
	row("reallocarray", malloc_usable_size(more), 1);
	row("aligned_alloc", malloc_usable_size(aligned), 1);
	row("memalign", malloc_usable_size(old), 1);
	row("strndup", malloc_usable_size(start), 1);
	row("nested", malloc_usable_size(nested), 1);
	row("inner", 16, 1);
	row("loop", malloc_usable_size(loop[0]), 1);
	check();
	return 0;
}
