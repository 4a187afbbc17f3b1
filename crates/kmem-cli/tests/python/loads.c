/* Calls `run` of a library: loads LIBRARY SCRIPT. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	int (*run)(int, char **) = library ? dlsym(library, "run") : NULL;
	if (!run) {
		puts(dlerror());
		return 1;
	}
	return run(argc - 1, argv + 1);
}
