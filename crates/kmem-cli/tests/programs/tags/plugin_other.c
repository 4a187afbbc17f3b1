#include "kmem.h"

static void *kept, *early;

/* Before and after all others. */
__attribute__((constructor(102))) static void begin_early(void)
{
	early = kmalloc(5000, GFP_KERNEL);
}

__attribute__((constructor)) static void begin(void)
{
	kept = kmalloc(6000, GFP_KERNEL);
}

__attribute__((destructor)) static void end(void)
{
	kfree(kept);
}

__attribute__((destructor(102))) static void end_late(void)
{
	kfree(early);
}

void *from_other(void)
{
	return kmalloc(300, GFP_KERNEL); /* at from_other */
}

void *never_called(void)
{
	return kmalloc(700, GFP_KERNEL); /* at never_called */
}
