/* Memory that is asked for and not touched. Argument: CASE. "move": a block of which one byte was
 * touched takes no memory when it moves. "too_much": more than the machine has is refused, as the
 * kernel's heuristic does. */
#include "check.h"
#include <sys/sysinfo.h>

static size_t resident(void)
{
	unsigned long size = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	REQUIRE(file && fscanf(file, "%lu %lu", &size, &resident) == 2);
	fclose(file);
	return resident * 4096;
}

static void move(void)
{
	size_t length = 100 * MIB;
	char *block = malloc(length), *behind = malloc(length);
	REQUIRE(block && behind);
	block[77 * MIB + 5] = 7;
	size_t before = resident();
	char *moved = realloc(block, 2 * length);
	REQUIRE(moved);
	CHECK(moved[77 * MIB + 5] == 7 && moved[0] == 0 && moved[length - 1] == 0);
	CHECK_AT(resident() < before + 8 * MIB, resident() - before);
	memset(moved, 1, length);
	char *small = realloc(moved, 3 * MIB + 100);
	CHECK(small && small[0] == 1 && small[3 * MIB + 99] == 1);
	free(small);
	free(behind);
}

static void too_much(void)
{
	struct sysinfo machine;
	REQUIRE(sysinfo(&machine) == 0);
	size_t all = (machine.totalram + machine.totalswap) * machine.mem_unit;
	for (int i = 0; i < 400; i++) {
		errno = 0;
		CHECK(malloc(all + 4096) == NULL && errno == ENOMEM);
		CHECK(calloc(2, all) == NULL && errno == ENOMEM);
	}
	void *least = malloc(4096), *bigger = realloc(least, all + 4096);
	CHECK(bigger == NULL);
	free(least);
	void *most = malloc(all / 10 * 9);
	CHECK(most != NULL);
	free(most);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	if (!strcmp(argv[1], "move"))
		move();
	else
		too_much();
	return RESULT();
}
