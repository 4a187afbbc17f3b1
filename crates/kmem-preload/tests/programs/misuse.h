/* For the programs that break a rule on purpose: they print the pointer they are about to misuse
 * and then do it. Their first line is the object that has malloc. An allocator that finds the
 * misuse ends the program. Otherwise the program ends itself, by `passed`. */
#ifndef MISUSE_H
#define MISUSE_H

#include "check.h"
#include <dlfcn.h>

/* Statuses of a program that was not ended. */
enum {
	/* A call failed, as it should. */
	REFUSED = 0,
	/* The misuse went unnoticed, and had an effect or could have had one. */
	UNNOTICED = 3,
	/* There is no such case, or the allocator lacks the function. */
	NO_SUCH_CASE = 4,
	/* The program saw no effect of the misuse. */
	HARMLESS = 5,
};

static void announce(const void *pointer)
{
	dprintf(1, "%#lx\n", (unsigned long)pointer);
}

static int is(const char *argument, const char *name)
{
	return strcmp(argument, name) == 0;
}

/* Ends a case that the allocator did not end, without a handler that would use a damaged heap. */
static int passed(int status)
{
	const char *word = status == REFUSED ? "refused" :
		status == HARMLESS ? "harmless" :
		status == UNNOTICED ? "undetected" : "no such case";
	dprintf(1, "%s\n", word);
	_exit(status);
}

/* Goes on with blocks of a size, as a program does after its misuse. It holds up to 64 of them at a
 * time, and frees 4 MiB or more. So an allocator that looks at blocks later finds the misuse. */
static void go_on(size_t size)
{
	enum { MOST_HELD = 64 };
	char *volatile held[MOST_HELD] = { 0 };
	size_t count = size > MIB ? 64 * MIB / size : MOST_HELD;
	size_t rounds = 100 + (size > 64 ? 4 * MIB / size : 65536);
	count = count ? count : 1;
	for (size_t i = 0; i < rounds; i++) {
		free(held[i % count]);
		char *block = (char *)malloc(size);
		if (block && size)
			block[0] = block[size - 1] = 'x';
		held[i % count] = block;
	}
	for (size_t i = 0; i < count; i++)
		free(held[i]);
}

__attribute__((constructor)) static void leave_no_core(void)
{
	struct rlimit none = { 0, 0 };
	setrlimit(RLIMIT_CORE, &none);
}

__attribute__((constructor)) static void name_the_allocator(void)
{
	/* Not by dlsym: some libraries define malloc for programs of one version only. */
	Dl_info info;
	int found = dladdr((void *)malloc, &info);
	dprintf(1, "malloc of %s\n", found ? info.dli_fname : "nothing");
}

#endif
