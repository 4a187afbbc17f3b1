/* A heap in use, for cases that read and write outside of their blocks. There is a block among many
 * of its size, whose contents are known. */
#ifndef HEAP_H
#define HEAP_H

#include "../misuse.h"

enum { MOST = 131072 };

static unsigned char *others[MOST];
static size_t other_count, other_size;

static unsigned char seed_of(size_t number)
{
	return (unsigned char)(number % 251 + 1);
}

/* Sorts addresses. qsort of the C library would allocate. */
static void sort(unsigned char **addresses, size_t count)
{
	for (size_t gap = count / 2; gap > 0; gap /= 2)
		for (size_t i = gap; i < count; i++) {
			unsigned char *moving = addresses[i];
			size_t to = i;
			for (; to >= gap && addresses[to - gap] > moving; to -= gap)
				addresses[to] = addresses[to - gap];
			addresses[to] = moving;
		}
}

/* Allocates 8 MiB of blocks of a size, or 33 of them, and returns one of them. It is the one around
 * which a mebibyte on each side has the most others. It is not the first of an aligned 64 KiB,
 * unless all are. */
static unsigned char *among_others(size_t size)
{
	static unsigned char *sorted[MOST];
	size_t wanted = size ? 8 * MIB / size : MOST;
	wanted = wanted > MOST ? MOST : wanted < 33 ? 33 : wanted;
	size_t around = size ? MIB / size : MOST / 8;
	around = around < 1 ? 1 : around > wanted / 4 ? wanted / 4 : around;
	for (size_t i = 0; i < wanted; i++) {
		sorted[i] = others[i] = (unsigned char *)malloc(size);
		REQUIRE(others[i] != NULL);
		memset(others[i], seed_of(i), size);
	}
	sort(sorted, wanted);
	size_t narrowest = SIZE_MAX;
	unsigned char *block = sorted[wanted / 2];
	for (size_t i = 0; i < wanted - 1; i++) {
		/* From the middle outwards, so that of equal ones the middle one is taken. */
		size_t at = i % 2 ? wanted / 2 + i / 2 + 1 : wanted / 2 - i / 2;
		if (at < around || at + around >= wanted)
			continue;
		size_t width = (size_t)(sorted[at + around] - sorted[at - around]);
		if (width < narrowest && ((uintptr_t)sorted[at] % 65536 || size > 65536)) {
			narrowest = width;
			block = sorted[at];
		}
	}
	for (size_t i = 0; i < wanted; i++)
		if (others[i] == block)
			others[i] = NULL;
	other_count = wanted;
	other_size = size;
	announce(block);
	return block;
}

/* Returns whether bytes behind a block are still in what the allocator gave for it. */
static int is_slack(unsigned char *block, size_t size, size_t bytes)
{
	return malloc_usable_size(block) >= size + bytes;
}

/* Returns whether any other block lost its contents. */
static int others_are_damaged(void)
{
	for (size_t i = 0; i < other_count; i++) {
		unsigned char *block = others[i];
		if (!block || !other_size)
			continue;
		if (block[0] != seed_of(i) || memcmp(block, block + 1, other_size - 1) != 0)
			return 1;
	}
	return 0;
}

/* Frees all other blocks, and goes on. */
static void free_others(void)
{
	for (size_t i = 0; i < other_count; i++)
		free(others[i]);
	go_on(other_size);
}

/* Writes byte by byte, so that no function of the C library looks at the block. */
static void overwrite(unsigned char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		((volatile unsigned char *)from)[i] = 0xfd;
}

#endif
