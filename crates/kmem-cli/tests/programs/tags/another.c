/* plugin.c with other sizes, one line down.
 */
#include "kmem.h"

void *from_other(void);

void *work(void **second)
{
	*second = from_other();
	return kmalloc(200, GFP_KERNEL); /* at another */
}
