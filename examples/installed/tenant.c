/* A tenant with a limit, in C. Prints whether kmem granted 100 MiB to a tenant of 64 MiB.
 *
 *	cc tenant.c -o tenant $(pkg-config --cflags --libs kmem) */
#include <kmem/group.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
	int64_t token;
	char *large;

	if (tenant < 0 || kmem_group_set(tenant, KMEM_GROUP_MAX, 64 << 20) < 0)
		return 1;
	token = kmem_group_enter(tenant);
	large = malloc(100 << 20);
	kmem_group_leave(token);
	puts(large ? "granted" : "refused");
	free(large);
	return 0;
}
