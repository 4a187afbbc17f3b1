/* The relatives of the kernel's allocation functions, one case per run. */
#include "expect.h"
#include "kmem.h"
#include <stdint.h>
#include <string.h>

#define PAGE ((size_t)4096)
#define QUIET (GFP_KERNEL | __GFP_NOWARN)

/* Frees objects of these sizes that are not zero, so that new ones are not by chance. */
static void dirty(void)
{
	static const size_t sizes[] = { 16, 112, 512, 1024, 5000, 40 * 4096 };
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		void *some[8];
		for (int j = 0; j < 8; j++)
			some[j] = memset(kmalloc(sizes[i], GFP_KERNEL), 0xff, sizes[i]);
		kfree_bulk(8, some);
		vfree(memset(vmalloc(sizes[i]), 0xff, sizes[i]));
	}
}

static void case_copies(void)
{
	static const int numbers[] = { 1, 2, 3, 4 };
	char text[] = "a text", *none = NULL;
	int *copy = kmemdup(numbers, sizeof(numbers), GFP_KERNEL); /* at kmemdup */
	int *array = kmemdup_array(numbers, 3, sizeof(int), GFP_KERNEL); /* at kmemdup_array */
	char *nul = kmemdup_nul(text, 3, GFP_KERNEL); /* at kmemdup_nul */
	char *part = kstrndup(text, 4, GFP_KERNEL); /* at kstrndup */
	char *whole = kstrndup(text, 100, GFP_KERNEL); /* at whole */
	const char *literal = kstrdup_const("literal", GFP_KERNEL);
	const char *other = kstrdup_const(text, GFP_KERNEL); /* at kstrdup_const */
	void *tracked = kmalloc_track_caller(100, GFP_KERNEL); /* at track_caller */
	MUST(!memcmp(copy, numbers, sizeof(numbers)) && !memcmp(array, numbers, 3 * sizeof(int)));
	MUST(!strcmp(nul, "a t") && !strcmp(part, "a te") && !strcmp(whole, text));
	MUST(!strcmp(literal, "literal"));
	MUST(!strcmp(other, text) && other != text);
	MUST(!kmemdup_array(numbers, SIZE_MAX / 2, 3, GFP_KERNEL));
	MUST(!kmemdup_nul(none, 3, GFP_KERNEL) && !kstrndup(none, 3, GFP_KERNEL));
	MUST(!kmemdup_nul(text, SIZE_MAX, GFP_KERNEL));
	EXPECT("kmemdup", 16, 1);
	EXPECT("kmemdup_array", 16, 1);
	EXPECT("kmemdup_nul", 16, 1);
	EXPECT("kstrndup", 16, 1);
	EXPECT("whole", 16, 1);
	EXPECT("kstrdup_const", 16, 1);
	EXPECT("track_caller", 112, 1);
	check();
	kfree(copy);
	kfree(array);
	kfree(nul);
	kfree(part);
	kfree(whole);
	kfree(tracked);
	kfree_const(literal);
	kfree_const(other);
	kfree_const(NULL);
	check();

	int *grown = kmalloc_array(4, sizeof(int), GFP_KERNEL); /* at small */
	memcpy(grown, numbers, sizeof(numbers));
	grown = krealloc_array(grown, 1000, sizeof(int), GFP_KERNEL | __GFP_ZERO); /* at grown */
	MUST(!memcmp(grown, numbers, 16) && is_all(grown + 4, 0, 4000 - 16));
	MUST(!krealloc_array(grown, SIZE_MAX / 2, 4, GFP_KERNEL));
	EXPECT("grown", ksize(grown), 1);
	check();
	/* The object stays mapped, so what a secret leaves behind can be seen. */
	size_t bytes = ksize(grown);
	volatile unsigned char *left = memset(grown, 0x55, bytes);
	kfree_sensitive(grown);
	kfree_sensitive(NULL);
	for (size_t i = 0; i < bytes; i++)
		MUST(!left[i]);
	check();
}

static void case_either(void)
{
	dirty();
	char *small = kvmalloc(100, GFP_KERNEL); /* at kvmalloc */
	char *large = kvmalloc(40 * PAGE - 1, GFP_KERNEL); /* at kvmalloc_large */
	char *zeroed = kvzalloc(40 * PAGE, GFP_KERNEL); /* at kvzalloc */
	char *zeroes = kvcalloc(10, 50, GFP_KERNEL); /* at kvcalloc */
	char *array = kvmalloc_array(10, 10, GFP_KERNEL); /* at kvmalloc_array */
	char *node = kvmalloc_node(100, GFP_KERNEL, 0); /* at kvmalloc_node */
	char *znode = kvzalloc_node(100, GFP_KERNEL, NUMA_NO_NODE); /* at kvzalloc_node */
	MUST(!is_vmalloc_addr(small) && is_vmalloc_addr(large) && is_vmalloc_addr(zeroed));
	MUST(is_all(zeroed, 0, 40 * PAGE) && is_all(zeroes, 0, 500) && is_all(znode, 0, 100));
	MUST(!kvcalloc(SIZE_MAX / 2, 3, GFP_KERNEL) && !kvmalloc_array(SIZE_MAX / 2, 3, GFP_KERNEL));
	MUST(!kvmalloc((size_t)1 << 50, QUIET));
	EXPECT("kvmalloc", 112, 1);
	EXPECT("kvmalloc_large", 40 * PAGE, 1);
	EXPECT("kvzalloc", 40 * PAGE, 1);
	EXPECT("kvcalloc", ksize(zeroes), 1);
	EXPECT("kvmalloc_array", 112, 1);
	EXPECT("kvmalloc_node", 112, 1);
	EXPECT("kvzalloc_node", 112, 1);
	check();
	kvfree(zeroes);
	kvfree(array);
	kvfree(node);
	kvfree(znode);
	kvfree(NULL);

	strcpy(small, "contents");
	strcpy(large, "more");
	char *copy = kvmemdup(large, 40 * PAGE, GFP_KERNEL); /* at kvmemdup */
	MUST(!strcmp(copy, "more") && is_vmalloc_addr(copy));
	small = kvrealloc(small, 3 * PAGE, GFP_KERNEL); /* at kvrealloc */
	large = kvrealloc(large, 50 * PAGE, GFP_KERNEL | __GFP_ZERO); /* at kvrealloc_area */
	char *fresh = kvrealloc(NULL, 100, GFP_KERNEL); /* at kvrealloc_null */
	MUST(!strcmp(small, "contents") && !strcmp(large, "more") && is_vmalloc_addr(large));
	MUST(is_all(large + 40 * PAGE, 0, 10 * PAGE));
	MUST(!kvrealloc(small, (size_t)1 << 50, QUIET) && !kvrealloc(large, (size_t)1 << 50, QUIET));
	EXPECT("kvzalloc", 40 * PAGE, 1);
	EXPECT("kvmemdup", 40 * PAGE, 1);
	EXPECT("kvrealloc", ksize(small), 1);
	EXPECT("kvrealloc_area", 50 * PAGE, 1);
	EXPECT("kvrealloc_null", 112, 1);
	check();
	MUST(!kvrealloc(fresh, 0, GFP_KERNEL));
	memset(small, 0x55, 3 * PAGE);
	volatile unsigned char *left = (unsigned char *)small;
	kvfree_sensitive(small, 3 * PAGE);
	for (size_t i = 0; i < 3 * PAGE; i++)
		MUST(!left[i]);
	kvfree_sensitive(large, 50 * PAGE);
	kvfree_sensitive(NULL, 10);
	kvfree(copy);
	kvfree(zeroed);
	check();
}

static void case_areas(void)
{
	dirty();
	char *plain = __vmalloc(100, GFP_KERNEL); /* at __vmalloc */
	char *flags = __vmalloc(3 * PAGE, __GFP_ZERO); /* at flags */
	char *user = vmalloc_user(40 * PAGE); /* at vmalloc_user */
	char *zeroes = vcalloc(10, PAGE); /* at vcalloc */
	char *array = vmalloc_array(10, PAGE); /* at vmalloc_array */
	char *node = vmalloc_node(PAGE, 0); /* at vmalloc_node */
	char *znode = vzalloc_node(PAGE, 0); /* at vzalloc_node */
	char *with = __vcalloc(2, PAGE, GFP_NOWAIT); /* at __vcalloc */
	MUST(is_all(flags, 0, 3 * PAGE) && is_all(user, 0, 40 * PAGE));
	MUST(is_all(zeroes, 0, 10 * PAGE) && is_all(znode, 0, PAGE) && is_all(with, 0, 2 * PAGE));
	MUST(!vcalloc(SIZE_MAX / 2, 3) && !vmalloc_array(SIZE_MAX / 2, 3));
	MUST(!__vcalloc(SIZE_MAX / 2, 3, QUIET) && !__vmalloc_array(SIZE_MAX / 2, 3, QUIET));
	MUST(!__vmalloc((size_t)1 << 50, QUIET) && !__vmalloc(0, QUIET));
	EXPECT("__vmalloc", PAGE, 1);
	EXPECT("flags", 3 * PAGE, 1);
	EXPECT("vmalloc_user", 40 * PAGE, 1);
	EXPECT("vcalloc", 10 * PAGE, 1);
	EXPECT("vmalloc_array", 10 * PAGE, 1);
	EXPECT("vmalloc_node", PAGE, 1);
	EXPECT("vzalloc_node", PAGE, 1);
	EXPECT("__vcalloc", 2 * PAGE, 1);
	check();
	void *all[] = { plain, flags, user, zeroes, array, node, znode, with };
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		vfree(all[i]);
	check();
}

static void case_numbers(void)
{
	unsigned long block = __get_free_pages(GFP_KERNEL, 2); /* at __get_free_pages */
	unsigned long one = __get_free_page(GFP_KERNEL); /* at __get_free_page */
	memset((void *)one, 0xff, PAGE);
	free_page(one);
	unsigned long zero = get_zeroed_page(GFP_KERNEL); /* at get_zeroed_page */
	char *exact = alloc_pages_exact_nid(0, 3 * PAGE, __GFP_ZERO); /* at exact_nid */
	void *objects = kcalloc_node(10, 10, GFP_KERNEL, 0); /* at kcalloc_node */
	void *array = kmalloc_array_node(10, 10, GFP_KERNEL, 0); /* at kmalloc_array_node */
	MUST(block % (4 * PAGE) == 0 && block && is_all((void *)zero, 0, PAGE));
	MUST(is_all(exact, 0, 3 * PAGE) && is_all(objects, 0, 100) && array);
	MUST(!__get_free_pages(GFP_KERNEL, 40) && !kcalloc_node(SIZE_MAX / 2, 3, QUIET, 0));
	MUST(!kmalloc_array_node(SIZE_MAX / 2, 3, QUIET, 0));
	MUST(!alloc_pages_exact_nid(0, 0, GFP_KERNEL));
	void *bulk[3] = { exact, NULL, NULL };
	MUST(alloc_pages_bulk_node(__GFP_ZERO, 0, 3, bulk) == 3); /* at bulk_node */
	MUST(bulk[0] == exact && bulk[1] != bulk[2]);
	MUST(is_all(bulk[1], 0, PAGE) && is_all(bulk[2], 0, PAGE));
	char *low = vmalloc_32(PAGE); /* at vmalloc_32 */
	char *low_zero = vmalloc_32_user(PAGE); /* at low_zero */
	MUST(low && is_all(low_zero, 0, PAGE));
	EXPECT("bulk_node", 2 * PAGE, 2);
	EXPECT("vmalloc_32", PAGE, 1);
	EXPECT("low_zero", PAGE, 1);
	EXPECT("__get_free_pages", 4 * PAGE, 1);
	EXPECT("get_zeroed_page", PAGE, 1);
	EXPECT("exact_nid", 3 * PAGE, 1);
	EXPECT("kcalloc_node", 112, 1);
	EXPECT("kmalloc_array_node", 112, 1);
	check();
	free_pages(block, 2);
	free_pages(0, 2);
	free_page(zero);
	free_pages_exact(exact, 3 * PAGE);
	__free_page(bulk[1]);
	__free_page(bulk[2]);
	vfree(low);
	vfree(low_zero);
	kfree(objects);
	kfree(array);
	check();

	/* A bulk of many batches, into an array with gaps. */
	enum { MANY = 300 };
	void *pages[MANY] = { NULL };
	pages[7] = (void *)__get_free_page(GFP_KERNEL); /* at gap */
	void *gap = pages[7];
	MUST(alloc_pages_bulk(__GFP_ZERO, MANY, pages) == MANY && pages[7] == gap); /* at bulk */
	for (int i = 0; i < MANY; i++) {
		MUST((uintptr_t)pages[i] % PAGE == 0 && (i == 7 || is_all(pages[i], 0, PAGE)));
		memset(pages[i], i % 255 + 1, PAGE);
	}
	for (int i = 0; i < MANY; i++)
		MUST(is_all(pages[i], i % 255 + 1, PAGE));
	EXPECT("gap", PAGE, 1);
	EXPECT("bulk", (MANY - 1) * PAGE, MANY - 1);
	check();
	for (int i = 0; i < MANY; i++)
		free_page((unsigned long)pages[i]);
	check();
}

struct thing {
	long numbers[25];
};

static int constructed;
static void construct(void *object)
{
	struct thing *thing = object;
	constructed++;
	for (int i = 0; i < 25; i++)
		thing->numbers[i] = 42;
}

static int is_constructed(const struct thing *thing)
{
	for (int i = 0; i < 25; i++)
		if (thing->numbers[i] != 42)
			return 0;
	return 1;
}

static void case_constructor(void)
{
	struct kmem_cache *things =
		kmem_cache_create("things", 200, 0, SLAB_ACCOUNT, construct); /* at things */
	struct thing *some[100];
	MUST(kmem_cache_size(things) == 200);
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 100; i++) {
			some[i] = kmem_cache_alloc(things, GFP_KERNEL); /* at alloc */
			MUST(is_constructed(some[i]));
		}
		MUST(constructed == 100);
		if (round == 5) {
			EXPECT("things", ksize(things), 1);
			EXPECT("alloc", 100 * ksize(some[0]), 100);
			check();
		}
		kmem_cache_free_bulk(things, 100, (void **)some);
	}
	/* Nothing is billed for free objects. */
	EXPECT("things", ksize(things), 1);
	check();
	/* Others may not have their memory. */
	char *foreign[200];
	for (int i = 0; i < 200; i++)
		foreign[i] = memset(kmalloc(200, GFP_KERNEL), 1, 200);
	some[0] = kmem_cache_alloc(things, GFP_KERNEL); /* at again */
	MUST(is_constructed(some[0]) && constructed == 100);
	kfree_bulk(200, (void **)foreign);
	MUST(kmem_cache_zalloc(things, GFP_KERNEL) == NULL);
	MUST(kmem_cache_zalloc(things, GFP_KERNEL) == NULL);
	MUST(kmem_cache_shrink(things) == 1);
	kmem_cache_free(things, some[0]);
	MUST(kmem_cache_shrink(things) == 0);
	/* New objects after that are constructed. */
	some[0] = kmem_cache_alloc(things, GFP_KERNEL); /* at fresh */
	MUST(is_constructed(some[0]) && constructed == 101);
	mempool_t *pool = mempool_create_slab_pool(3, things); /* at pool */
	MUST(pool && mempool_alloc(pool, __GFP_ZERO) == NULL && constructed == 104);
	mempool_destroy(pool);
	kmem_cache_free(things, some[0]);
	MUST(kmem_cache_destroy(things));
	check();
}

static void case_flags(void)
{
	struct kmem_cache *lines =
		kmem_cache_create("lines", 70, 0, SLAB_HWCACHE_ALIGN, NULL); /* at lines */
	struct kmem_cache *halves =
		kmem_cache_create("halves", 20, 0, SLAB_HWCACHE_ALIGN, NULL); /* at halves */
	struct kmem_cache *cache =
		KMEM_CACHE(thing, SLAB_PANIC | SLAB_RECLAIM_ACCOUNT); /* at KMEM_CACHE */
	for (int i = 0; i < 20; i++) {
		void *line = kmem_cache_alloc_lru(lines, NULL, GFP_KERNEL); /* at line */
		void *half = kmem_cache_alloc_node(halves, GFP_KERNEL, 0); /* at half */
		MUST((uintptr_t)line % 64 == 0 && (uintptr_t)half % 32 == 0);
	}
	MUST(kmem_cache_size(cache) == sizeof(struct thing));
	MUST(!kmem_cache_create("rcu", 100, 0, SLAB_TYPESAFE_BY_RCU, NULL));
	MUST(!kmem_cache_create("dma", 100, 0, SLAB_CACHE_DMA | SLAB_ACCOUNT, NULL));
	MUST(!kmem_cache_create("apart", 100, 0, SLAB_NO_MERGE, NULL));
	MUST(!kmem_cache_create("odd", 100, 0, 1u << 31, NULL));
	EXPECT("lines", ksize(lines), 1);
	EXPECT("halves", ksize(lines), 1);
	EXPECT("KMEM_CACHE", ksize(lines), 1);
	EXPECT("line", 20 * 128, 20);
	EXPECT("half", 20 * 32, 20);
	check();
}

static void case_panic(void)
{
	kmem_cache_create("rcu", 100, 0, SLAB_PANIC | SLAB_TYPESAFE_BY_RCU, NULL);
}

/* Back ends of a pool: without a tag of its own, with one, and of no memory of the library. */
static void *plain(gfp_t flags, void *data)
{
	return kmalloc_noprof((size_t)data, flags);
}
static void *by_malloc(gfp_t flags, void *data)
{
	(void)flags;
	return malloc((size_t)data);
}
static void *tagged(gfp_t flags, void *data)
{
	return kmalloc((size_t)data, flags); /* at in_callback */
}
static void release(void *element, void *data)
{
	(void)data;
	kfree(element);
}
static void *nothing(gfp_t flags, void *data)
{
	(void)flags;
	(void)data;
	return NULL;
}
static int left = 2;
static void *reserve_only(gfp_t flags, void *data)
{
	return left ? left--, plain(flags, data) : NULL;
}

static void case_callbacks(void)
{
	void *data = (void *)(size_t)100;
	size_t shelf = 576, own;
	mempool_t *one = mempool_create(3, plain, release, data); /* at one */
	mempool_t *two = mempool_create(3, by_malloc, release, data); /* at two */
	mempool_t *three = mempool_create(3, tagged, release, data); /* at three */
	mempool_t *few = mempool_create(2, reserve_only, release, data); /* at few */
	MUST(!mempool_create(1, nothing, release, data));
	own = ksize(one);
	EXPECT("one", own + shelf + 3 * 112, 5);
	EXPECT("two", own + shelf + 3 * 112, 5);
	/* The callback's own line, as in the kernel. */
	EXPECT("three", own + shelf, 2);
	expect("in_callback", "tagged", 3 * 112, 3);
	EXPECT("few", own + shelf + 2 * 112, 4);
	check();
	void *a = mempool_alloc(one, GFP_KERNEL); /* at user_of_one */
	void *b = mempool_alloc(two, GFP_KERNEL); /* at user_of_two */
	void *c = mempool_alloc(few, GFP_KERNEL); /* at user_of_few */
	void *d = mempool_alloc_preallocated(one); /* at preallocated */
	uintptr_t scope = kmem_tag_enter(KMEM_TAG_NAMED("scope"));
	void *e = mempool_alloc(one, GFP_KERNEL); /* at user_in_scope */
	kmem_tag_leave(scope);
	EXPECT("one", own + shelf + 2 * 112, 4);
	EXPECT("two", own + shelf + 3 * 112, 5);
	EXPECT("three", own + shelf, 2);
	expect("in_callback", "tagged", 3 * 112, 3);
	EXPECT("few", own + shelf + 1 * 112, 3);
	EXPECT("user_of_one", 112, 1);
	EXPECT("user_of_two", 112, 1);
	EXPECT("user_of_few", 112, 1);
	EXPECT("preallocated", 112, 1);
	EXPECT("user_in_scope", 112, 1);
	check();
	/* Back in the reserve it is the pool's again. */
	mempool_free(c, few);
	mempool_free(d, one);
	EXPECT("one", own + shelf + 3 * 112, 5);
	EXPECT("two", own + shelf + 3 * 112, 5);
	EXPECT("three", own + shelf, 2);
	expect("in_callback", "tagged", 3 * 112, 3);
	EXPECT("few", own + shelf + 2 * 112, 4);
	EXPECT("user_of_one", 112, 1);
	EXPECT("user_of_two", 112, 1);
	EXPECT("user_in_scope", 112, 1);
	check();
	mempool_free(a, one);
	mempool_free(b, two);
	mempool_free(e, one);
	mempool_destroy(one);
	mempool_destroy(two);
	mempool_destroy(three);
	mempool_destroy(few);
	check();
}

static void case_pools(void)
{
	size_t shelf = 576;
	mempool_t pool = { { 0 } }, bytes, pages, objects, own;
	struct kmem_cache *cache = kmem_cache_create("pooled", 100, 0, NULL); /* at cache */
	mempool_exit(&pool);
	MUST(mempool_init(&pool, 2, plain, release, (void *)100) == 0); /* at init */
	MUST(mempool_init_kmalloc_pool(&bytes, 2, 100) == 0); /* at bytes */
	MUST(mempool_init_page_pool(&pages, 2, 1) == 0); /* at pages */
	MUST(mempool_init_slab_pool(&objects, 2, cache) == 0); /* at objects */
	MUST(mempool_init(&own, 2, mempool_alloc_slab, mempool_free_slab, cache) == 0); /* at own */
	void *element = mempool_alloc(&own, GFP_KERNEL); /* at user */
	EXPECT("cache", ksize(cache), 1);
	EXPECT("init", shelf + 2 * 112, 3);
	EXPECT("bytes", shelf + 2 * 112, 3);
	EXPECT("pages", shelf + 2 * 2 * PAGE, 3);
	EXPECT("objects", shelf + 2 * 112, 3);
	EXPECT("own", shelf + 2 * 112, 3);
	EXPECT("user", 112, 1);
	check();
	mempool_free(element, &own);
	mempool_exit(&pool);
	mempool_exit(&pool);
	mempool_exit(&bytes);
	mempool_exit(&pages);
	mempool_exit(&objects);
	mempool_exit(&own);
	MUST(mempool_init(&pool, -1, plain, release, (void *)100) == -EINVAL);
	mempool_exit(&pool);
	MUST(mempool_init(&pool, 1, nothing, release, NULL) == -ENOMEM);
	mempool_exit(&pool);
	mempool_t *kmallocs =
		mempool_create(1, mempool_kmalloc, mempool_kfree, (void *)100); /* at kmallocs */
	mempool_t *blocks =
		mempool_create(1, mempool_alloc_pages, mempool_free_pages, (void *)2); /* at blocks */
	EXPECT("cache", ksize(cache), 1);
	EXPECT("kmallocs", ksize(kmallocs) + shelf + 112, 3);
	EXPECT("blocks", ksize(blocks) + shelf + 4 * PAGE, 3);
	check();
	mempool_destroy(kmallocs);
	mempool_destroy(blocks);
	MUST(kmem_cache_destroy(cache));
	check();
}

int main(int argc, char **argv)
{
	static const struct named_case cases[] = {
		{ "copies", case_copies },	     { "either", case_either },
		{ "areas", case_areas },	     { "numbers", case_numbers },
		{ "constructor", case_constructor }, { "flags", case_flags },
		{ "panic", case_panic },	     { "callbacks", case_callbacks },
		{ "pools", case_pools },
	};
	return RUN_CASE(cases, argc, argv);
}
