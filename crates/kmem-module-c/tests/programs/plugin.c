#include "kmem_module.h"

MODULE_LICENSE("GPL");

extern int host_factor;

void *plugin_kept;
EXPORT_SYMBOL(plugin_kept);
int plugin_leaks;
EXPORT_SYMBOL(plugin_leaks);
static int size = 10;
module_param(size, int, 0);

int plugin_answer(int n);
int plugin_answer(int n)
{
	return n * host_factor;
}
EXPORT_SYMBOL(plugin_answer);
void plugin_free(void *block);
void plugin_free(void *block)
{
	kfree(block);
}
EXPORT_SYMBOL(plugin_free);

static int __init start(void)
{
	plugin_kept = kmalloc(size, GFP_KERNEL);
	return plugin_kept ? 0 : -12;
}
static void __exit stop(void)
{
	if (!plugin_leaks)
		kfree(plugin_kept);
}
module_init(start);
module_exit(stop);
