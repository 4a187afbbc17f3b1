/* Shared by the test programs: a check that reports and counts, one that gives up, and helpers the
 * optimizer cannot see through. Nothing here allocates unless a check fails. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int check_failures;

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			int check_errno = errno; \
			if (__atomic_fetch_add(&check_failures, 1, __ATOMIC_RELAXED) < 40) \
				dprintf(2, "FAILED %s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, check_errno); \
			errno = check_errno; \
		} \
	} while (0)

/* Checks a condition, and reports the value that made it fail. */
#define CHECK_AT(condition, value) \
	do { \
		if (!(condition)) { \
			int check_errno = errno; \
			if (__atomic_fetch_add(&check_failures, 1, __ATOMIC_RELAXED) < 40) \
				dprintf(2, "FAILED %s:%d: %s at %s = %#llx (errno %d)\n", __FILE__, \
					__LINE__, #condition, #value, (unsigned long long)(value), \
					check_errno); \
			errno = check_errno; \
		} \
	} while (0)

#define REQUIRE(condition) \
	do { \
		if (!(condition)) { \
			dprintf(2, "FAILED %s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			_exit(1); \
		} \
	} while (0)

#define RESULT() (check_failures ? 1 : 0)

#define MIB ((size_t)1 << 20)

/* Seconds after which a child that is not done hangs, however busy the machine is. */
enum { HUNG = 60 };

static inline void *opaque(void *pointer)
{
	__asm__ volatile("" : "+r"(pointer) : : "memory");
	return pointer;
}

static inline uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

static inline unsigned char pattern_at(unsigned seed, size_t offset)
{
	return (unsigned char)(seed * 131u + (unsigned)offset * 7u + (unsigned)(offset >> 8));
}

static inline void fill(void *block, size_t size, unsigned seed)
{
	unsigned char *bytes = (unsigned char *)block;
	for (size_t i = 0; i < size; i++)
		bytes[i] = pattern_at(seed, i);
}

static inline int holds(const void *block, size_t size, unsigned seed)
{
	const unsigned char *bytes = (const unsigned char *)block;
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != pattern_at(seed, i))
			return 0;
	return 1;
}

static inline int all_zero(const void *block, size_t size)
{
	const unsigned char *bytes = (const unsigned char *)block;
	for (size_t i = 0; i < size; i++)
		if (bytes[i])
			return 0;
	return 1;
}

static inline int is_aligned(const void *pointer, size_t alignment)
{
	return ((uintptr_t)pointer & (alignment - 1)) == 0;
}

static inline double seconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Reads a small file by system calls alone, so that looking does not change what is looked at. */
static inline size_t read_file(const char *path, char *buffer, size_t capacity)
{
	size_t used = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	for (;;) {
		ssize_t got = read(fd, buffer + used, capacity - 1 - used);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	buffer[used] = 0;
	return used;
}

static inline size_t resident_bytes(void)
{
	char text[128];
	unsigned long total = 0, resident = 0;
	read_file("/proc/self/statm", text, sizeof text);
	sscanf(text, "%lu %lu", &total, &resident);
	return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

static inline int mapping_count(void)
{
	char buffer[4096];
	int lines = 0;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	ssize_t got;
	REQUIRE(fd >= 0);
	while ((got = read(fd, buffer, sizeof buffer)) > 0)
		for (ssize_t i = 0; i < got; i++)
			lines += buffer[i] == '\n';
	close(fd);
	return lines;
}

/* True when the malloc in use is the one under test and not the C library's. */
static inline int runs_on_kmem(void)
{
	const char *wanted = getenv("EXPECT_KMEM");
	return wanted && *wanted == '1';
}

#endif
