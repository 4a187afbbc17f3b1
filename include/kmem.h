/* kmem: memory that can account for itself. The kernel's allocation interface for C and C++ programs, over libkmem.so.
 *
 *	cc program.c -Iinclude -lkmem
 *
 * Every macro below puts one static tag {module, file, line, function} into the ELF section kmem_alloc_tags of its
 * object, and bills the allocation to it. The functions behind the macros are there under their names with _tag (which
 * take the tag) and _noprof (which bill the scope of the thread, if it is in one).
 *
 * Names and meanings are those of Linux (include/linux/slab.h, gfp.h, alloc_tag.h); pages are given by address. Nothing
 * here sets errno: failure is NULL. */
#ifndef KMEM_H
#define KMEM_H

#include "kmem/group.h"
#include "kmem/tag.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The symbols of the library begin with kmem_, so that preloading it does not replace a kfree of the program's own. */
#define KMEM_AS_(symbol) __asm__(#symbol)

typedef unsigned int gfp_t;
#define GFP_KERNEL 0u
#define GFP_NOWAIT 0u
#define GFP_ATOMIC 0u
/* Zeroed memory. */
#define __GFP_ZERO 0x1u
/* Do without: no report when there is no memory. */
#define __GFP_NOWARN 0x2u
/* Not to be charged to the group of the thread (kmem/group.h). */
#define __GFP_UNACCOUNTED 0x4u
/* For sources that have them: what is allocated in a group is charged to it anyway. */
#define __GFP_ACCOUNT 0u
#define GFP_KERNEL_ACCOUNT GFP_KERNEL
#define SLAB_ACCOUNT 0u

/* -- kmalloc ----------------------------------------------------------------------------------------------------- */

void *kmalloc_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_kmalloc_tag);
void *kmalloc_noprof(size_t size, gfp_t flags) KMEM_AS_(kmem_kmalloc_noprof);
void *kcalloc_tag(size_t count, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_kcalloc_tag);
void *kcalloc_noprof(size_t count, size_t size, gfp_t flags) KMEM_AS_(kmem_kcalloc_noprof);
void *krealloc_tag(const void *at, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_krealloc_tag);
void *krealloc_noprof(const void *at, size_t size, gfp_t flags) KMEM_AS_(kmem_krealloc_noprof);
char *kstrdup_tag(const char *text, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_kstrdup_tag);
char *kstrdup_noprof(const char *text, gfp_t flags) KMEM_AS_(kmem_kstrdup_noprof);
/* All or none: `count`, or 0. */
size_t kmalloc_bulk_tag(size_t size, gfp_t flags, size_t count, void **out, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kmalloc_bulk_tag);
void kfree(const void *at) KMEM_AS_(kmem_kfree);
void kfree_bulk(size_t count, void **objects) KMEM_AS_(kmem_kfree_bulk);
size_t ksize(const void *at) KMEM_AS_(kmem_ksize);

#define kmalloc(size, flags) kmalloc_tag(size, flags, KMEM_TAG())
#define kzalloc(size, flags) kmalloc_tag(size, (flags) | __GFP_ZERO, KMEM_TAG())
#define kcalloc(count, size, flags) kcalloc_tag(count, size, flags, KMEM_TAG())
#define kmalloc_array(count, size, flags) kcalloc_tag(count, size, (flags) & ~__GFP_ZERO, KMEM_TAG())
#define krealloc(at, size, flags) krealloc_tag(at, size, flags, KMEM_TAG())
#define kstrdup(text, flags) kstrdup_tag(text, flags, KMEM_TAG())
#define kmalloc_bulk(size, flags, count, out) kmalloc_bulk_tag(size, flags, count, out, KMEM_TAG())

/* -- Caches: objects of one kind. Caches of one size share their slabs -------------------------------------------- */

struct kmem_cache;
/* `align` is 0 or a power of two; `ctor` (or null) is called for each object that is handed out. The cache itself is
 * billed to this call. */
struct kmem_cache *kmem_cache_create_tag(const char *name, size_t size, size_t align, void (*ctor)(void *),
					 const struct kmem_alloc_tag *tag);
/* False, and a warning: objects of the cache are live; it stays. */
int kmem_cache_destroy(struct kmem_cache *cache);
void *kmem_cache_alloc_tag(struct kmem_cache *cache, gfp_t flags, const struct kmem_alloc_tag *tag);
void *kmem_cache_alloc_noprof(struct kmem_cache *cache, gfp_t flags);
void kmem_cache_free(struct kmem_cache *cache, void *object);
/* All or none: `count`, or 0. */
size_t kmem_cache_alloc_bulk_tag(struct kmem_cache *cache, gfp_t flags, size_t count, void **out,
				 const struct kmem_alloc_tag *tag);
void kmem_cache_free_bulk(struct kmem_cache *cache, size_t count, void **objects);

#define kmem_cache_create(name, size, align, ctor) kmem_cache_create_tag(name, size, align, ctor, KMEM_TAG())
#define kmem_cache_alloc(cache, flags) kmem_cache_alloc_tag(cache, flags, KMEM_TAG())
#define kmem_cache_zalloc(cache, flags) kmem_cache_alloc_tag(cache, (flags) | __GFP_ZERO, KMEM_TAG())
#define kmem_cache_alloc_bulk(cache, flags, count, out) kmem_cache_alloc_bulk_tag(cache, flags, count, out, KMEM_TAG())

/* -- Pages of 4 KiB ------------------------------------------------------------------------------------------------ */

/* 1 << order pages at a multiple of their size. */
void *alloc_pages_tag(gfp_t flags, unsigned int order, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_alloc_pages_tag);
void *alloc_pages_noprof(gfp_t flags, unsigned int order) KMEM_AS_(kmem_alloc_pages_noprof);
/* Just as many pages as `size` takes. */
void *alloc_pages_exact_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_pages_exact_tag);
/* Single pages; how many of the null entries of `pages` were filled. */
size_t alloc_pages_bulk_tag(gfp_t flags, size_t count, void **pages, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_pages_bulk_tag);
/* Makes 1 << order pages into as many allocations, each billed to the same tag. */
void split_page(void *pages, unsigned int order) KMEM_AS_(kmem_split_page);
/* Frees 1 << order pages: one allocation, or the pieces of one that was split. */
void __free_pages(void *pages, unsigned int order) KMEM_AS_(kmem_free_pages);
void free_pages_exact(void *pages, size_t size) KMEM_AS_(kmem_free_pages_exact);

#define alloc_pages(flags, order) alloc_pages_tag(flags, order, KMEM_TAG())
#define alloc_page(flags) alloc_pages_tag(flags, 0, KMEM_TAG())
#define get_zeroed_page(flags) alloc_pages_tag((flags) | __GFP_ZERO, 0, KMEM_TAG())
#define alloc_pages_exact(size, flags) alloc_pages_exact_tag(size, flags, KMEM_TAG())
#define alloc_pages_bulk(flags, count, pages) alloc_pages_bulk_tag(flags, count, pages, KMEM_TAG())
#define __free_page(page) __free_pages(page, 0)

#ifdef __cplusplus
}
#endif

#endif /* KMEM_H */
