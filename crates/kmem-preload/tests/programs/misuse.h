/* For the programs that break a rule on purpose: they print the pointer they are about to misuse
 * and then do it. A misuse that goes unnoticed ends the program with status 3. */
#ifndef MISUSE_H
#define MISUSE_H

#include "check.h"

enum { UNNOTICED = 3, NO_SUCH_CASE = 4 };

static void announce(const void *pointer)
{
	dprintf(1, "%#lx\n", (unsigned long)pointer);
}

static int is(const char *argument, const char *name)
{
	return strcmp(argument, name) == 0;
}

__attribute__((constructor)) static void leave_no_core(void)
{
	struct rlimit none = { 0, 0 };
	setrlimit(RLIMIT_CORE, &none);
}

#endif
