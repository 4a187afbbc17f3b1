/* Prints a program's own memory, for the test to compare with the books: rows, then "check". A
 * comment in the line of a call site marks it, and the mark names it. Nothing here allocates. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* dprintf allocates a buffer with malloc. */
static void say(const char *format, ...)
{
	char text[200];
	va_list args;
	va_start(args, format);
	int length = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (write(1, text, (size_t)length) != length)
		_exit(9);
}

__attribute__((unused)) static void expect(const char *mark, const char *function, size_t bytes,
					   size_t calls)
{
	say("row %s %s %zu %zu\n", mark, function, bytes, calls);
}
#define EXPECT(mark, bytes, calls) expect(mark, __func__, bytes, calls)

/* Returns whether all bytes have a value. */
__attribute__((unused)) static int is_all(const void *at, int value, size_t bytes)
{
	const unsigned char *byte = (const unsigned char *)at;
	while (bytes--)
		if (*byte++ != value)
			return 0;
	return 1;
}

__attribute__((unused)) static int is_zero(const void *at, size_t bytes)
{
	return is_all(at, 0, bytes);
}

struct named_case {
	const char *name;
	void (*run)(void);
};

/* Runs the case that the first argument names. Returns the exit code: 2 if there is none. */
__attribute__((unused)) static int run_case(const struct named_case *cases, size_t count, int argc,
					    char **argv)
{
	for (size_t i = 0; argc > 1 && i < count; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	return 2;
}
#define RUN_CASE(cases, argc, argv) run_case(cases, sizeof(cases) / sizeof(*(cases)), argc, argv)

/* Ends a list of rows: the program holds nothing else. */
__attribute__((unused)) static void check(void)
{
	char answer;
	say("check\n");
	if (read(0, &answer, 1) != 1)
		_exit(9);
}

#define MUST(condition)                                                                 \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			_exit(1);                                                       \
		}                                                                       \
	} while (0)

#endif
