/* Very many live blocks of one size need few mappings: COUNT SIZE. */
#include "check.h"
#include <sys/prctl.h>

static size_t available_bytes(void)
{
	static char text[8192];
	read_file("/proc/meminfo", text, sizeof text);
	const char *line = strstr(text, "MemAvailable:");
	return line ? strtoul(line + 13, NULL, 10) * 1024 : 0;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	size_t count = strtoul(argv[1], NULL, 0), size = strtoul(argv[2], NULL, 0), failed = 0;
	/* One touched byte must cost one small page here. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	int touch = available_bytes() > count * 4096 * 4;
	char **blocks = calloc(count, sizeof *blocks);
	REQUIRE(blocks != NULL);
	int before = mapping_count();
	for (size_t i = 0; i < count; i++) {
		blocks[i] = malloc(size);
		failed += !blocks[i];
		if (touch && blocks[i])
			*blocks[i] = (char)i;
	}
	int during = mapping_count();
	dprintf(1, "%zu failed, %d mappings more\n", failed, during - before);
	CHECK_AT(failed == 0, failed);
	CHECK_AT(during - before < 500, during - before);
	for (size_t i = 0; i < count; i++) {
		CHECK(!touch || *blocks[i] == (char)i);
		free(blocks[i]);
	}
	CHECK(mapping_count() - before < 500);
	/* Every second block of those that stay: holes must not tear mappings apart. */
	for (size_t i = 0; i < count; i++)
		REQUIRE((blocks[i] = malloc(size)) != NULL);
	for (size_t i = 0; i < count; i += 2)
		free(blocks[i]);
	malloc_trim(0);
	CHECK_AT(mapping_count() - before < 500, mapping_count() - before);
	for (size_t i = 1; i < count; i += 2)
		free(blocks[i]);
	return RESULT();
}
