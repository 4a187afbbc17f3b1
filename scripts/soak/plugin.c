/* A library that is loaded and unloaded while what it allocated lives. */
#include <stdlib.h>

#include "kmem/tag.h"

void *plugin_alloc(size_t size)
{
	return size % 2 ? malloc(size) : alloc_hooks(malloc(size));
}
