/* Sizes that overflow or are too large, and alignments that are none: CASE. The call must fail. */
#include "../misuse.h"

/* More than half of all addresses: no block can have as many bytes. */
#define TOO_MANY ((size_t)PTRDIFF_MAX + 1)
/* Its square is 1 << 64, which is 0. */
#define SQUARE_ROOT ((size_t)1 << 32)

static int fails(void *block)
{
	int refused = block == NULL;
	if (block)
		announce(block);
	go_on(64);
	return passed(refused ? REFUSED : UNNOTICED);
}

static int malloc_most(void) { return fails(malloc(SIZE_MAX)); }
static int malloc_half(void) { return fails(malloc(TOO_MANY)); }
static int malloc_minus(void) { return fails(malloc((size_t)-4096)); }

static int calloc_wraps(void) { return fails(calloc(SQUARE_ROOT, SQUARE_ROOT)); }
static int calloc_wraps_to_little(void) { return fails(calloc(SIZE_MAX / 16 + 2, 16)); }

static int reallocarray_wraps(void)
{
	return fails(reallocarray(malloc(64), SQUARE_ROOT + 1, SQUARE_ROOT));
}

static int realloc_most(void) { return fails(realloc(malloc(64), SIZE_MAX)); }
static int realloc_large_most(void) { return fails(realloc(malloc(MIB), SIZE_MAX - 100)); }
static int aligned_most(void) { return fails(aligned_alloc(4096, SIZE_MAX - 4095)); }
static int memalign_most(void) { return fails(memalign(64, SIZE_MAX - 8)); }
static int valloc_most(void) { return fails(valloc(SIZE_MAX - 8)); }
/* Rounded up to pages, it is 0. */
static int pvalloc_wraps(void) { return fails(pvalloc(SIZE_MAX - 8)); }

static int posix_memalign_most(void)
{
	void *block = NULL;
	return fails(posix_memalign(&block, 4096, SIZE_MAX - 4095) == ENOMEM ? NULL : (void *)1);
}

static int bad_alignment(size_t alignment)
{
	void *block = NULL;
	int error = posix_memalign(&block, alignment, 100);
	return fails(error == EINVAL ? NULL : (void *)1);
}

static int posix_memalign_odd(void) { return bad_alignment(24); }
static int posix_memalign_none(void) { return bad_alignment(0); }
static int posix_memalign_less(void) { return bad_alignment(4); }
static int posix_memalign_huge(void)
{
	void *block = NULL;
	return fails(posix_memalign(&block, TOO_MANY, 100) ? NULL : (void *)1);
}

static int aligned_alloc_odd(void) { return fails(aligned_alloc(24, 96)); }
static int aligned_alloc_none(void) { return fails(aligned_alloc(0, 96)); }
static int memalign_odd(void)
{
	void *block = memalign(24, 96);
	/* Rounding up to a power of two is documented behaviour of the C library. */
	return block && is_aligned(block, 32) ? passed(HARMLESS) : fails(block);
}
static int memalign_huge(void) { return fails(memalign(TOO_MANY, 96)); }

static const struct {
	const char *name;
	int (*run)(void);
} CASES[] = {
	{ "malloc_most", malloc_most },
	{ "malloc_half", malloc_half },
	{ "malloc_minus", malloc_minus },
	{ "calloc_wraps", calloc_wraps },
	{ "calloc_wraps_to_little", calloc_wraps_to_little },
	{ "reallocarray_wraps", reallocarray_wraps },
	{ "realloc_most", realloc_most },
	{ "realloc_large_most", realloc_large_most },
	{ "aligned_most", aligned_most },
	{ "memalign_most", memalign_most },
	{ "valloc_most", valloc_most },
	{ "pvalloc_wraps", pvalloc_wraps },
	{ "posix_memalign_most", posix_memalign_most },
	{ "posix_memalign_odd", posix_memalign_odd },
	{ "posix_memalign_none", posix_memalign_none },
	{ "posix_memalign_less", posix_memalign_less },
	{ "posix_memalign_huge", posix_memalign_huge },
	{ "aligned_alloc_odd", aligned_alloc_odd },
	{ "aligned_alloc_none", aligned_alloc_none },
	{ "memalign_odd", memalign_odd },
	{ "memalign_huge", memalign_huge },
};

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
		if (is(argv[1], CASES[i].name))
			return CASES[i].run();
	return passed(NO_SUCH_CASE);
}
