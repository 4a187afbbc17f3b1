/* A plugin of two sources: the other allocates in a constructor and frees in a destructor. */
#include "kmem.h"

void *from_other(void);

void *work(void **second)
{
	*second = from_other();
	return kmalloc(100, GFP_KERNEL); /* at work */
}
