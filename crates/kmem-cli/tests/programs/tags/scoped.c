/* Hooks and scopes: the scope wins, also for copies of texts. */
#include "expect.h"
#include <string.h>

int main(void)
{
	uintptr_t before = kmem_tag_enter(KMEM_TAG_NAMED("work")); /* at work */
	char *one = malloc(100), *two = calloc(1, 100), *three = realloc(NULL, 100);
	char *four = strdup("x"), *five = strndup("xyz", 2), *six = aligned_alloc(64, 64);
	kmem_tag_leave(before);
	char *after = strdup("x"); /* at after */
	MUST(one && two && three && four && five && six && after);
	expect("work", "work", 3 * 112 + 16 + 16 + 64, 6);
	EXPECT("after", 16, 1);
	check();
	return 0;
}
