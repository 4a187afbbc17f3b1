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
#include "kmem/rhashtable.h"
#include "kmem/tag.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The symbols of the library begin with kmem_, so that preloading it does not replace a kfree of the program's own. */
#define KMEM_AS_(symbol) __asm__(#symbol)

typedef unsigned int gfp_t;
#define GFP_KERNEL 0u
/* Not to wait for others: of what is here, mempools wait, and who says __GFP_RETRY_MAYFAIL or __GFP_NOFAIL. */
#define GFP_NOWAIT 0x8u
#define GFP_ATOMIC 0x8u
/* Zeroed memory. */
#define __GFP_ZERO 0x1u
/* Do without: no report when there is no memory. */
#define __GFP_NOWARN 0x2u
/* Not to be charged to the group of the thread (kmem/group.h). */
#define __GFP_UNACCOUNTED 0x4u
/* Try harder before returning NULL: shrinkers of all groups are called and everything is given back that is not in use, as
 * long as that finds something, at most 16 times. */
#define __GFP_RETRY_MAYFAIL 0x10u
/* Never NULL for up to 8 pages (order 3) or an area of vmalloc, unless the library could not start: the same, then waits for
 * others, without end. Longer blocks: as __GFP_RETRY_MAYFAIL. A group goes above its max (kmem/group.h). With GFP_NOWAIT only
 * that: there is no waiting. */
#define __GFP_NOFAIL 0x20u
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

/* -- Areas of whole pages, each with a page behind it that faults --------------------------------------------------- */

void *vmalloc_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_vmalloc_tag);
void *vmalloc_noprof(size_t size, gfp_t flags) KMEM_AS_(kmem_vmalloc_noprof);
/* Of huge pages as far as the system has them, at a multiple of 2 MiB if it is as long as that. */
void *vmalloc_huge_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_vmalloc_huge_tag);
/* At a multiple of `align`, a power of two. */
void *vmalloc_aligned_tag(size_t size, size_t align, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vmalloc_aligned_tag);
/* In place if that is possible; a long area moves by its page tables. __GFP_ZERO zeroes the pages that are new. */
void *vrealloc_tag(const void *at, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vrealloc_tag);
void vfree(const void *at) KMEM_AS_(kmem_vfree);
/* A page that vmap can map; freed by __free_page. */
void *vmap_alloc_page_tag(gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_vmap_alloc_page_tag);
/* Maps such pages (and no others: NULL) side by side; they must live longer than the mapping. A forked child has
 * neither. */
void *vmap(void **pages, unsigned int count) KMEM_AS_(kmem_vmap);
void vunmap(const void *at) KMEM_AS_(kmem_vunmap);
int is_vmalloc_addr(const void *at) KMEM_AS_(kmem_is_vmalloc_addr);
/* Writes the areas to a file, in the layout of /proc/vmallocinfo. */
void kmem_vmallocinfo(int fd);

#define vmalloc(size) vmalloc_tag(size, GFP_KERNEL, KMEM_TAG())
#define vzalloc(size) vmalloc_tag(size, __GFP_ZERO, KMEM_TAG())
#define vmalloc_huge(size, flags) vmalloc_huge_tag(size, flags, KMEM_TAG())
#define vmalloc_aligned(size, align, flags) vmalloc_aligned_tag(size, align, flags, KMEM_TAG())
#define vrealloc(at, size, flags) vrealloc_tag(at, size, flags, KMEM_TAG())
#define vmap_alloc_page(flags) vmap_alloc_page_tag(flags, KMEM_TAG())
/* kmalloc up to 32 KiB, vmalloc from there on; kfree and kvfree take both. */
#define kvmalloc(size, flags)                                                                                          \
	(__extension__({                                                                                               \
		size_t kmem_size_ = (size);                                                                            \
		kmem_size_ <= 32768 ? kmalloc(kmem_size_, flags) : vmalloc_tag(kmem_size_, flags, KMEM_TAG());         \
	}))
#define kvfree(at) kfree(at)

/* -- Memory pools: allocation that does not fail -------------------------------------------------------------------- */

struct mempool;
typedef struct mempool mempool_t;
typedef void *(*mempool_alloc_t)(gfp_t flags, void *data);
typedef void (*mempool_free_t)(void *element, void *data);
/* Pools with a reserve of `min` elements: from two functions, a cache, kmalloc, or pages. NULL: there is no memory for the
 * reserve. It is billed to this call, elements to who asks for them. */
mempool_t *mempool_create_tag(int min, mempool_alloc_t alloc, mempool_free_t release, void *data,
			      const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_mempool_create_tag);
mempool_t *mempool_create_slab_pool_tag(int min, struct kmem_cache *cache, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_create_slab_pool_tag);
mempool_t *mempool_create_kmalloc_pool_tag(int min, size_t size, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_create_kmalloc_pool_tag);
mempool_t *mempool_create_page_pool_tag(int min, unsigned int order, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_create_page_pool_tag);
/* An element: from the back end, else from the reserve, else (unless `flags` is GFP_NOWAIT or GFP_ATOMIC) one that another
 * thread frees. */
void *mempool_alloc_tag(mempool_t *pool, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_alloc_tag);
void *mempool_alloc_noprof(mempool_t *pool, gfp_t flags) KMEM_AS_(kmem_mempool_alloc_noprof);
/* All or none: `count`, or 0. Waits for no more than the reserve if only one thread asks for many at a time. */
size_t mempool_alloc_bulk_tag(mempool_t *pool, gfp_t flags, size_t count, void **out, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_alloc_bulk_tag);
void mempool_free(void *element, mempool_t *pool) KMEM_AS_(kmem_mempool_free);
void mempool_free_bulk(mempool_t *pool, size_t count, void **elements) KMEM_AS_(kmem_mempool_free_bulk);
/* 0, or -ENOMEM: there is no memory for so large a reserve. */
int mempool_resize(mempool_t *pool, int min) KMEM_AS_(kmem_mempool_resize);
/* All elements must be back. */
void mempool_destroy(mempool_t *pool) KMEM_AS_(kmem_mempool_destroy);

#define mempool_create(min, alloc, release, data) mempool_create_tag(min, alloc, release, data, KMEM_TAG())
#define mempool_create_slab_pool(min, cache) mempool_create_slab_pool_tag(min, cache, KMEM_TAG())
#define mempool_create_kmalloc_pool(min, size) mempool_create_kmalloc_pool_tag(min, size, KMEM_TAG())
#define mempool_create_page_pool(min, order) mempool_create_page_pool_tag(min, order, KMEM_TAG())
#define mempool_alloc(pool, flags) mempool_alloc_tag(pool, flags, KMEM_TAG())
#define mempool_alloc_bulk(pool, flags, count, out) mempool_alloc_bulk_tag(pool, flags, count, out, KMEM_TAG())

/* -- Per-CPU memory -------------------------------------------------------------------------------------------------- */

/* An object of up to 32 KiB of which every CPU has a copy of zeroes. What is returned is a handle: the address of the
 * copy that threads without a CPU number share. `align` is at most 4096. */
void *alloc_percpu_tag(size_t size, size_t align, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_percpu_tag);
void *alloc_percpu_noprof(size_t size, size_t align, gfp_t flags) KMEM_AS_(kmem_alloc_percpu_noprof);
void free_percpu(void *handle) KMEM_AS_(kmem_free_percpu);
/* The copy of a CPU, those that have not run yet included; NULL: no memory, or no such CPU. The last of the numbers below
 * nr_cpu_ids() stands for the shared copy, so that a loop over all numbers misses nothing. */
void *kmem_per_cpu_ptr(void *handle, unsigned int cpu);
unsigned int nr_cpu_ids(void) KMEM_AS_(kmem_nr_cpu_ids);
/* Writes how much there is to a file, in the layout of the kernel's percpu_stats. */
void kmem_percpu_stats(int fd);

#define __alloc_percpu(size, align) alloc_percpu_tag(size, align, GFP_KERNEL, KMEM_TAG())
#define __alloc_percpu_gfp(size, align, flags) alloc_percpu_tag(size, align, flags, KMEM_TAG())
#define alloc_percpu(type) ((type *)__alloc_percpu(sizeof(type), __alignof__(type)))
#define alloc_percpu_gfp(type, flags) ((type *)__alloc_percpu_gfp(sizeof(type), __alignof__(type), flags))
#define per_cpu_ptr(handle, cpu) ((__typeof__(handle))kmem_per_cpu_ptr(handle, cpu))
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < nr_cpu_ids(); (cpu)++)

/* Operations on the copy of the CPU that the thread runs on, which migration and signals do not tear. `word` is a word of 4 or 8
 * bytes in an object, by its handle: this_cpu_add(stats->packets, 1). A child of vfork must not call them. */
#define KMEM_WORDS_(type, width)                                                                                       \
	void kmem_this_cpu_add_##width(type *at, type by);                                                             \
	type kmem_this_cpu_add_return_##width(type *at, type by);                                                      \
	type kmem_this_cpu_read_##width(type *at);                                                                     \
	type kmem_this_cpu_xchg_##width(type *at, type value);                                                         \
	type kmem_this_cpu_cmpxchg_##width(type *at, type before, type value);                                         \
	type kmem_percpu_sum_##width(type *at);
KMEM_WORDS_(uint32_t, 4)
KMEM_WORDS_(uint64_t, 8)

/* Not there: words of other sizes do not link. */
uint64_t kmem_this_word_has_neither_4_nor_8_bytes(void);
#define KMEM_WORD_(word, call, ...)                                                                                    \
	((__typeof__(word))(sizeof(word) == 8	? kmem_##call##_8((uint64_t *)(void *)&(word)__VA_ARGS__)              \
			    : sizeof(word) == 4 ? kmem_##call##_4((uint32_t *)(void *)&(word)__VA_ARGS__)              \
						: kmem_this_word_has_neither_4_nor_8_bytes()))
#define this_cpu_add(word, by)                                                                                         \
	((void)(sizeof(word) == 8   ? kmem_this_cpu_add_8((uint64_t *)(void *)&(word), (uint64_t)(by))                 \
		: sizeof(word) == 4 ? kmem_this_cpu_add_4((uint32_t *)(void *)&(word), (uint32_t)(by))                 \
				    : (void)kmem_this_word_has_neither_4_nor_8_bytes()))
#define this_cpu_sub(word, by) this_cpu_add(word, -(__typeof__(word))(by))
#define this_cpu_inc(word) this_cpu_add(word, 1)
#define this_cpu_dec(word) this_cpu_sub(word, 1)
#define this_cpu_add_return(word, by) KMEM_WORD_(word, this_cpu_add_return, , by)
#define this_cpu_read(word) KMEM_WORD_(word, this_cpu_read)
#define this_cpu_xchg(word, value) KMEM_WORD_(word, this_cpu_xchg, , value)
#define this_cpu_write(word, value) ((void)this_cpu_xchg(word, value))
#define this_cpu_cmpxchg(word, before, value) KMEM_WORD_(word, this_cpu_cmpxchg, , before, value)
/* The sum over all copies. */
#define percpu_sum(word) KMEM_WORD_(word, percpu_sum)

#ifdef __cplusplus
}
#endif

#endif /* KMEM_H */
