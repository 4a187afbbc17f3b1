/* Defines its own configuration: CONF. With NEEDS_EARLY_RESOLVER, a library that it needs allocates
 * before the dynamic linker has relocated the program (see early_resolver_library.c). */
#include "check.h"
#include <kmem.h>

const char *kmem_conf = CONF;

#ifdef NEEDS_EARLY_RESOLVER
extern int add_three(int number);
#endif

int main(void)
{
	free(opaque(malloc(100)));
#ifdef NEEDS_EARLY_RESOLVER
	CHECK(add_three(40) == 43);
#endif
	puts("hello");
	return RESULT();
}
