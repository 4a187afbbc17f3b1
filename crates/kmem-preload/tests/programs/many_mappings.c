/* Allocates while the process has as many mappings as it may have. With the argument `grow`, it
 * needs more memory than the allocator has at that moment. */
#include "check.h"
#include <sys/mman.h>

enum { PAGE = 4096 };

/* Cuts a mapping up until the kernel refuses. */
static void use_up_mappings(void)
{
	size_t length = (size_t)1 << 30;
	char *cut = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	REQUIRE(cut != MAP_FAILED);
	for (size_t at = PAGE; at < length; at += 2 * PAGE)
		if (mprotect(cut + at, PAGE, PROT_READ) != 0)
			return;
	dprintf(2, "the kernel grants all mappings\n");
}

static void require_growth(void)
{
	enum { BLOCKS = 400 };
	static char *blocks[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		REQUIRE((blocks[i] = malloc(MIB)) != NULL);
		blocks[i][0] = blocks[i][MIB - 1] = (char)i;
	}
	for (int i = 0; i < BLOCKS; i++) {
		CHECK_AT(blocks[i][0] == (char)i && blocks[i][MIB - 1] == (char)i, i);
		free(blocks[i]);
	}
}

int main(int argc, char **argv)
{
	char *first = malloc(64 * MIB);
	REQUIRE(first);
	free(first);
	use_up_mappings();
	if (argc > 1 && !strcmp(argv[1], "grow"))
		require_growth();
	char *blocks[600];
	for (int i = 0; i < 600; i++) {
		blocks[i] = malloc(17 * PAGE);
		REQUIRE(blocks[i]);
		memset(blocks[i], i, 17 * PAGE);
	}
	for (int i = 0; i < 600; i++) {
		CHECK_AT(blocks[i][16 * PAGE] == (char)i, i);
		free(blocks[i]);
	}
	return RESULT();
}
