#include "kmem_module.h"

MODULE_LICENSE("GPL");

int uses_not_used;
