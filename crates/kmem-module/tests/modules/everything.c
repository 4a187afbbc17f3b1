/* One of everything that kmem_module.h has. */
#include "kmem_module.h"
#include <errno.h>
#include <string.h>

MODULE_LICENSE("GPL");
MODULE_AUTHOR("A. Nonymous");
MODULE_DESCRIPTION("one of everything");
MODULE_VERSION("1.2");
MODULE_ALIAS("every-*");

static int number = 7;
module_param(number, int, 0644);
MODULE_PARM_DESC(number, "a number");
static unsigned char tiny;
module_param(tiny, byte, 0);
static char *text = "none";
module_param(text, charp, 0);
static bool flag;
module_param(flag, bool, 0);
static int list[4];
static unsigned int list_count;
module_param_array(list, int, &list_count, 0);
static char name[8];
module_param_string(name, name, sizeof(name), 0);

static const int table_init[3] = { 1, 2, 3 };
static const int *const table __attribute__((used)) = table_init;
static int sealed __ro_after_init;
static int init_only __initdata = 5;
DEFINE_PER_CPU(int, hits) = 11;
static void *held;

int everything_sum(void);
int everything_sum(void)
{
	unsigned int cpu;
	int sum = number + tiny + (int)strlen(text) + flag + (int)list_count + (int)strlen(name) +
		  sealed + table[2];

	for_each_possible_cpu(cpu)
		sum += per_cpu(hits, cpu);
	return sum;
}
EXPORT_SYMBOL(everything_sum);
void *everything_held(void);
void *everything_held(void)
{
	return held;
}
EXPORT_SYMBOL_VERSION(everything_held, 3);
int everything_answer = 42;
EXPORT_SYMBOL_GPL(everything_answer);

static int __init start(void)
{
	sealed = init_only;
	held = kmalloc(100, GFP_KERNEL);
	return held ? 0 : -ENOMEM;
}
static void __exit stop(void)
{
	kfree(held);
}
module_init(start);
module_exit(stop);
