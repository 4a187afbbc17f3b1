/* A library to be loaded at run time: allocates in its constructor, frees in its destructor, and
 * trades pointers. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *kept[50];
static __thread char *per_thread;

__attribute__((constructor)) static void construct(void)
{
	for (int i = 0; i < 50; i++) {
		kept[i] = malloc((size_t)i * 77 + 1);
		memset(kept[i], i, (size_t)i * 77 + 1);
	}
}

__attribute__((destructor)) static void destruct(void)
{
	for (int i = 0; i < 50; i++)
		free(kept[i]);
}

void *plugin_make(size_t size) { return malloc(size); }
void plugin_take(void *block) { free(block); }
void *plugin_grow(void *block, size_t size) { return realloc(block, size); }
void *plugin_aligned(size_t alignment, size_t size)
{
	void *block = NULL;
	return posix_memalign(&block, alignment, size) ? NULL : block;
}

/* Blocks made inside the C library on the plugin's behalf. */
char *plugin_text(int number)
{
	char *text = NULL;
	if (asprintf(&text, "number %d", number) < 0)
		return NULL;
	char *copy = strdup(text);
	free(text);
	return copy;
}

int plugin_touch_thread_local(void)
{
	if (!per_thread)
		per_thread = malloc(200);
	if (!per_thread)
		return 0;
	memset(per_thread, 1, 200);
	free(per_thread);
	per_thread = NULL;
	return 1;
}
