/* Dirties memory, frees it, and allocates memory again in all ways that there are. Prints for each
 * way how many bytes of the new memory have old contents. */
#include <pthread.h>

#include <kmem.h>

#include "check.h"

enum { BLOCKS = 24, DIRT = 0xA5 };

static const size_t sizes[] = { 8, 24, 64, 100, 129, 200, 1000, 1025, 4096, 5000, 32768, 32769,
				100000, 1 << 20, 3 << 20, 5 << 20 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static size_t stale(const void *block, size_t size)
{
	const unsigned char *bytes = block;
	size_t found = 0;
	REQUIRE(block);
	if (!bytes[0] && !memcmp(bytes, bytes + 1, size - 1))
		return 0;
	for (size_t i = 0; i < size; i++)
		found += bytes[i] == DIRT;
	return found;
}

static void dirty(void *block, size_t size)
{
	memset(opaque(block), DIRT, size);
}

/* One way to allocate: `take` gets the size of a block, and `give` frees what it got. */
struct way {
	const char *name;
	void *(*take)(size_t size);
	void (*give)(void *block, size_t size);
	size_t least, most;
	/* All bytes that the user may use are looked at, not only `size`. */
	int usable;
};

static unsigned order_of(size_t size)
{
	unsigned order = 0;
	while (((size_t)4096 << order) < size)
		order++;
	return order;
}

static struct kmem_cache *caches[SIZES];
static mempool_t *pool;

static struct kmem_cache *cache_of(size_t size)
{
	for (int i = 0; i < SIZES; i++)
		if (sizes[i] == size)
			return caches[i];
	abort();
}

static void *by_malloc(size_t size) { return opaque(malloc(size)); }
static void *by_memalign(size_t size) { return memalign(256, size); }
static void *by_realloc(size_t size) { return realloc(malloc(size / 2 + 1), size); }
static void *by_kmalloc(size_t size) { return kmalloc(size, GFP_KERNEL); }
static void *by_node(size_t size) { return kmalloc_node(size, __GFP_THISNODE, 0); }
static void *by_krealloc(size_t size) { return krealloc(kmalloc(size / 2 + 1, 0), size, 0); }
static void *by_cache(size_t size) { return kmem_cache_alloc(cache_of(size), GFP_KERNEL); }
static void *by_pages(size_t size) { return alloc_pages(GFP_KERNEL, order_of(size)); }
static void *by_exact(size_t size) { return alloc_pages_exact(size, GFP_KERNEL); }
static void *by_vmalloc(size_t size) { return vmalloc(size); }
static void *by_vrealloc(size_t size) { return vrealloc(vmalloc(4096), size, GFP_KERNEL); }
static void *by_vmap_page(size_t size) { return vmap_alloc_page(GFP_KERNEL); }
static void *by_pool(size_t size) { return mempool_alloc(pool, GFP_KERNEL); }

static void *in_group(size_t size)
{
	static kmem_group_t group;
	if (!group)
		group = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
	int64_t token = kmem_group_enter(group);
	void *block = opaque(malloc(size));
	kmem_group_leave(token);
	return block;
}

static void *allocate(void *size)
{
	return opaque(malloc((size_t)size));
}

/* On another thread, so perhaps on another CPU. */
static void *by_thread(size_t size)
{
	pthread_t thread;
	void *block;
	REQUIRE(pthread_create(&thread, NULL, allocate, (void *)size) == 0);
	REQUIRE(pthread_join(thread, &block) == 0);
	return block;
}

static void by_free(void *block, size_t size) { free(block); }
static void by_kfree(void *block, size_t size) { kfree(block); }
static void to_cache(void *block, size_t size) { kmem_cache_free(cache_of(size), block); }
static void to_pages(void *block, size_t size) { __free_pages(block, order_of(size)); }
static void to_exact(void *block, size_t size) { free_pages_exact(block, size); }
static void by_vfree(void *block, size_t size) { vfree(block); }
static void to_page(void *block, size_t size) { __free_page(block); }
static void to_pool(void *block, size_t size) { mempool_free(block, pool); }

static const struct way ways[] = {
	{ "malloc", by_malloc, by_free, 0, 5 << 20, 1 },
	{ "memalign", by_memalign, by_free, 0, 5 << 20, 1 },
	{ "realloc", by_realloc, by_free, 24, 5 << 20, 1 },
	{ "kmalloc", by_kmalloc, by_kfree, 0, 5 << 20, 1 },
	{ "kmalloc_node", by_node, by_kfree, 0, 5 << 20, 1 },
	{ "krealloc", by_krealloc, by_kfree, 24, 5 << 20, 1 },
	{ "kmem_cache_alloc", by_cache, to_cache, 0, 5 << 20, 0 },
	{ "alloc_pages", by_pages, to_pages, 4096, 5 << 20, 0 },
	{ "alloc_pages_exact", by_exact, to_exact, 4096, 5 << 20, 0 },
	{ "vmalloc", by_vmalloc, by_vfree, 4096, 5 << 20, 1 },
	{ "vrealloc", by_vrealloc, by_vfree, 5000, 5 << 20, 1 },
	{ "vmap_alloc_page", by_vmap_page, to_page, 4096, 4096, 0 },
	{ "mempool_alloc", by_pool, to_pool, 200, 200, 0 },
	{ "group", in_group, by_free, 0, 100000, 1 },
	{ "thread", by_thread, by_free, 0, 100000, 1 },
};

/* Many objects pass through the arrays of CPUs and the barn. */
static size_t through_sheaves(void)
{
	enum { MANY = 20000 };
	static void *all[MANY];
	size_t found = 0;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++) {
			all[i] = opaque(malloc(64));
			found += stale(all[i], 64);
			dirty(all[i], 64);
		}
		for (int i = 0; i < MANY; i++)
			free(all[i]);
	}
	return found;
}

static size_t by_way(const struct way *way, size_t size)
{
	void *blocks[BLOCKS];
	size_t found = 0;
	int count = size < 1 << 20 ? BLOCKS : 3;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < count; i++) {
			blocks[i] = way->take(size);
			size_t bytes = way->usable ? ksize(blocks[i]) : size;
			found += stale(blocks[i], bytes);
			dirty(blocks[i], bytes);
		}
		for (int i = 0; i < count; i++)
			way->give(blocks[i], size);
	}
	return found;
}

/* Memory that an allocation gave up itself reads as zero when it has it again. */
static size_t regrown(void *(*resize)(void *block, size_t size), size_t small, size_t size)
{
	unsigned char *block = resize(NULL, size);
	dirty(block, size);
	block = resize(block, small);
	block = resize(block, size);
	size_t found = stale(block + small, size - small);
	resize(block, 0);
	return found;
}

static void *resize(void *block, size_t size) { return realloc(block, size); }
static void *vresize(void *block, size_t size) { return vrealloc(block, size, GFP_KERNEL); }

int main(void)
{
	pool = mempool_create_kmalloc_pool(BLOCKS, 200);
	for (int i = 0; i < SIZES; i++)
		caches[i] = kmem_cache_create("dirty", sizes[i], 0, NULL);
	for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
		for (int i = 0; i < SIZES; i++)
			if (ways[w].least <= sizes[i] && sizes[i] <= ways[w].most)
				printf("%s/%zu %zu\n", ways[w].name, sizes[i],
				       by_way(&ways[w], sizes[i]));
	printf("sheaves/64 %zu\n", through_sheaves());
	printf("regrow/64 %zu\n", regrown(resize, 50, 64));
	printf("regrow/100000 %zu\n", regrown(resize, 98500, 100000));
	printf("vregrow/8192 %zu\n", regrown(vresize, 5000, 8192));
	printf("vregrow/100000 %zu\n", regrown(vresize, 5000, 100000));
	return RESULT();
}
