/* The kernel's allocation functions, one case per run. */
#include "expect.h"
#include "kmem.h"
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#define PAGE ((size_t)4096)

/* The size class of 100 bytes is 112; pages count in full. */
static void case_kmalloc(void)
{
	void *plain = kmalloc(100, GFP_KERNEL); /* at kmalloc */
	void *dirty = memset(kmalloc(1000, GFP_KERNEL), 0xff, 1000);
	void *again[100];
	kfree(dirty);
	void *zeroed = kzalloc(1000, GFP_KERNEL); /* at kzalloc */
	void *array = kcalloc(10, 50, GFP_KERNEL); /* at kcalloc */
	int *numbers = kmalloc_array(25, sizeof(int), GFP_KERNEL); /* at kmalloc_array */
	void *large = kmalloc(3 * PAGE * 256, GFP_NOWAIT); /* at large */
	char *text = kstrdup("a text", GFP_ATOMIC); /* at kstrdup */
	for (int i = 0; i < 100; i++)
		again[i] = kmalloc(64, GFP_KERNEL); /* at loop */

	MUST(ksize(plain) == 112 && ksize(numbers) == 112 && ksize(large) == 3 * PAGE * 256);
	MUST(ksize(array) >= 500 && is_zero(array, 500) && is_zero(zeroed, 1000));
	MUST(!strcmp(text, "a text"));
	MUST(kcalloc(SIZE_MAX / 2, 3, GFP_KERNEL) == NULL);
	MUST(kmalloc_array(SIZE_MAX / 2, 3, GFP_KERNEL) == NULL);
	MUST(kstrdup(NULL, GFP_KERNEL) == NULL && kmalloc(SIZE_MAX, GFP_KERNEL | __GFP_NOWARN) == NULL);
	MUST(ksize(NULL) == 0);
	EXPECT("kmalloc", 112, 1);
	EXPECT("kzalloc", ksize(zeroed), 1);
	EXPECT("kcalloc", ksize(array), 1);
	EXPECT("kmalloc_array", 112, 1);
	EXPECT("large", 3 * PAGE * 256, 1);
	EXPECT("kstrdup", 16, 1);
	EXPECT("loop", 6400, 100);
	check();

	kfree(plain);
	kfree(NULL);
	kfree(zeroed);
	kfree(array);
	kfree(numbers);
	kfree(large);
	kfree_bulk(60, again);
	EXPECT("kstrdup", 16, 1);
	EXPECT("loop", 2560, 40);
	check();
}

static void case_krealloc(void)
{
	char *at = krealloc(NULL, 100, GFP_KERNEL); /* at fresh */
	EXPECT("fresh", 112, 1);
	check();
	strcpy(at, "what is in it");
	char *same = krealloc(at, 110, GFP_KERNEL); /* at in_place */
	MUST(same == at);
	EXPECT("in_place", 112, 1);
	check();
	char *moved = krealloc(same, 5000, GFP_KERNEL | __GFP_ZERO); /* at moved */
	MUST(moved != same && !strcmp(moved, "what is in it") && is_zero(moved + 112, 5000 - 112));
	EXPECT("moved", ksize(moved), 1);
	check();
	char *pages = krealloc(moved, 100 * PAGE, GFP_KERNEL); /* at pages */
	char *fewer = krealloc(pages, 50 * PAGE, GFP_KERNEL); /* at fewer */
	MUST(!strcmp(fewer, "what is in it") && ksize(fewer) == 50 * PAGE);
	EXPECT("fewer", 50 * PAGE, 1);
	check();
	MUST(krealloc(fewer, SIZE_MAX / 2, GFP_KERNEL | __GFP_NOWARN) == NULL);
	EXPECT("fewer", 50 * PAGE, 1);
	check();
	MUST(krealloc(fewer, 0, GFP_KERNEL) == NULL);
	check();
}

static void case_krealloc_node_align(void)
{
	char *at = krealloc_node_align(NULL, 100, 64, __GFP_ZERO, 0); /* at fresh_aligned */
	MUST((uintptr_t)at % 64 == 0 && is_zero(at, 100));
	EXPECT("fresh_aligned", 128, 1);
	check();
	strcpy(at, "what is in it");
	char *same = krealloc_node_align(at, 120, 32, GFP_KERNEL, NUMA_NO_NODE); /* at kept */
	MUST(same == at);
	EXPECT("kept", 128, 1);
	check();
	/* One may lie right by chance. The others move, to objects of another size. */
	char *apart[5];
	size_t bytes = 0;
	for (int i = 0; i < 5; i++) {
		apart[i] = kmalloc(100, GFP_KERNEL); /* at apart */
		memset(apart[i], i + 1, 112);
		apart[i] = krealloc_node_align(apart[i], 112, 1024, GFP_KERNEL, 0); /* at aligned */
		MUST((uintptr_t)apart[i] % 1024 == 0 && is_all(apart[i], i + 1, 112));
		bytes += ksize(apart[i]);
	}
	EXPECT("kept", 128, 1);
	EXPECT("aligned", bytes, 5);
	check();
	kfree_bulk(5, (void **)apart);
	char *grown = krealloc_node(same, 5000, __GFP_ZERO | __GFP_THISNODE, 0); /* at grown */
	MUST(!strcmp(grown, "what is in it") && is_zero(grown + 128, 5000 - 128));
	MUST(page_to_nid(grown) == 0);
	EXPECT("grown", ksize(grown), 1);
	check();
	/* Pages, and a multiple of more than a page. */
	char *run = krealloc_node_align(grown, 20 * PAGE, 64 * PAGE, GFP_KERNEL, 0); /* at run */
	MUST((uintptr_t)run % (64 * PAGE) == 0 && !strcmp(run, "what is in it"));
	EXPECT("run", ksize(run), 1);
	check();
	MUST(!krealloc_node_align(run, 100, 48, GFP_KERNEL, 0));
	MUST(!krealloc_node_align(run, 100, 0, GFP_KERNEL, 0));
	MUST(!krealloc_node_align(run, 100, 1ul << 63, __GFP_NOWARN, 0));
	MUST(!krealloc_node_align(run, SIZE_MAX / 2, 64, __GFP_NOWARN, 0));
	EXPECT("run", ksize(run), 1);
	check();
	MUST(!krealloc_node_align(run, 0, 64, GFP_KERNEL, 0));
	check();
	/* An area stays one as long as that serves. */
	char *area = strcpy(vmalloc(PAGE), "in an area"); /* at area */
	area = krealloc_node_align(area, 3 * PAGE, PAGE, GFP_KERNEL, 0); /* at longer */
	MUST(is_vmalloc_addr(area));
	EXPECT("longer", 3 * PAGE, 1);
	check();
	area = krealloc_node_align(area, 3 * PAGE, 512 * PAGE, GFP_KERNEL, 0); /* at farther */
	MUST((uintptr_t)area % (512 * PAGE) == 0 && !strcmp(area, "in an area"));
	EXPECT("farther", ksize(area), 1);
	check();
	kfree(area);
	check();
}

static void case_bulk(void)
{
	void *many[64];
	void *none[4] = { NULL, NULL, NULL, NULL };
	MUST(kmalloc_bulk(100, GFP_KERNEL, 64, many) == 64); /* at bulk */
	for (int i = 0; i < 64; i++)
		memset(many[i], i, 100);
	for (int i = 0; i < 64; i++)
		MUST(((char *)many[i])[99] == i);
	MUST(kmalloc_bulk((size_t)1 << 50, GFP_KERNEL | __GFP_NOWARN, 4, none) == 0);
	MUST(!none[0] && !none[1] && !none[2] && !none[3]);
	MUST(kmalloc_bulk(100, GFP_KERNEL, 0, NULL) == 0);
	EXPECT("bulk", 64 * 112, 64);
	check();
	kfree_bulk(63, many);
	EXPECT("bulk", 112, 1);
	check();
}

static int constructed;
static void construct(void *object)
{
	constructed++;
	memset(object, 7, 200);
}

static void case_cache(void)
{
	struct kmem_cache *cache = kmem_cache_create("inodes", 200, 64, construct); /* at create */
	struct kmem_cache *other = kmem_cache_create("plain", 200, 0, NULL); /* at other */
	/* The free objects of a cache with a constructor have their places behind it. */
	size_t each, large = ksize(cache), own = ksize(other);
	char *one = kmem_cache_alloc(cache, GFP_KERNEL); /* at alloc */
	MUST(constructed == 1 && one[0] == 7 && one[199] == 7 && (uintptr_t)one % 64 == 0);
	char *dirty = memset(kmem_cache_alloc(other, GFP_KERNEL), 0xff, 200);
	kmem_cache_free(other, dirty);
	char *zeroed = kmem_cache_zalloc(other, GFP_KERNEL); /* at zalloc */
	MUST(is_zero(zeroed, 200));
	void *many[20];
	MUST(kmem_cache_alloc_bulk(cache, GFP_KERNEL, 20, many) == 20); /* at cache_bulk */
	MUST(constructed == 21);
	each = ksize(one);
	EXPECT("create", large, 1);
	EXPECT("other", own, 1);
	EXPECT("alloc", each, 1);
	EXPECT("zalloc", ksize(zeroed), 1);
	EXPECT("cache_bulk", 20 * each, 20);
	check();

	/* Refused while objects live. The cache stays usable. */
	MUST(kmem_cache_destroy(cache) == 0);
	char *late = kmem_cache_alloc(cache, GFP_KERNEL); /* at late */
	kmem_cache_free(cache, one);
	kmem_cache_free(cache, NULL);
	kmem_cache_free_bulk(cache, 20, many);
	kmem_cache_free(other, zeroed);
	MUST(kmem_cache_destroy(other) != 0);
	EXPECT("create", large, 1);
	EXPECT("late", each, 1);
	check();
	kmem_cache_free(cache, late);
	MUST(kmem_cache_destroy(cache) != 0);
	MUST(kmem_cache_create("odd", 100, 3, NULL) == NULL);
	MUST(kmem_cache_create("empty", 0, 0, NULL) == NULL);
	check();

	/* All or none, when there is no memory for all of them. */
	struct rlimit limit = { 256 << 20, 256 << 20 };
	MUST(setrlimit(RLIMIT_DATA, &limit) == 0);
	struct kmem_cache *huge = kmem_cache_create("huge", 32 << 20, 0, NULL); /* at huge */
	void *some[100] = { NULL };
	MUST(kmem_cache_alloc_bulk(huge, GFP_KERNEL | __GFP_NOWARN, 100, some) == 0);
	for (int i = 0; i < 100; i++)
		MUST(some[i] == NULL);
	EXPECT("huge", own, 1);
	check();
	MUST(kmem_cache_destroy(huge) != 0);
	check();
}

static void case_pages(void)
{
	void *blocks[12];
	size_t sum = 0;
	for (unsigned int order = 0; order < 12; order++) {
		blocks[order] = alloc_pages(GFP_KERNEL, order); /* at orders */
		MUST(blocks[order] && (uintptr_t)blocks[order] % (PAGE << order) == 0);
		memset(blocks[order], 0xff, PAGE << order);
		sum += PAGE << order;
	}
	EXPECT("orders", sum, 12);
	check();
	MUST(alloc_pages(GFP_KERNEL, 40) == NULL && alloc_pages(GFP_KERNEL, 300) == NULL);
	for (unsigned int order = 0; order < 12; order++)
		__free_pages(blocks[order], order);
	check();

	/* These pages are reused, and dirty. */
	sum = 0;
	for (unsigned int order = 0; order < 12; order++) {
		blocks[order] = alloc_pages(GFP_KERNEL | __GFP_ZERO, order); /* at zeroed */
		MUST(is_zero(blocks[order], PAGE << order));
		memset(blocks[order], 0xff, PAGE << order);
		sum += PAGE << order;
	}
	EXPECT("zeroed", sum, 12);
	check();
	for (unsigned int order = 0; order < 12; order++)
		__free_pages(blocks[order], order);

	char *exact = alloc_pages_exact(5 * PAGE + 1, GFP_KERNEL | __GFP_ZERO); /* at exact */
	MUST((uintptr_t)exact % PAGE == 0 && is_zero(exact, 6 * PAGE));
	MUST(alloc_pages_exact(0, GFP_KERNEL) == NULL);
	void *one = alloc_page(GFP_KERNEL); /* at one */
	char *zero = (char *)get_zeroed_page(GFP_KERNEL); /* at zero_page */
	MUST(is_zero(zero, PAGE));
	void *bulk[10] = { NULL };
	bulk[3] = one;
	MUST(alloc_pages_bulk(GFP_KERNEL, 10, bulk) == 10); /* at page_bulk */
	MUST(bulk[3] == one && bulk[9] && alloc_pages_bulk(GFP_KERNEL, 0, NULL) == 0);
	EXPECT("exact", 6 * PAGE, 1);
	EXPECT("one", PAGE, 1);
	EXPECT("zero_page", PAGE, 1);
	EXPECT("page_bulk", 9 * PAGE, 9);
	check();
	free_pages_exact(exact, 5 * PAGE + 1);
	__free_page(zero);
	for (int i = 0; i < 10; i++)
		__free_page(bulk[i]);
	__free_pages(NULL, 3);
	check();
}

static void case_split(void)
{
	char *block = alloc_pages(GFP_KERNEL, 4); /* at split */
	char *whole = alloc_pages(GFP_KERNEL, 4); /* at whole */
	EXPECT("split", 16 * PAGE, 1);
	EXPECT("whole", 16 * PAGE, 1);
	check();
	split_page(block, 4);
	EXPECT("split", 16 * PAGE, 16);
	EXPECT("whole", 16 * PAGE, 1);
	check();
	/* Each piece is an allocation of its own. */
	__free_page(block + 5 * PAGE);
	kfree(block + 9 * PAGE);
	MUST(ksize(block) == PAGE);
	EXPECT("split", 14 * PAGE, 14);
	EXPECT("whole", 16 * PAGE, 1);
	check();
	for (size_t i = 0; i < 16; i++)
		if (i != 5 && i != 9 && i != 0)
			__free_page(block + i * PAGE);
	EXPECT("split", PAGE, 1);
	EXPECT("whole", 16 * PAGE, 1);
	check();
	__free_page(block);
	__free_pages(whole, 4);
	check();

	char *pieces = alloc_pages(GFP_KERNEL, 9); /* at pieces */
	split_page(pieces, 9);
	EXPECT("pieces", 512 * PAGE, 512);
	check();
	__free_pages(pieces, 9);
	check();
	/* The whole block can be allocated again. */
	char *again = alloc_pages(GFP_KERNEL | __GFP_ZERO, 9); /* at again */
	MUST(is_zero(again, 512 * PAGE));
	EXPECT("again", 512 * PAGE, 1);
	check();
	__free_pages(again, 9);
	check();
}

/* A library's function that bills its caller. */
static void *table_new(size_t bytes, const struct kmem_alloc_tag *tag)
{
	void **table = alloc_hooks_tag(tag, kmalloc_noprof(sizeof(void *), GFP_KERNEL));
	*table = alloc_hooks_tag(tag, kmalloc_noprof(bytes, GFP_KERNEL));
	return table;
}
#define table_new(bytes) table_new(bytes, KMEM_TAG())

static void case_wrapper(void)
{
	void *first = table_new(100); /* at first */
	void *second = table_new(1 << 20); /* at second */
	void *here = alloc_hooks(kmalloc_noprof(100, GFP_KERNEL)); /* at here */
	/* Scopes nest, and bill malloc as well, but not what has a tag of its own. */
	uintptr_t outer = kmem_tag_enter(KMEM_TAG_NAMED("outer")); /* at outer */
	void *one = malloc(100);
	uintptr_t inner = kmem_tag_enter(KMEM_TAG_NAMED("inner")); /* at inner */
	void *two = malloc(200);
	void *own = kmalloc(300, GFP_KERNEL); /* at own */
	uintptr_t none = kmem_tag_enter(NULL);
	kmem_tag_leave(none);
	void *three = kmalloc_noprof(200, GFP_KERNEL);
	kmem_tag_leave(inner);
	void *four = malloc(100);
	kmem_tag_leave(outer);
	MUST(first && second && here && one && two && three && four);
	EXPECT("first", 16 + 112, 2);
	EXPECT("second", 16 + (1 << 20), 2);
	EXPECT("here", 112, 1);
	expect("outer", "outer", 224, 2);
	expect("inner", "inner", 2 * ksize(two), 2);
	EXPECT("own", ksize(own), 1);
	check();
}

static void case_noprof(void)
{
	void *held[10];
	for (int i = 0; i < 10; i++)
		held[i] = kmalloc_noprof(100, GFP_KERNEL);
	void *page = alloc_pages_noprof(GFP_KERNEL, 0);
	void *tagged = kmalloc(100, GFP_KERNEL); /* at tagged */
	say("untagged %zu %d\n", 10 * 112 + PAGE, 11);
	EXPECT("tagged", 112, 1);
	check();
	for (int i = 0; i < 10; i++)
		kfree(held[i]);
	__free_page(page);
	kfree(tagged);
	check();
}

int main(int argc, char **argv)
{
	static const struct named_case cases[] = {
		{ "kmalloc", case_kmalloc }, { "krealloc", case_krealloc }, { "bulk", case_bulk },
		{ "krealloc_node_align", case_krealloc_node_align },
		{ "cache", case_cache },     { "pages", case_pages },	    { "split", case_split },
		{ "wrapper", case_wrapper }, { "noprof", case_noprof },
	};
	return RUN_CASE(cases, argc, argv);
}
