#include "kmem_module.h"

MODULE_LICENSE("GPL");
MODULE_DEPENDS("plugin");

extern int plugin_leaks;
int *uses_plugin = &plugin_leaks;
