/* A plugin that answers requests. REVISION tells its builds apart. */
#include "kmem_module.h"
#include <stdatomic.h>

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("answers requests, and remembers the last ones");

static unsigned int room = 64;
module_param(room, uint, 0444);
MODULE_PARM_DESC(room, "requests that are remembered");

static void **last;
static atomic_uint next;

static void *remember(unsigned long request)
{
	unsigned long *entry = kmalloc(REVISION * 100, GFP_KERNEL);

	if (entry)
		*entry = request;
	return entry;
}

/* Answers a request with its number and this revision. The host calls it from many threads. */
unsigned long handle(unsigned long request);
unsigned long handle(unsigned long request)
{
	void *entry = remember(request);
	unsigned int at = atomic_fetch_add(&next, 1) % room;

	kfree(__atomic_exchange_n(&last[at], entry, __ATOMIC_ACQ_REL));
	return request * 10 + REVISION;
}
/* Two revisions are there at the same time: each has its own name for other modules. */
#define EXPORT_AS_(name) KMEM_PASTE_(handle_, name)
unsigned long EXPORT_AS_(REVISION)(unsigned long request) __attribute__((alias("handle")));
EXPORT_SYMBOL(EXPORT_AS_(REVISION));

static int __init start(void)
{
	last = kzalloc(room * sizeof(*last), GFP_KERNEL);
	return last ? 0 : -12;
}

static void __exit stop(void)
{
	for (unsigned int at = 0; at < room; at++)
		kfree(last[at]);
	kfree(last);
}

module_init(start);
module_exit(stop);
