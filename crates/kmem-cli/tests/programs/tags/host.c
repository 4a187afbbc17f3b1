/* Loads plugins with a function that allocates, and does not use kmem itself. The first argument
 * selects the case. */
#define _GNU_SOURCE
#include "expect.h"
#include <dlfcn.h>
#include <link.h>
#include <string.h>

typedef void *(*work_fn)(void **second);

static void *load(const char *path, void **first, void **second)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		fprintf(stderr, "%s\n", dlerror());
	MUST(handle);
	work_fn work = (work_fn)dlsym(handle, "work");
	MUST(work);
	*first = work(second);
	MUST(*first && *second);
	return handle;
}

static size_t base_of(void *handle)
{
	struct link_map *map;
	MUST(dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
	return map->l_addr;
}

int main(int argc, char **argv)
{
	MUST(argc > 2);
	const char *what = argv[1];
	void *first, *second;
	void *handle = load(argv[2], &first, &second);
	if (!strcmp(what, "once")) { /* with everything live */
		MUST(dlclose(handle) == 0);
		check();
		free(first);
		free(second);
		check();
	} else if (!strcmp(what, "clean")) { /* with nothing live */
		free(first);
		free(second);
		MUST(dlclose(handle) == 0);
		check();
	} else if (!strcmp(what, "freed")) { /* loaded, and then gone */
		free(first);
		free(second);
		check();
		MUST(dlclose(handle) == 0);
		check();
	} else if (!strcmp(what, "exit")) { /* loaded until the end */
		check();
	} else if (!strcmp(what, "cycles")) { /* argv[3] times */
		for (int left = atoi(argv[3]); left > 0; left--) {
			free(first);
			free(second);
			MUST(dlclose(handle) == 0);
			if (left == 1)
				check();
			handle = load(argv[2], &first, &second);
		}
		check();
	} else if (!strcmp(what, "another")) { /* then argv[3] at the same address */
		size_t base = base_of(handle);
		void *third, *fourth;
		MUST(dlclose(handle) == 0);
		handle = load(argv[3], &third, &fourth);
		say("same %d\n", base_of(handle) == base);
		check();
		MUST(dlclose(handle) == 0);
		/* The first plugin again. */
		handle = load(argv[2], &third, &fourth);
		check();
	}
	return 0;
}
