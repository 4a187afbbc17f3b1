/* A host that verifies signatures. verifies (CERTIFICATES | -) FILE..: loads each file, and prints
 * the result and the reason. With - its own function verifies. */
#include "kmem/module.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int calls;

/* A signature is right if it begins as DER does, and if the module is an ELF file. */
static int verify(const void *module, size_t len, const void *signature, size_t signature_len,
		  void *data)
{
	++*(int *)data;
	if (len < 64 || memcmp(module, "\177ELF", 4) != 0)
		return -EBADMSG;
	return signature_len > 1 && *(const unsigned char *)signature == 0x30 ? 0 : -EPERM;
}

int main(int argc, char **argv)
{
	struct kmem_module_config config = KMEM_MODULE_CONFIG_INIT;
	char why[512];

	config.certificates = argv[1];
	config.verify = verify;
	config.verify_data = &calls;
	/* Not both. */
	if (kmem_module_configure(&config) != -EINVAL)
		return 1;
	if (strcmp(argv[1], "-") == 0)
		config.certificates = NULL;
	else
		config.verify = NULL;
	if (kmem_module_configure(&config) != 0)
		return 2;
	for (int i = 2; i < argc; i++) {
		int fd = open(argv[i], O_RDONLY | O_CLOEXEC);
		int result = kmem_finit_module(fd, NULL, 0);

		close(fd);
		why[0] = 0;
		if (result)
			kmem_module_error(why, sizeof(why));
		else
			kmem_delete_module("uses_not", 0);
		printf("%d %s\n", result, why);
	}
	printf("%d calls\n", calls);
	return 0;
}
