/* Groups without libkmem.so: nothing does harm, and all say so. Built as C and as C++. */
#include <kmem/group.h>
#include <kmem/refusal.h>

int main(void)
{
	struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
	struct kmem_group_kinds kinds = KMEM_GROUP_KINDS_INIT;
	struct kmem_shrinker *shrinker = 0;
	char name[KMEM_GROUP_NAME_SIZE];
	int64_t token = kmem_group_enter(kmem_group_create(KMEM_GROUP_ROOT, "x"));
	int64_t all[] = { token, kmem_group_leave(token), kmem_group_find("x"), kmem_group_delete(1),
			  kmem_group_name(1, name, sizeof name), kmem_group_parent(1), kmem_group_dying(),
			  kmem_group_set(1, KMEM_GROUP_MAX, 0), kmem_group_stat(1, &stat), kmem_group_kinds(1, &kinds),
			  kmem_group_reset_peak(1),
			  kmem_group_notify(1, -1), kmem_group_current(), kmem_group_of(name),
			  kmem_group_pin(1), kmem_group_switch(1), kmem_group_unpin(1),
			  kmem_group_of_address(name),
			  kmem_group_try_charge(1, 1), kmem_group_uncharge(1, 1),
			  kmem_group_add_shrinker(1, 0, 0, &shrinker), kmem_group_remove_shrinker(shrinker),
			  kmem_on_refusal(0, 0), kmem_refusal_site(0, name, sizeof name) };
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i] != -ENOSYS)
			return (int)i + 1;
#ifdef __cplusplus
	kmem::group group("x");
	kmem::group_scope scope(group);
	kmem::group_pin pin(group);
	kmem::group_switch there(pin);
	return group || scope || pin || there || group.error() != ENOSYS ? 100 : 0;
#else
	return 0;
#endif
}
