/* Is preloaded beside the library into a program that knows nothing of groups. At the end it writes
 * a line "name current peak" to standard error for each group that GROUP_REPORT names. */
#include <kmem/group.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __attribute__((destructor)) void report(void)
{
	const char *names = getenv("GROUP_REPORT");
	char name[KMEM_GROUP_NAME_SIZE];
	for (; names && *names; names += strcspn(names, ",") + (names[strcspn(names, ",")] == ',')) {
		snprintf(name, sizeof name, "%.*s", (int)strcspn(names, ","), names);
		struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
		int error = kmem_group_stat(kmem_group_find(name), &stat);
		if (error)
			dprintf(2, "%s error %d\n", name, error);
		else
			dprintf(2, "%s %llu %llu\n", name, (unsigned long long)stat.current,
				(unsigned long long)stat.peak);
	}
}
