/* Every alignment from 1 byte to 1 GiB, every entry point that takes one, and the arguments that
 * are refused. */
#include "check.h"

static void aligned_and_usable(void *block, size_t alignment, size_t size)
{
	CHECK_AT(block != NULL, alignment);
	if (!block)
		return;
	CHECK_AT(is_aligned(block, alignment), alignment);
	memset(block, 0x33, size);
}

int main(void)
{
	static const size_t sizes[] = { 0, 1, 8, 16, 17, 64, 100, 1000, 4095, 4096, 4097, 8192, 12288 };
	enum { SIZES = sizeof sizes / sizeof *sizes };
	static void *live[31][3];

	for (int k = 0; k <= 30; k++) {
		size_t alignment = (size_t)1 << k;
		for (int s = 0; s < SIZES; s++) {
			void *blocks[3] = { NULL, NULL, NULL };
			blocks[0] = memalign(alignment, sizes[s]);
			aligned_and_usable(blocks[0], alignment, sizes[s]);
			blocks[1] = aligned_alloc(alignment, sizes[s]);
			aligned_and_usable(blocks[1], alignment, sizes[s]);
			if (alignment >= sizeof(void *)) {
				CHECK_AT(posix_memalign(&blocks[2], alignment, sizes[s]) == 0, alignment);
				aligned_and_usable(blocks[2], alignment, sizes[s]);
			}
			for (int i = 0; i < 3; i++)
				free(blocks[i]);
		}
	}
	/* All alignments alive at once, each block whole. */
	for (int k = 0; k <= 30; k++)
		for (int i = 0; i < 3; i++) {
			live[k][i] = memalign((size_t)1 << k, 5000);
			REQUIRE(live[k][i] != NULL);
			CHECK_AT(is_aligned(live[k][i], (size_t)1 << k), k);
			fill(live[k][i], 5000, (unsigned)(k * 3 + i));
		}
	for (int k = 0; k <= 30; k++)
		for (int i = 0; i < 3; i++) {
			CHECK_AT(holds(live[k][i], 5000, (unsigned)(k * 3 + i)), k);
			free(live[k][i]);
		}

	/* Large and aligned. */
	for (int k = 12; k <= 30; k += 2) {
		char *block = memalign((size_t)1 << k, 9 * MIB);
		REQUIRE(block != NULL);
		CHECK_AT(is_aligned(block, (size_t)1 << k), k);
		block[0] = block[9 * MIB - 1] = 1;
		free(block);
	}

	/* Without a request: good for any type that fits. */
	for (size_t size = 1; size < 5000; size++) {
		size_t wanted = 16;
		while (wanted > size)
			wanted /= 2;
		if (wanted < 8)
			wanted = 8;
		void *blocks[4] = { malloc(size), calloc(1, size), realloc(NULL, size), malloc(size) };
		for (int i = 0; i < 4; i++) {
			CHECK_AT(blocks[i] && is_aligned(blocks[i], wanted), size);
			free(blocks[i]);
		}
	}
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	for (size_t size = 0; size < 5 * page; size += 333) {
		void *block = valloc(size);
		aligned_and_usable(block, page, size);
		free(block);
		block = pvalloc(size);
		aligned_and_usable(block, page, (size + page - 1) / page * page);
		free(block);
	}

	/* posix_memalign: a power of two, at least a pointer wide; else EINVAL and nothing else
	 * happens. */
	static const size_t refused[] = {
		0, 1, 2, 3, 4, sizeof(void *) / 2, sizeof(void *) + 1, 24, 48, 100, 4095, 4097,
		SIZE_MAX, SIZE_MAX - 1, ((size_t)1 << 62) + 8,
	};
	void *untouched = &live;
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		errno = 55;
		CHECK_AT(posix_memalign(&untouched, refused[i], 100) == EINVAL, refused[i]);
		CHECK_AT(untouched == &live && errno == 55, refused[i]);
	}
	errno = 55;
	int outcome = posix_memalign(&untouched, (size_t)1 << 63, 100);
	CHECK(outcome == EINVAL || outcome == ENOMEM);
	CHECK(posix_memalign(&untouched, (size_t)1 << 30, SIZE_MAX / 2) == ENOMEM);
	CHECK(untouched == &live);
	CHECK(errno == 55 || !runs_on_kmem());

	/* A size that is no multiple of the alignment is fine. */
	void *odd = aligned_alloc(64, 65);
	aligned_and_usable(odd, 64, 65);
	free(odd);

	if (runs_on_kmem()) {
		static const size_t not_powers[] = { 0, 3, 24, 100, 4097, SIZE_MAX };
		for (size_t i = 0; i < sizeof not_powers / sizeof *not_powers; i++) {
			errno = 0;
			void *block = aligned_alloc(not_powers[i], 128);
			CHECK_AT(block == NULL && errno == EINVAL, not_powers[i]);
		}
	}
	return RESULT();
}
