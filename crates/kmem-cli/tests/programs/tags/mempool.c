/* Memory pools. */
#include "expect.h"
#include "kmem.h"
#include <stdint.h>
#include <string.h>

#define PAGE ((size_t)4096)

static int allowed = 3;
static void *few(gfp_t flags, void *data)
{
	(void)flags;
	return allowed ? (allowed--, data) : NULL;
}
static void many(void *element, void *data)
{
	MUST(element == data);
	allowed++;
}

static void case_mempool(void)
{
	void *out[4], *element;
	struct kmem_cache *cache = kmem_cache_create("requests", 200, 64, NULL); /* at create */
	mempool_t *objects = mempool_create_slab_pool(4, cache); /* at objects */
	mempool_t *bytes = mempool_create_kmalloc_pool(2, 100); /* at bytes */
	mempool_t *pages = mempool_create_page_pool(2, 1); /* at pages */
	mempool_t *own = mempool_create(2, few, many, &allowed); /* at own */
	size_t each = ksize(bytes);
	size_t shelf = 576;
	MUST(objects && bytes && pages && own && allowed == 1);
	MUST(mempool_alloc_bulk(objects, GFP_NOWAIT, 4, out) == 4); /* at user */
	MUST(mempool_alloc(own, GFP_NOWAIT) && mempool_alloc(own, GFP_NOWAIT));
	MUST(mempool_alloc(own, GFP_KERNEL));
	MUST(!mempool_alloc(own, GFP_ATOMIC));
	MUST(mempool_create_kmalloc_pool(-1, 100) == NULL && mempool_resize(bytes, -1) < 0);
	MUST(mempool_resize(bytes, 70) == 0);
	EXPECT("create", ksize(cache), 1);
	EXPECT("objects", each + shelf + 4 * 256, 6);
	EXPECT("bytes", each + 2 * shelf + 70 * 112, 73);
	EXPECT("pages", each + shelf + 2 * 2 * PAGE, 4);
	EXPECT("own", each + shelf, 2);
	EXPECT("user", 4 * 256, 4);
	check();
	mempool_free_bulk(objects, 4, out);
	element = mempool_alloc(bytes, GFP_KERNEL);
	mempool_free(element, bytes);
	mempool_free(NULL, bytes);
	for (int i = 0; i < 3; i++)
		mempool_free(&allowed, own);
	mempool_destroy(objects);
	mempool_destroy(bytes);
	mempool_destroy(pages);
	mempool_destroy(own);
	mempool_destroy(NULL);
	MUST(allowed == 3 && kmem_cache_destroy(cache));
	check();
}

int main(void)
{
	case_mempool();
	return 0;
}
