/* Without the library every function says so. */
#include "kmem/module.h"

int main(void)
{
	struct kmem_module_config config = KMEM_MODULE_CONFIG_INIT;
	struct kmem_module_stat stat = KMEM_MODULE_STAT_INIT;
	char text[8];

	return !(kmem_module_configure(&config) == -ENOSYS && kmem_finit_module(0, 0, 0) == -ENOSYS &&
		 kmem_init_module(text, 8, 0) == -ENOSYS && kmem_request_module("a") == -ENOSYS &&
		 kmem_delete_module("a", 0) == -ENOSYS && kmem_symbol_get("a") == 0 &&
		 kmem_symbol_put("a") == -ENOSYS && kmem_module_stat(&stat) == -ENOSYS &&
		 kmem_module_stat_text(text, 8) == -ENOSYS && kmem_module_list_text(text, 8) == -ENOSYS &&
		 kmem_module_parameter("a", "b", text, 8) == -ENOSYS &&
		 kmem_module_error(text, 8) == -ENOSYS);
}
