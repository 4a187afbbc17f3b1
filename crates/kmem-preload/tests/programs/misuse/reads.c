/* Reads what a block held before, or what others hold: CASE SIZE [BYTES]. A case is harmless if the
 * program sees nothing of it. */
#include "heap.h"

enum { SECRET = 0xa5 };

/* Counts the bytes of a secret, without a function of the C library that could read more. */
static size_t secrets(const unsigned char *from, size_t bytes)
{
	size_t found = 0;
	for (size_t i = 0; i < bytes; i++)
		found += ((const volatile unsigned char *)from)[i] == SECRET;
	return found;
}

static int leaks(size_t found)
{
	return passed(found ? UNNOTICED : HARMLESS);
}

/* Leaves blocks behind that held a secret. */
static void leave_secrets(size_t size)
{
	unsigned char *blocks[16];
	for (int i = 0; i < 16; i++) {
		REQUIRE((blocks[i] = (unsigned char *)malloc(size)) != NULL);
		memset(blocks[i], SECRET, size);
	}
	for (int i = 0; i < 16; i++)
		free(blocks[i]);
}

static int fresh(size_t size, size_t unused)
{
	(void)unused;
	leave_secrets(size);
	size_t found = 0;
	for (int i = 0; i < 16; i++) {
		unsigned char *block = (unsigned char *)malloc(size);
		announce(block);
		found += secrets(block, size);
	}
	return leaks(found);
}

static int fresh_aligned(size_t size, size_t alignment)
{
	leave_secrets(size);
	size_t found = 0;
	for (int i = 0; i < 16; i++) {
		unsigned char *block = (unsigned char *)aligned_alloc(alignment, size);
		announce(block);
		found += secrets(block, size);
	}
	return leaks(found);
}

/* The part by which realloc lengthened a block. */
static int lengthened(size_t size, size_t more)
{
	leave_secrets(more);
	size_t found = 0;
	for (int i = 0; i < 16; i++) {
		unsigned char *block = (unsigned char *)calloc(size, 1);
		REQUIRE((block = (unsigned char *)realloc(block, more)) != NULL);
		announce(block);
		found += secrets(block + size, more - size);
	}
	return leaks(found);
}

/* A block that is shortened and lengthened again. */
static int shortened(size_t size, size_t less)
{
	unsigned char *block = (unsigned char *)malloc(size);
	REQUIRE(block != NULL);
	memset(block, SECRET, size);
	REQUIRE((block = (unsigned char *)realloc(block, less)) != NULL);
	REQUIRE((block = (unsigned char *)realloc(block, size)) != NULL);
	announce(block);
	return leaks(secrets(block + less, size - less));
}

static int after_free(size_t size, size_t unused)
{
	(void)unused;
	unsigned char *block = among_others(size);
	memset(block, SECRET, size);
	free(block);
	return leaks(secrets(block, size));
}

/* The block has a second owner with a secret when the first one reads it. */
static int after_reuse(size_t size, size_t unused)
{
	(void)unused;
	unsigned char *block = among_others(size);
	memset(block, 0, size);
	free(block);
	for (int i = 0; i < 100; i++)
		memset(malloc(size), SECRET, size);
	return leaks(secrets(block, size));
}

static int after_realloc(size_t size, size_t unused)
{
	(void)unused;
	unsigned char *block = among_others(size);
	memset(block, SECRET, size);
	unsigned char *moved = (unsigned char *)realloc(block, 8 * size + 5000);
	REQUIRE(moved != NULL && moved != block);
	return leaks(secrets(block, size));
}

static int after_shrink(size_t size, size_t less)
{
	unsigned char *block = among_others(size);
	memset(block, SECRET, size);
	unsigned char *shrunk = (unsigned char *)realloc(block, less);
	REQUIRE(shrunk != NULL);
	return leaks(secrets(block + less, size - less));
}

/* Fills all blocks but one with a secret, and returns that one. */
static unsigned char *among_secrets(size_t size)
{
	unsigned char *block = among_others(size);
	for (size_t i = 0; i < other_count; i++)
		if (others[i])
			memset(others[i], SECRET, size);
	memset(block, 0, size);
	return block;
}

static int behind(size_t size, size_t bytes)
{
	return leaks(secrets(among_secrets(size) + size, bytes));
}

static int in_front(size_t size, size_t bytes)
{
	return leaks(secrets(among_secrets(size) - bytes, bytes));
}

static int far_behind(size_t size, size_t distance)
{
	return leaks(secrets(among_secrets(size) + size + distance, size));
}

/* A string without an end, in a block that it fills. */
static int unterminated(size_t size, size_t unused)
{
	(void)unused;
	unsigned char *text = among_secrets(size);
	memset(text, 'x', size);
	size_t length = 0;
	while (((volatile unsigned char *)text)[length])
		length++;
	return leaks(length > size ? secrets(text, length) : 0);
}

static const struct {
	const char *name;
	int (*run)(size_t size, size_t number);
} CASES[] = {
	{ "fresh", fresh },
	{ "fresh_aligned", fresh_aligned },
	{ "lengthened", lengthened },
	{ "shortened", shortened },
	{ "after_free", after_free },
	{ "after_reuse", after_reuse },
	{ "after_realloc", after_realloc },
	{ "after_shrink", after_shrink },
	{ "behind", behind },
	{ "in_front", in_front },
	{ "far_behind", far_behind },
	{ "unterminated", unterminated },
};

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	size_t size = strtoul(argv[2], NULL, 0), number = argc > 3 ? strtoul(argv[3], NULL, 0) : 0;
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
		if (is(argv[1], CASES[i].name))
			return CASES[i].run(size, number);
	return passed(NO_SUCH_CASE);
}
