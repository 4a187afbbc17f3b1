#include "kmem.h"

inline void *inlined()
{
	return alloc_hooks_tag(KMEM_TAG_NAMED("inline"), kmalloc_noprof(100, GFP_KERNEL));
}

extern "C" void *work(void **second)
{
	kmem::scope in(KMEM_TAG_NAMED("plain"));
	*second = inlined();
	return kmalloc_noprof(100, GFP_KERNEL);
}
