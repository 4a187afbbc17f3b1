#include "kmem_module.h"

MODULE_LICENSE("GPL");

extern int host_factor;

void *plugin_kept;
EXPORT_SYMBOL(plugin_kept);
int plugin_leaks;
EXPORT_SYMBOL(plugin_leaks);
static int size = 10;
module_param(size, int, 0444);

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

static DEFINE_PER_CPU(unsigned long, calls) = 1000;
unsigned long plugin_calls(void);
unsigned long plugin_calls(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		if (per_cpu(calls, cpu) < 1000)
			return 0;
	this_cpu_inc(calls);
	this_cpu_add(calls, 4);
	return percpu_sum(calls) - 1000ul * nr_cpu_ids();
}
EXPORT_SYMBOL(plugin_calls);

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
