// Memory through a wrapper, and of one function under two callers.
#include <stdlib.h>

static void *kept[200];
static int count;

__attribute__((noinline)) void *xmalloc(size_t bytes)
{
	void *at = malloc(bytes);
	if (!at)
		abort();
	return at;
}

__attribute__((noinline)) void red(void)
{
	for (int i = 0; i < 30; i++)
		kept[count++] = xmalloc(100);
}

__attribute__((noinline)) void blue(void)
{
	for (int i = 0; i < 70; i++)
		kept[count++] = xmalloc(100);
}

__attribute__((noinline)) void green(size_t bytes)
{
	for (int i = 0; i < 11; i++)
		kept[count++] = malloc(bytes);
}

/* operator new, if a runtime of C++ or kmem has it. */
extern void *_Znwm(size_t bytes) __attribute__((weak));

__attribute__((noinline)) void amber(size_t bytes)
{
	for (int i = 0; i < 13; i++)
		kept[count++] = _Znwm ? _Znwm(bytes) : malloc(bytes);
}

/* A frame that is longer than the number for it. */
__attribute__((noinline)) void honey(void)
{
	volatile char room[16384];
	room[0] = 1;
	amber(2000);
	room[1] = room[0];
}

__attribute__((noinline)) void resin(void)
{
	amber(2010);
	__asm__ volatile("");
}

__attribute__((noinline)) void moss(void)
{
	green(1000);
	__asm__ volatile("");
}

__attribute__((noinline)) void leaf(void)
{
	green(1010);
	__asm__ volatile("");
}

int main(void)
{
	red();
	blue();
	moss();
	leaf();
	honey();
	resin();
	return kept[0] == NULL;
}
