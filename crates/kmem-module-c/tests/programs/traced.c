/* A host for debuggers and profilers. traced FILE: loads a module, calls its function, waits for
 * the end of standard input, and unloads the module. With TRACED_MAP in the environment it writes
 * the map for perf, with TRACED_WORKS it calls the function for a quarter of a second. */
#include "kmem/module.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
	struct kmem_module_config config = KMEM_MODULE_CONFIG_INIT;
	int fd = open(argv[argc - 1], O_RDONLY | O_CLOEXEC);

	config.flags = getenv("TRACED_MAP") ? KMEM_MODULE_PERF_MAP : 0;
	if (kmem_module_configure(&config) < 0 || kmem_finit_module(fd, NULL, 0) < 0)
		return 1;
	int (*work)(int) = (int (*)(int))kmem_symbol_get("traced_work");
	int result = work(20);
	while (getenv("TRACED_WORKS") && clock() < CLOCKS_PER_SEC / 4)
		for (int i = 0; i < 100000; i++)
			work(i);
	kmem_symbol_put("traced_work");
	printf("%d\n", result);
	fflush(stdout);
	getchar();
	return kmem_delete_module("traced_module", 0) < 0;
}
