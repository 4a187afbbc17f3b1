#include <kmem/refusal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_ulong refusals;

static void refused(void *data, const struct kmem_refusal *refusal)
{
	char group[KMEM_GROUP_NAME_SIZE] = "", site[512] = "";

	(void)data;
	atomic_fetch_add(&refusals, 1);
	kmem_group_name(refusal->group, group, sizeof group);
	kmem_refusal_site(refusal, site, sizeof site);
	printf("%s: no %llu bytes for %s, with %llu of %llu bytes\n", group,
	       (unsigned long long)refusal->bytes, site, (unsigned long long)refusal->usage,
	       (unsigned long long)refusal->limit);
}

int main(void)
{
	kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");

	kmem_on_refusal(refused, NULL);
	kmem_group_set(tenant, KMEM_GROUP_MAX, 1 << 20);
	int64_t token = kmem_group_enter(tenant);
	void *large = malloc(2 << 20);
	kmem_group_leave(token);
	return large || refusals != 1;
}
