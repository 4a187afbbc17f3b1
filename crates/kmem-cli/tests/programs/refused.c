/* Has requests refused: three in a group with a limit, and one that is too large for any machine.
 * The argument says how it ends. */
#include <kmem/group.h>

#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static void *ask_in_group(size_t bytes)
{
	void *volatile at = malloc(bytes); /* in group */
	return at;
}

__attribute__((noinline)) static void *ask_too_much(size_t bytes)
{
	void *volatile at = malloc(bytes); /* too much */
	return at;
}

int main(int argc, char **argv)
{
	kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");

	kmem_group_set(tenant, KMEM_GROUP_MAX, 1 << 20);
	int64_t token = kmem_group_enter(tenant);
	for (int i = 0; i < 3; i++)
		if (ask_in_group(4 << 20))
			return 2;
	kmem_group_leave(token);
	if (ask_too_much((size_t)1 << 50))
		return 2;
	if (argc > 1 && !strcmp(argv[1], "abort"))
		abort();
	return 0;
}
