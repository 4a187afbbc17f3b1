/* A library with several kinds of frames between its function `call` and malloc. */
#include <alloca.h>
#include <stddef.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))

static NOINLINE void *small(size_t size)
{
	void *volatile at = malloc(size);
	return at;
}

static NOINLINE void *large(size_t size)
{
	volatile char room[3000];
	room[0] = (char)size;
	void *volatile at = small(size + room[0] * 0);
	return at;
}

static NOINLINE void *varying(size_t size)
{
	volatile char *room = alloca(size % 500 + 1);
	room[0] = 1;
	void *volatile at = large(size * (size_t)room[0]);
	return at;
}

static NOINLINE void *busy(size_t a, size_t b, size_t c, size_t d, size_t e, size_t f, size_t g)
{
	void *volatile at = varying(a);
	__asm__ volatile("" : "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g));
	return b + c + d + e + f + g ? at : NULL;
}

void *call(size_t size)
{
	void *volatile at = busy(size, 1, 2, 3, 4, 5, 6);
	return at;
}
