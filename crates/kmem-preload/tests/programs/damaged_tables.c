/* Allocates in each of the libraries in the arguments, whose tables of frames are damaged. */
#include "check.h"
#include <dlfcn.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		if (!library) {
			dprintf(2, "%s\n", dlerror());
			return 1;
		}
		void *(*call)(size_t) = (void *(*)(size_t))dlsym(library, "call");
		REQUIRE(call != NULL);
		for (size_t size = 1; size < 100000; size *= 7)
			for (int again = 0; again < 3; again++) {
				void *at = call(size);
				CHECK(at != NULL);
				free(at);
			}
		dlclose(library);
	}
	return RESULT();
}
