/* A program for seeds: memory of several call sites, in a group, under a static tag and mapped by
 * the program itself. It prints ready, and waits. */
#include <kmem/group.h>
#include <kmem/hooks.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *volatile kept[200];

__attribute__((noinline)) static void *buffer(size_t size)
{
	return (malloc)(size);
}

__attribute__((noinline)) static void requests(int from, int count)
{
	for (int i = from; i < from + count; i++)
		kept[i] = buffer(16 + 48 * (i % 7));
}

int main(void)
{
	requests(0, 40);
	for (int i = 0; i < 40; i += 3)
		free(kept[i]);
	kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
	kmem_group_set(tenant, KMEM_GROUP_MAX, 1 << 20);
	int64_t token = kmem_group_enter(tenant);
	requests(40, 20);
	kept[60] = memset((malloc)(30000), 1, 30000);
	kmem_group_leave(token);
	kept[61] = malloc(500); /* with its line, by hooks.h */
	kept[62] = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	puts("ready");
	fflush(stdout);
	char c;
	return read(0, &c, 1) < 0;
}
