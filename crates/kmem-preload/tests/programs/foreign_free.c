/* Frees a block that came from the C library's own allocator. */
#include "misuse.h"
#include <dlfcn.h>

int main(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOLOAD | RTLD_NOW);
	REQUIRE(libc != NULL);
	void *(*foreign_malloc)(size_t) = (void *(*)(size_t))dlsym(libc, "__libc_malloc");
	REQUIRE(foreign_malloc != NULL);
	void *block = foreign_malloc(100);
	REQUIRE(block != NULL);
	announce(block);
	free(opaque(block));
	return 0;
}
