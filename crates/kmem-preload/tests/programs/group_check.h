/* Shared by the programs about groups. */
#ifndef GROUP_CHECK_H
#define GROUP_CHECK_H

#include "check.h"
#include <kmem/group.h>

/* Charge of an allocation: an object, or pages, and a word for each. */
static inline uint64_t cost(void *at)
{
	uint64_t size = malloc_usable_size(at);
	return size > 32768 ? size / 4096 * 4100 : size + 4;
}

static inline struct kmem_group_stat stat_of(kmem_group_t group)
{
	struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
	CHECK_AT(kmem_group_stat(group, &stat) == 0, group);
	return stat;
}

static inline uint64_t held_by(kmem_group_t group)
{
	return stat_of(group).current;
}

static inline kmem_group_t new_group(const char *name)
{
	kmem_group_t group = kmem_group_create(KMEM_GROUP_ROOT, name);
	REQUIRE(group > 0);
	return group;
}

#endif
