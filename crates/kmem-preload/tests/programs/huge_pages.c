/* Which memory gets huge pages, as the kernel tells it.
 * Arguments: CASE, then "advised" or "not": whether the heap is to get them. The cases "backed",
 * "blocks" and "buffers" print "none" and end where the system has no huge page to give. */
#include "check.h"
#include <kmem.h>
#include <sys/mman.h>

enum { SIZE = 200, COUNT = 400000 };
static char *objects[COUNT];

/* Sums of /proc/self/smaps, in bytes. */
struct mapped {
	size_t advised;
	size_t huge;
	size_t resident;
};

/* Reads with a buffer of its own, so that nothing is allocated. */
static struct mapped read_mappings(void)
{
	static char text[1 << 20];
	size_t length = 0;
	int fd = open("/proc/self/smaps", O_RDONLY);
	REQUIRE(fd >= 0);
	for (ssize_t got; (got = read(fd, text + length, sizeof text - 1 - length)) > 0;)
		length += (size_t)got;
	close(fd);
	REQUIRE(length < sizeof text - 1);
	text[length] = 0;
	struct mapped sum = { 0, 0, 0 };
	size_t size = 0, kib;
	for (char *line = text; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "Size: %zu kB", &kib) == 1)
			size = kib << 10;
		else if (sscanf(line, "Rss: %zu kB", &kib) == 1)
			sum.resident += kib << 10;
		else if (sscanf(line, "AnonHugePages: %zu kB", &kib) == 1)
			sum.huge += kib << 10;
		else if (!strncmp(line, "VmFlags:", 8)) {
			char *end = strchr(line, '\n');
			char *flag = strstr(line, " hg");
			if (flag && (!end || flag < end))
				sum.advised += size;
		}
	}
	return sum;
}

static void allocate(int from, int to)
{
	for (int i = from; i < to; i++) {
		REQUIRE((objects[i] = malloc(SIZE)) != NULL);
		memset(objects[i], i, SIZE);
	}
}

/* Makes calls until at most this much is resident, for a minute at most: memory goes back when the
 * clock says so. */
static void wait_for_resident(size_t most)
{
	time_t end = time(NULL) + HUNG;
	do {
		/* More blocks than a CPU keeps, so that the clock is looked at. */
		static void *blocks[200];
		for (int i = 0; i < 200; i++)
			blocks[i] = opaque(malloc(32 << 10));
		for (int i = 0; i < 200; i++)
			free(blocks[i]);
		usleep(1000);
	} while (read_mappings().resident > most && time(NULL) < end);
	CHECK_AT(read_mappings().resident <= most, read_mappings().resident);
}

/* Frees all objects but the first of each stretch of this many bytes of addresses. */
static void thin_out(size_t stretch)
{
	uintptr_t last = 0;
	for (int i = 0; i < COUNT; i++) {
		uintptr_t at = (uintptr_t)objects[i] / stretch;
		if (at != last) {
			last = at;
			continue;
		}
		free(objects[i]);
		objects[i] = NULL;
	}
}

/* Returns whether the system gives a program huge pages that asks for 32 MiB of them. */
static int has_huge_pages(void)
{
	size_t bytes = 32 * MIB;
	char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(own != MAP_FAILED && !madvise(own, bytes, MADV_HUGEPAGE));
	memset(own, 1, bytes);
	size_t huge = read_mappings().huge;
	munmap(own, bytes);
	return huge > 0;
}

/* Touches order-9 blocks, each the size of a huge page. */
static void check_blocks(void)
{
	enum { BLOCKS = 32 };
	for (int i = 0; i < BLOCKS; i++) {
		char *block = alloc_pages(GFP_KERNEL, 9);
		REQUIRE(block != NULL);
		CHECK_AT((uintptr_t)block % (2 * MIB) == 0, block);
		memset(block, i, 2 * MIB);
	}
	struct mapped now = read_mappings();
	CHECK_AT(now.huge > 0, now.huge);
	CHECK_AT(now.resident < (2 * BLOCKS + 24) * MIB, now.resident);
}

/* Touches one page in each half MiB of long buffers. They lie beside each other without a gap, so
 * that only what their users leave out makes them sparse. */
static void check_buffers(void)
{
	static const size_t SIZES[] = { 512 << 10, 1 << 20, 3 << 20, 9 << 20 };
	size_t before = read_mappings().resident, touched = 0;
	for (int i = 0; i < 64; i++) {
		size_t size = SIZES[i % 4];
		char *buffer = malloc(size);
		REQUIRE(buffer != NULL);
		for (size_t at = 0; at < size; at += 512 << 10, touched += 4096)
			buffer[at] = 1;
	}
	struct mapped now = read_mappings();
	CHECK_AT(now.huge == 0, now.huge);
	CHECK_AT(now.resident < before + touched + 4 * MIB, now.resident - before);
}

int main(int argc, char **argv)
{
	REQUIRE(argc == 3);
	int advised = !strcmp(argv[2], "advised");
	if (!strcmp(argv[1], "small")) {
		allocate(0, COUNT / 10);
		CHECK_AT(read_mappings().advised == 0, read_mappings().advised);
		return RESULT();
	}
	int backed = !strcmp(argv[1], "backed"), blocks = !strcmp(argv[1], "blocks");
	if (backed || blocks || !strcmp(argv[1], "buffers")) {
		if (!has_huge_pages()) {
			puts("none");
		} else if (blocks) {
			check_blocks();
		} else if (backed) {
			allocate(0, COUNT);
			CHECK_AT(read_mappings().huge > 0, read_mappings().huge);
		} else {
			check_buffers();
		}
		return RESULT();
	}
	allocate(0, COUNT);
	struct mapped dense = read_mappings();
	CHECK_AT(advised ? dense.advised >= 40 * MIB : dense.advised == 0, dense.advised);
	CHECK_AT(advised || dense.huge == 0, dense.huge);
	if (!strcmp(argv[1], "dense"))
		return RESULT();
	if (!strcmp(argv[1], "sparse")) {
		thin_out(2 * MIB);
		wait_for_resident(dense.resident / 4);
		/* The kernel's daemon would fill what is still advised. */
		CHECK_AT(read_mappings().advised <= 8 * MIB, read_mappings().advised);
	} else if (!strcmp(argv[1], "long")) {
		for (int i = 0; i < COUNT; i++)
			free(objects[i]);
		malloc_trim(0);
		size_t before = read_mappings().resident;
		char *array = malloc(72 * MIB);
		REQUIRE(array != NULL);
		for (size_t at = 0; at < 72 * MIB; at += 2 * MIB)
			array[at] = 1;
		size_t after = read_mappings().resident;
		CHECK_AT(after < before + 2 * MIB, after - before);
		free(array);
	} else {
		REQUIRE(!"a known case");
	}
	return RESULT();
}
