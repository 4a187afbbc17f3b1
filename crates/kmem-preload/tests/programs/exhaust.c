/* Allocates until nothing is left of what a resource limit grants, frees, and starts again.
 * Arguments: LIMIT MEBIBYTES [LARGEST]. LIMIT is "address_space" or "data", which the program sets
 * itself, or "inherited". */
#include "check.h"

struct link {
	struct link *next;
	unsigned seed;
};

static size_t granted;

static size_t fill_up(size_t size, struct link **list)
{
	size_t count = 0;
	for (;;) {
		/* A limit that does not bind must not cost the machine its memory. */
		if (count * size > 2 * granted) {
			dprintf(2, "the limit of %zu MiB does not bind\n", granted / MIB);
			exit(1);
		}
		errno = 0;
		struct link *fresh = malloc(size);
		if (!fresh) {
			CHECK(errno == ENOMEM);
			return count;
		}
		fresh->next = *list;
		fresh->seed = (unsigned)count;
		*list = fresh;
		count++;
	}
}

static void free_all(struct link **list, size_t count)
{
	while (*list) {
		struct link *next = (*list)->next;
		CHECK((*list)->seed == (unsigned)--count);
		free(*list);
		*list = next;
	}
	CHECK(count == 0);
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	granted = strtoul(argv[2], NULL, 0) * MIB;
	size_t largest = argc > 3 ? strtoul(argv[3], NULL, 0) : SIZE_MAX;
	struct rlimit limit = { granted, granted };
	if (!strcmp(argv[1], "address_space"))
		REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
	else if (!strcmp(argv[1], "data"))
		REQUIRE(setrlimit(RLIMIT_DATA, &limit) == 0);
	else
		REQUIRE(!strcmp(argv[1], "inherited"));

	static const size_t sizes[] = { 64, 16, 4096, 1000, 100000, 64, MIB, 30000, 5 * MIB, 64 };
	size_t first_small = 0;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		if (sizes[i] > largest)
			continue;
		struct link *list = NULL;
		size_t count = fill_up(sizes[i], &list);
		/* Full means full: other sizes fail the same way or come from what is left, and nothing
		 * breaks. */
		errno = 0;
		void *other = malloc(granted);
		CHECK(other == NULL && errno == ENOMEM);
		if (list) {
			void *bigger = realloc(list, granted);
			CHECK(bigger == NULL);
			CHECK(list->seed == (unsigned)(count - 1));
		}
		CHECK(calloc(granted / 16, 17) == NULL);
		free(malloc(100));
		free_all(&list, count);
		/* At least this much of the grant must be usable for blocks of one size. */
		size_t least = sizes[i] < 64 ? granted / 8 : sizes[i] <= MIB ? granted / 3 : granted / 4;
		if (count * sizes[i] < least) {
			dprintf(2, "only %zu blocks of %zu bytes in %zu MiB\n", count, sizes[i], granted / MIB);
			check_failures++;
		}
		if (sizes[i] == 64) {
			if (first_small)
				CHECK_AT(count >= first_small / 10 * 8, count);
			else
				first_small = count;
		}
	}
	return RESULT();
}
