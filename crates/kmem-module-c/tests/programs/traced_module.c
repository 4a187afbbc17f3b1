#include "kmem_module.h"

MODULE_LICENSE("GPL");

static volatile int traced_calls;

static __attribute__((noinline)) int traced_inner(int n)
{
	traced_calls++;
	return n + 1;
}

int traced_work(int n);
int traced_work(int n)
{
	return traced_inner(n) * 2;
}
EXPORT_SYMBOL(traced_work);

static int __init traced_start(void)
{
	traced_calls = 40;
	return 0;
}
static void __exit traced_stop(void)
{
}
module_init(traced_start);
module_exit(traced_stop);
