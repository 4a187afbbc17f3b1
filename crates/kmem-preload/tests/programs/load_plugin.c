/* Loads a library at run time and trades pointers with it: LIBRARY FLAG CASE, FLAG being "plain" or
 * "deepbind". */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static void *(*make)(size_t);
static void (*take)(void *);
static void *(*grow)(void *, size_t);
static void *(*make_aligned)(size_t, size_t);
static char *(*make_text)(int);
static int (*touch)(void);

static void *load(const char *path, int flags)
{
	void *library = dlopen(path, flags);
	if (!library)
		dprintf(2, "%s\n", dlerror());
	REQUIRE(library != NULL);
	make = (void *(*)(size_t))dlsym(library, "plugin_make");
	take = (void (*)(void *))dlsym(library, "plugin_take");
	grow = (void *(*)(void *, size_t))dlsym(library, "plugin_grow");
	make_aligned = (void *(*)(size_t, size_t))dlsym(library, "plugin_aligned");
	make_text = (char *(*)(int))dlsym(library, "plugin_text");
	touch = (int (*)(void))dlsym(library, "plugin_touch_thread_local");
	REQUIRE(make && take && grow && make_aligned && make_text && touch);
	return library;
}

static void *touch_in_thread(void *unused)
{
	(void)unused;
	for (int i = 0; i < 100; i++)
		CHECK(touch());
	return NULL;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 3);
	int flags = RTLD_NOW | RTLD_LOCAL | (strcmp(argv[2], "deepbind") == 0 ? RTLD_DEEPBIND : 0);
	const char *name = argv[3];
	void *library = load(argv[1], flags);

	for (size_t size = 1; size < 3 * MIB; size = size * 3 + 1) {
		if (!strcmp(name, "made_inside_freed_outside")) {
			char *block = make(size);
			REQUIRE(block != NULL);
			fill(block, size, 1);
			free(block);
			block = make_aligned(256, size);
			REQUIRE(block != NULL);
			CHECK(is_aligned(block, 256));
			free(block);
		} else if (!strcmp(name, "made_outside_freed_inside")) {
			char *block = malloc(size);
			REQUIRE(block != NULL);
			fill(block, size, 1);
			take(block);
			block = memalign(256, size);
			REQUIRE(block != NULL);
			take(block);
		} else if (!strcmp(name, "resized_across")) {
			char *block = make(size);
			REQUIRE(block != NULL);
			fill(block, size, 4);
			block = realloc(block, size * 2);
			REQUIRE(block != NULL);
			CHECK(holds(block, size, 4));
			block = grow(block, size * 5);
			REQUIRE(block != NULL);
			CHECK(holds(block, size, 4));
			free(block);
			block = malloc(size);
			REQUIRE(block != NULL);
			fill(block, size, 5);
			block = grow(block, size * 2);
			REQUIRE(block != NULL);
			CHECK(holds(block, size, 5));
			take(block);
		} else if (!strcmp(name, "made_by_libc")) {
			char *text = make_text((int)size);
			REQUIRE(text != NULL);
			CHECK(strncmp(text, "number ", 7) == 0);
			free(text);
			take(strdup("a text from the program"));
		} else {
			REQUIRE(!strcmp(name, "loaded_again_and_again"));
			break;
		}
	}
	if (!strcmp(name, "loaded_again_and_again")) {
		for (int round = 0; round < 200; round++) {
			pthread_t thread;
			REQUIRE(pthread_create(&thread, NULL, touch_in_thread, NULL) == 0);
			char *block = make(1000);
			fill(block, 1000, 8);
			pthread_join(thread, NULL);
			REQUIRE(dlclose(library) == 0);
			CHECK(holds(block, 1000, 8));
			free(block);
			library = load(argv[1], flags);
		}
	}
	CHECK(dlclose(library) == 0);
	return RESULT();
}
