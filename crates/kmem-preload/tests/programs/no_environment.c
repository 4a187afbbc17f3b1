/* Takes the environment away before main and runs on without. */
#include "check.h"

extern char **environ;

__attribute__((constructor(101))) static void take_away(void)
{
	environ = NULL;
}

int main(void)
{
	void *blocks[100];
	for (int i = 0; i < 100; i++)
		REQUIRE((blocks[i] = malloc((size_t)i * 500)) != NULL);
	CHECK(getenv("KMEM_CONF") == NULL);
	for (int i = 0; i < 100; i++)
		free(blocks[i]);
	malloc_trim(0);
	return RESULT();
}
