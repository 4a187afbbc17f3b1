/* kmem: memory that can account for itself. The kernel's allocation interface for C and C++
 * programs, over libkmem.so.
 *
 *	cc program.c -Iinclude -lkmem
 *
 * Every macro that allocates bills the allocation to a static tag {module, file, line, function},
 * which it puts into the ELF section kmem_alloc_tags. The function behind a macro has the macro's
 * name and _tag, and takes the tag as its last argument. Its variant with _noprof bills the
 * thread's scope (kmem/tag.h), else no tag.
 *
 * Names and meanings are those of Linux (include/linux/slab.h, gfp.h, alloc_tag.h). Sizes are in
 * bytes, and pages are given by address. An allocation fails with NULL if there is no memory, or if
 * the thread's group is at its max (kmem/group.h). No function sets errno.
 *
 * Any thread and any signal handler may call these functions, except as mempools and per-CPU words
 * state. Freeing memory that is not live is reported and ends the program. */
#ifndef KMEM_H
#define KMEM_H

#include "kmem/group.h"
#include "kmem/refusal.h"
#include "kmem/rhashtable.h"
#include "kmem/tag.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A program may define its own configuration: "option:value,option:value". /etc/kmem.conf and the
 * environment variable KMEM_CONF win over it, option by option. The library reads it once, at the
 * first allocation. Preloading: the program must export the symbol (-rdynamic). */
extern const char *kmem_conf __attribute__((visibility("default")));

/* Symbols of the library begin with kmem_: preloading it does not replace a kfree of the
 * program. */
#define KMEM_AS_(symbol) __asm__(#symbol)

/* Flags of a request, combined by |. */
typedef unsigned int gfp_t;
#define GFP_KERNEL 0u
/* Do not wait for other threads. Only mempools wait, and requests with __GFP_RETRY_MAYFAIL or
 * __GFP_NOFAIL. */
#define GFP_NOWAIT 0x8u
#define GFP_ATOMIC 0x8u
/* Zero the memory. */
#define __GFP_ZERO 0x1u
/* Do not report a failure. */
#define __GFP_NOWARN 0x2u
/* Do not charge the thread's group (kmem/group.h). */
#define __GFP_UNACCOUNTED 0x4u
/* Try up to 16 times before returning NULL, as long as that frees memory. Each further try
 * first calls the shrinkers of all groups and gives unused memory back to the system. */
#define __GFP_RETRY_MAYFAIL 0x10u
/* Do not fail: the group goes above its max. Up to 8 pages, or an area of vmalloc, are waited for
 * without end; NULL means that the library could not start. Longer blocks are tried as with
 * __GFP_RETRY_MAYFAIL. With GFP_NOWAIT only the group's max is ignored. */
#define __GFP_NOFAIL 0x20u
/* In krealloc, vrealloc and kvrealloc: the thread's group pays from now on. Otherwise the group
 * that paid for the memory goes on to pay. NULL also if the thread's group is at its max; then
 * nothing has changed. Without effect in other requests. */
#define __GFP_RECHARGE 0x80u
/* Memory of the node that the request names, or else of the CPU's node, or NULL. */
#define __GFP_THISNODE 0x40u
/* Flags for source compatibility, without effect: a thread's group always pays. */
#define __GFP_ACCOUNT 0u
#define GFP_KERNEL_ACCOUNT GFP_KERNEL

/* `count` times `size`; SIZE_MAX, which no request gets, if the product overflows. */
static inline size_t size_mul(size_t count, size_t size)
{
	size_t product;

	return __builtin_mul_overflow(count, size, &product) ? SIZE_MAX : product;
}

/* -- kmalloc ----------------------------------------------------------------------------------- */

/* Allocates `size` bytes at a multiple of 16. */
void *kmalloc_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kmalloc_tag);
void *kmalloc_noprof(size_t size, gfp_t flags) KMEM_AS_(kmem_kmalloc_noprof);
/* Allocates `count` times `size` zeroed bytes. NULL also if the product overflows. */
void *kcalloc_tag(size_t count, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kcalloc_tag);
void *kcalloc_noprof(size_t count, size_t size, gfp_t flags) KMEM_AS_(kmem_kcalloc_noprof);
/* Resizes an allocation (or NULL) to `size` bytes, and may move it. NULL: the allocation is kept.
 * Size 0 frees it and returns NULL. __GFP_ZERO zeroes bytes behind its old ksize. */
void *krealloc_tag(const void *at, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_krealloc_tag);
void *krealloc_noprof(const void *at, size_t size, gfp_t flags) KMEM_AS_(kmem_krealloc_noprof);
/* Copies a string. NULL also for NULL. */
char *kstrdup_tag(const char *text, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kstrdup_tag);
char *kstrdup_noprof(const char *text, gfp_t flags) KMEM_AS_(kmem_kstrdup_noprof);
/* Fills `out` with `count` allocations of `size` bytes. Returns `count`, or 0 and allocates
 * none. */
size_t kmalloc_bulk_tag(size_t size, gfp_t flags, size_t count, void **out,
			const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_kmalloc_bulk_tag);
/* Copies `size` bytes. */
void *kmemdup_tag(const void *from, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kmemdup_tag);
void *kmemdup_noprof(const void *from, size_t size, gfp_t flags) KMEM_AS_(kmem_kmemdup_noprof);
/* Copies `size` bytes and adds a zero byte. NULL also for NULL. */
char *kmemdup_nul_tag(const char *from, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kmemdup_nul_tag);
/* Copies the first `most` bytes of a string, and adds a zero byte. NULL also for NULL. */
char *kstrndup_tag(const char *text, size_t most, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kstrndup_tag);
/* Frees the result of kstrdup_const. */
void kfree_const(const void *at) KMEM_AS_(kmem_kfree_const);
/* Zeroes all bytes that ksize counts, then frees as kfree does. */
void kfree_sensitive(const void *at) KMEM_AS_(kmem_kfree_sensitive);
/* Frees an allocation of kmalloc, malloc, vmalloc or their variants; NULL does nothing. */
void kfree(const void *at) KMEM_AS_(kmem_kfree);
/* Frees `count` allocations as kfree does. */
void kfree_bulk(size_t count, void **objects) KMEM_AS_(kmem_kfree_bulk);
/* The bytes that may be used at a live allocation; 0 for NULL. */
size_t ksize(const void *at) KMEM_AS_(kmem_ksize);

#define kmalloc(size, flags) kmalloc_tag(size, flags, KMEM_TAG())
#define kzalloc(size, flags) kmalloc_tag(size, (flags) | __GFP_ZERO, KMEM_TAG())
#define kcalloc(count, size, flags) kcalloc_tag(count, size, flags, KMEM_TAG())
#define kmalloc_array(count, size, flags)                                                          \
	kcalloc_tag(count, size, (flags) & ~__GFP_ZERO, KMEM_TAG())
#define krealloc(at, size, flags) krealloc_tag(at, size, flags, KMEM_TAG())
#define krealloc_array(at, count, size, flags)                                                     \
	krealloc_tag(at, size_mul(count, size), flags, KMEM_TAG())
/* Bills this line, as the kernel does. To bill the caller of a function, see alloc_hooks. */
#define kmalloc_track_caller(size, flags) kmalloc(size, flags)
#define kmemdup(from, size, flags) kmemdup_tag(from, size, flags, KMEM_TAG())
#define kmemdup_array(from, count, size, flags)                                                    \
	kmemdup_tag(from, size_mul(count, size), flags, KMEM_TAG())
#define kmemdup_nul(from, size, flags) kmemdup_nul_tag(from, size, flags, KMEM_TAG())
#define kstrndup(text, most, flags) kstrndup_tag(text, most, flags, KMEM_TAG())
/* Copies a string, but not a literal, which it returns. kfree_const frees both. */
#define kstrdup_const(text, flags)                                                                 \
	((const char *)(__builtin_constant_p(text) ? (text) : kstrdup_tag(text, flags, KMEM_TAG())))
#define kstrdup(text, flags) kstrdup_tag(text, flags, KMEM_TAG())
#define kmalloc_bulk(size, flags, count, out) kmalloc_bulk_tag(size, flags, count, out, KMEM_TAG())

/* -- Caches: objects of one kind. Caches of one size share slabs ------------------------------- */

struct kmem_cache;
/* Flags of a cache, combined by |. */
typedef unsigned int slab_flags_t;
/* Objects begin at multiples of 64 bytes, or of half of that while two fit into it, and so on. */
#define SLAB_HWCACHE_ALIGN 0x2000u
/* If the cache cannot be made, a message says so and the program ends. */
#define SLAB_PANIC 0x40000u
/* Without effect: groups pay for all objects; KMEM_CONF chooses the checks. */
#define SLAB_ACCOUNT 0x4000000u
#define SLAB_RECLAIM_ACCOUNT 0x20000u
#define SLAB_TEMPORARY SLAB_RECLAIM_ACCOUNT
#define SLAB_MEM_SPREAD 0u
#define SLAB_CONSISTENCY_CHECKS 0x100u
#define SLAB_RED_ZONE 0x400u
#define SLAB_POISON 0x800u
#define SLAB_STORE_USER 0x10000u
/* Refused, with a message that names the flag: there is no RCU, no zone for DMA, and all caches
 * share slabs. */
#define SLAB_TYPESAFE_BY_RCU 0x80000u
#define SLAB_CACHE_DMA 0x4000u
#define SLAB_CACHE_DMA32 0x8000u
#define SLAB_NO_MERGE 0x1000000u

/* Makes a cache of objects of `size` bytes at multiples of `align` (0, or a power of two). This
 * call is billed for the cache itself. `ctor`, if not NULL, is called once for each new object.
 * Such an object must be freed in its constructed state, in which the cache keeps it for the next
 * allocation. It cannot be zeroed: a request with __GFP_ZERO is refused, with a message. NULL:
 * there is no memory, `size` is 0, `align` is no power of two, or a flag is refused. */
struct kmem_cache *kmem_cache_create_tag(const char *name, size_t size, size_t align,
					 slab_flags_t flags, void (*ctor)(void *),
					 const struct kmem_alloc_tag *tag);
/* Destroys a cache and returns 1. If it has live objects, prints a warning, keeps it and returns
 * 0. */
int kmem_cache_destroy(struct kmem_cache *cache);
/* Gives free objects of the cache back to the heap, and unused memory of the heap to the system.
 * Returns 0; 1 if objects of the cache are in use. */
int kmem_cache_shrink(struct kmem_cache *cache);
/* Bytes of an object. */
unsigned int kmem_cache_size(struct kmem_cache *cache);
/* Allocates an object. */
void *kmem_cache_alloc_tag(struct kmem_cache *cache, gfp_t flags, const struct kmem_alloc_tag *tag);
void *kmem_cache_alloc_noprof(struct kmem_cache *cache, gfp_t flags);
/* Frees an object of this cache; NULL does nothing. */
void kmem_cache_free(struct kmem_cache *cache, void *object);
/* Fills `out` with `count` objects. Returns `count`, or 0 and allocates none. */
size_t kmem_cache_alloc_bulk_tag(struct kmem_cache *cache, gfp_t flags, size_t count, void **out,
				 const struct kmem_alloc_tag *tag);
/* Frees `count` objects of this cache. */
void kmem_cache_free_bulk(struct kmem_cache *cache, size_t count, void **objects);

#define KMEM_CREATE_5_(name, size, align, flags, ctor)                                             \
	kmem_cache_create_tag(name, size, align, flags, ctor, KMEM_TAG())
#define KMEM_CREATE_4_(name, size, align, ctor) KMEM_CREATE_5_(name, size, align, 0, ctor)
#define KMEM_CREATE_PICK_(a, b, c, d, e, create, ...) create
/* kmem_cache_create(name, size, align, flags, ctor), or without flags. */
#define kmem_cache_create(...)                                                                     \
	KMEM_CREATE_PICK_(__VA_ARGS__, KMEM_CREATE_5_, KMEM_CREATE_4_, )(__VA_ARGS__)
/* As kmem_cache_create; the kernel's part for copies to user space is ignored. */
#define kmem_cache_create_usercopy(name, size, align, flags, offset, bytes, ctor)                  \
	((void)(offset), (void)(bytes), kmem_cache_create(name, size, align, flags, ctor))
/* A cache of objects of a struct, named after it. */
#define KMEM_CACHE(type, flags)                                                                    \
	kmem_cache_create(#type, sizeof(struct type), __alignof__(struct type), flags, NULL)
#define kmem_cache_alloc(cache, flags) kmem_cache_alloc_tag(cache, flags, KMEM_TAG())
#define kmem_cache_zalloc(cache, flags)                                                            \
	kmem_cache_alloc_tag(cache, (flags) | __GFP_ZERO, KMEM_TAG())
/* `lru`, the kernel's list of objects by age, is ignored. */
#define kmem_cache_alloc_lru(cache, lru, flags) ((void)(lru), kmem_cache_alloc(cache, flags))
#define kmem_cache_alloc_bulk(cache, flags, count, out)                                            \
	kmem_cache_alloc_bulk_tag(cache, flags, count, out, KMEM_TAG())

/* -- Pages of 4 KiB ---------------------------------------------------------------------------- */

/* Allocates 1 << order pages at a multiple of their size. NULL also if `order` is above 11. */
void *alloc_pages_tag(gfp_t flags, unsigned int order, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_pages_tag);
void *alloc_pages_noprof(gfp_t flags, unsigned int order) KMEM_AS_(kmem_alloc_pages_noprof);
/* Allocates as many pages as `size` bytes need. NULL also for size 0. */
void *alloc_pages_exact_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_pages_exact_tag);
/* Splits a block of 1 << order pages into single pages, each an allocation with the block's tag. */
void split_page(void *pages, unsigned int order) KMEM_AS_(kmem_split_page);
/* Frees a block of 1 << order pages, or all its pages if it was split. A block of another order is
 * reported, and ends the program; nothing is freed. */
void __free_pages(void *pages, unsigned int order) KMEM_AS_(kmem_free_pages);
/* Frees an allocation of alloc_pages_exact of `size` bytes. */
void free_pages_exact(void *pages, size_t size) KMEM_AS_(kmem_free_pages_exact);

#define alloc_pages(flags, order) alloc_pages_tag(flags, order, KMEM_TAG())
#define alloc_page(flags) alloc_pages_tag(flags, 0, KMEM_TAG())
/* As alloc_pages, with the address as a number, 0 for failure. free_pages frees it. */
#define __get_free_pages(flags, order)                                                             \
	((unsigned long)(uintptr_t)alloc_pages_tag(flags, order, KMEM_TAG()))
#define __get_free_page(flags) __get_free_pages(flags, 0)
#define get_zeroed_page(flags) __get_free_pages((flags) | __GFP_ZERO, 0)
#define alloc_pages_exact(size, flags) alloc_pages_exact_tag(size, flags, KMEM_TAG())
#define __free_page(page) __free_pages(page, 0)
/* Free what the functions of a number returned; 0 does nothing. */
#define free_pages(address, order) __free_pages((void *)(uintptr_t)(address), order)
#define free_page(address) free_pages(address, 0)

/* -- Memory of a node (NUMA) ------------------------------------------------------------------- */

/* Any node, those near to the CPU first. A node that the machine does not have means the same. */
#define NUMA_NO_NODE (-1)
/* Allocate as the functions without _node do, from a node. If it has no memory, the nearest that
 * has some serves the request; with __GFP_THISNODE the request fails. */
void *kmalloc_node_tag(size_t size, gfp_t flags, int node, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kmalloc_node_tag);
void *kmalloc_node_noprof(size_t size, gfp_t flags, int node) KMEM_AS_(kmem_kmalloc_node_noprof);
/* Resizes an allocation as krealloc does. It moves also if it does not lie at a multiple of
 * `align`, or with __GFP_THISNODE on another node than the one that is named. When it moves, it
 * lies at such a multiple then, on a node as for kmalloc_node. NULL also if `align` is no power of
 * two. An area of vmalloc may be of any node, unless it moves with __GFP_THISNODE. */
void *krealloc_node_align_tag(const void *at, size_t size, unsigned long align, gfp_t flags,
			      int node, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_krealloc_node_align_tag);
void *krealloc_node_align_noprof(const void *at, size_t size, unsigned long align, gfp_t flags,
				 int node) KMEM_AS_(kmem_krealloc_node_align_noprof);
void *kmem_cache_alloc_node_tag(struct kmem_cache *cache, gfp_t flags, int node,
				const struct kmem_alloc_tag *tag);
void *kmem_cache_alloc_node_noprof(struct kmem_cache *cache, gfp_t flags, int node);
void *alloc_pages_node_tag(int node, gfp_t flags, unsigned int order,
			   const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_alloc_pages_node_tag);
void *alloc_pages_node_noprof(int node, gfp_t flags, unsigned int order)
	KMEM_AS_(kmem_alloc_pages_node_noprof);
void *alloc_pages_exact_nid_tag(int node, size_t size, gfp_t flags,
				const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_pages_exact_nid_tag);
/* Puts single pages into the null entries of `pages`, up to the first failure. Returns how many
 * entries from the first on have a page, those that had one before included. */
size_t alloc_pages_bulk_node_tag(gfp_t flags, int node, size_t count, void **pages,
				 const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_pages_bulk_node_tag);
/* The node of the memory at an address; NUMA_NO_NODE if it is not memory of kmem. */
int page_to_nid(const void *at) KMEM_AS_(kmem_page_to_nid);

#define kmalloc_node(size, flags, node) kmalloc_node_tag(size, flags, node, KMEM_TAG())
#define kzalloc_node(size, flags, node)                                                            \
	kmalloc_node_tag(size, (flags) | __GFP_ZERO, node, KMEM_TAG())
#define kcalloc_node(count, size, flags, node)                                                     \
	kmalloc_node_tag(size_mul(count, size), (flags) | __GFP_ZERO, node, KMEM_TAG())
#define kmalloc_array_node(count, size, flags, node)                                               \
	kmalloc_node_tag(size_mul(count, size), flags, node, KMEM_TAG())
#define kmalloc_node_track_caller(size, flags, node) kmalloc_node(size, flags, node)
#define krealloc_node_align(at, size, align, flags, node)                                          \
	krealloc_node_align_tag(at, size, align, flags, node, KMEM_TAG())
#define krealloc_node(at, size, flags, node) krealloc_node_align(at, size, 1, flags, node)
#define kmem_cache_alloc_node(cache, flags, node)                                                  \
	kmem_cache_alloc_node_tag(cache, flags, node, KMEM_TAG())
#define alloc_pages_node(node, flags, order) alloc_pages_node_tag(node, flags, order, KMEM_TAG())
#define alloc_pages_exact_nid(node, size, flags)                                                   \
	alloc_pages_exact_nid_tag(node, size, flags, KMEM_TAG())
#define alloc_pages_bulk(flags, count, pages)                                                      \
	alloc_pages_bulk_node(flags, NUMA_NO_NODE, count, pages)
#define alloc_pages_bulk_node(flags, node, count, pages)                                           \
	alloc_pages_bulk_node_tag(flags, node, count, pages, KMEM_TAG())

/* -- Areas of whole pages, each followed by a page that faults --------------------------------- */

/* Allocates as many pages as `size` bytes need. */
void *vmalloc_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vmalloc_tag);
void *vmalloc_noprof(size_t size, gfp_t flags) KMEM_AS_(kmem_vmalloc_noprof);
/* Allocates huge pages as far as the system has them: from 2 MiB on, at a multiple of 2 MiB. */
void *vmalloc_huge_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vmalloc_huge_tag);
/* Allocates an area at a multiple of `align` bytes. NULL also if `align` is no power of two. */
void *vmalloc_aligned_tag(size_t size, size_t align, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vmalloc_aligned_tag);
/* Resizes an area (or NULL) to `size` bytes, and may move it. NULL: the area is kept. Size 0 frees
 * it and returns NULL. __GFP_ZERO zeroes new pages. */
void *vrealloc_tag(const void *at, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vrealloc_tag);
/* Frees an area; NULL does nothing. */
void vfree(const void *at) KMEM_AS_(kmem_vfree);
/* Allocates a page that vmap can map. __free_page frees it. NULL also if the system has no memory
 * of that kind. */
void *vmap_alloc_page_tag(gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_vmap_alloc_page_tag);
/* Maps `count` pages of vmap_alloc_page side by side. The pages must be freed after the mapping.
 * NULL also if one is another page. A forked child has neither pages nor mappings. */
void *vmap(void **pages, unsigned int count) KMEM_AS_(kmem_vmap);
/* Removes a mapping of vmap; NULL does nothing. */
void vunmap(const void *at) KMEM_AS_(kmem_vunmap);
/* Returns 1 if an address is in a live area, the page behind it included, else 0. */
int is_vmalloc_addr(const void *at) KMEM_AS_(kmem_is_vmalloc_addr);
/* Writes the areas to a file descriptor, in the layout of /proc/vmallocinfo. Write errors are
 * ignored. */
void kmem_vmallocinfo(int fd);

#define vmalloc(size) vmalloc_tag(size, GFP_KERNEL, KMEM_TAG())
#define vzalloc(size) vmalloc_tag(size, __GFP_ZERO, KMEM_TAG())
#define vmalloc_huge(size, flags) vmalloc_huge_tag(size, flags, KMEM_TAG())
#define vmalloc_aligned(size, align, flags) vmalloc_aligned_tag(size, align, flags, KMEM_TAG())
#define vrealloc(at, size, flags) vrealloc_tag(at, size, flags, KMEM_TAG())
#define vmap_alloc_page(flags) vmap_alloc_page_tag(flags, KMEM_TAG())
#define __vmalloc(size, flags) vmalloc_tag(size, flags, KMEM_TAG())
/* Zeroed. All memory of a process can be mapped, so there is nothing else to it. */
#define vmalloc_user(size) vzalloc(size)
/* A process has no physical addresses, so areas that devices of 32 bits reach are like others. */
#define vmalloc_32(size) vmalloc(size)
#define vmalloc_32_user(size) vzalloc(size)
#define vmalloc_array(count, size) vmalloc_tag(size_mul(count, size), GFP_KERNEL, KMEM_TAG())
#define vcalloc(count, size) vmalloc_tag(size_mul(count, size), __GFP_ZERO, KMEM_TAG())
#define __vmalloc_array(count, size, flags) vmalloc_tag(size_mul(count, size), flags, KMEM_TAG())
#define __vcalloc(count, size, flags)                                                              \
	vmalloc_tag(size_mul(count, size), (flags) | __GFP_ZERO, KMEM_TAG())
/* Areas may be of any node. */
#define vmalloc_node(size, node) ((void)(node), vmalloc(size))
#define vzalloc_node(size, node) ((void)(node), vzalloc(size))

/* -- Objects or areas, by size ----------------------------------------------------------------- */

/* Allocates by kmalloc_node up to 32 KiB, else by vmalloc. kfree and kvfree free both. */
void *kvmalloc_node_tag(size_t size, gfp_t flags, int node, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kvmalloc_node_tag);
void *kvmalloc_node_noprof(size_t size, gfp_t flags, int node)
	KMEM_AS_(kmem_kvmalloc_node_noprof);
/* Resizes an allocation of kvmalloc, kmalloc or vmalloc (or NULL), and may move it: as krealloc, or
 * for an area as vrealloc. If krealloc finds no memory, the contents move to an area. */
void *kvrealloc_tag(const void *at, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kvrealloc_tag);
/* Copies `size` bytes to memory of kvmalloc. */
void *kvmemdup_tag(const void *from, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_kvmemdup_tag);
/* Zeroes the first `size` bytes, then frees as kvfree does. */
void kvfree_sensitive(const void *at, size_t size) KMEM_AS_(kmem_kvfree_sensitive);

#define kvmalloc_node(size, flags, node) kvmalloc_node_tag(size, flags, node, KMEM_TAG())
#define kvzalloc_node(size, flags, node) kvmalloc_node(size, (flags) | __GFP_ZERO, node)
#define kvmalloc_array_node(count, size, flags, node)                                              \
	kvmalloc_node(size_mul(count, size), flags, node)
#define kvcalloc_node(count, size, flags, node)                                                    \
	kvmalloc_node(size_mul(count, size), (flags) | __GFP_ZERO, node)
#define kvmalloc(size, flags) kvmalloc_node(size, flags, NUMA_NO_NODE)
#define kvzalloc(size, flags) kvmalloc(size, (flags) | __GFP_ZERO)
#define kvmalloc_array(count, size, flags) kvmalloc(size_mul(count, size), flags)
#define kvcalloc(count, size, flags) kvmalloc(size_mul(count, size), (flags) | __GFP_ZERO)
#define kvrealloc(at, size, flags) kvrealloc_tag(at, size, flags, KMEM_TAG())
#define kvmemdup(from, size, flags) kvmemdup_tag(from, size, flags, KMEM_TAG())
#define kvfree(at) kfree(at)

/* -- Memory pools: allocation that does not fail ----------------------------------------------- */

/* A pool. All zero, it is one that mempool_exit accepts and does nothing to. */
struct mempool {
	uint64_t kmem_[16];
};
typedef struct mempool mempool_t;
/* The back end of a pool of the program's own elements. Both functions may be called on any thread.
 * What `alloc` allocates without a tag of its own (kmalloc_noprof, malloc) is billed to the line of
 * the mempool_alloc that calls it. An element that is an allocation of this library is billed to
 * the pool while it is in the reserve. */
typedef void *(*mempool_alloc_t)(gfp_t flags, void *data);
typedef void (*mempool_free_t)(void *element, void *data);
/* Makes a pool with a reserve of `min` elements: of two functions, a cache, kmalloc, or blocks of
 * pages. This call is billed for the pool and its reserve; each element in use is billed to its own
 * mempool_alloc. NULL: there is no memory for the reserve, or `min` is negative. */
mempool_t *mempool_create_tag(int min, mempool_alloc_t alloc, mempool_free_t release, void *data,
			      const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_mempool_create_tag);
mempool_t *mempool_create_slab_pool_tag(int min, struct kmem_cache *cache,
					const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_create_slab_pool_tag);
mempool_t *mempool_create_kmalloc_pool_tag(int min, size_t size, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_create_kmalloc_pool_tag);
mempool_t *mempool_create_page_pool_tag(int min, unsigned int order,
					const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_create_page_pool_tag);
/* Make a pool in memory of the program, and return 0. -ENOMEM: there is no memory for the reserve;
 * -EINVAL: `min` is negative. After an error the pool is all zero. */
int mempool_init_tag(mempool_t *pool, int min, mempool_alloc_t alloc, mempool_free_t release,
		     void *data, const struct kmem_alloc_tag *tag) KMEM_AS_(kmem_mempool_init_tag);
int mempool_init_slab_pool_tag(mempool_t *pool, int min, struct kmem_cache *cache,
			       const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_init_slab_pool_tag);
int mempool_init_kmalloc_pool_tag(mempool_t *pool, int min, size_t size,
				  const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_init_kmalloc_pool_tag);
int mempool_init_page_pool_tag(mempool_t *pool, int min, unsigned int order,
			       const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_init_page_pool_tag);
/* Frees the reserve of a pool of mempool_init, all of whose elements were freed. The pool is all
 * zero then, and does nothing here. */
void mempool_exit(mempool_t *pool) KMEM_AS_(kmem_mempool_exit);
/* Back ends for pools. `data` is a cache, a size in bytes, or an order. */
void *mempool_alloc_slab(gfp_t flags, void *data) KMEM_AS_(kmem_mempool_alloc_slab);
void mempool_free_slab(void *element, void *data) KMEM_AS_(kmem_mempool_free_slab);
void *mempool_kmalloc(gfp_t flags, void *data) KMEM_AS_(kmem_mempool_kmalloc);
void mempool_kfree(void *element, void *data) KMEM_AS_(kmem_mempool_kfree);
void *mempool_alloc_pages(gfp_t flags, void *data) KMEM_AS_(kmem_mempool_alloc_pages);
void mempool_free_pages(void *element, void *data) KMEM_AS_(kmem_mempool_free_pages);
/* Allocates an element from the reserve alone. NULL: it is empty. */
void *mempool_alloc_preallocated_tag(mempool_t *pool, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_alloc_preallocated_tag);
/* Allocates an element from the back end, else from the reserve. Else waits until another thread
 * frees one; with GFP_NOWAIT, or if `min` is 0, returns NULL. Signal handlers must use
 * GFP_NOWAIT. */
void *mempool_alloc_tag(mempool_t *pool, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_alloc_tag);
void *mempool_alloc_noprof(mempool_t *pool, gfp_t flags) KMEM_AS_(kmem_mempool_alloc_noprof);
/* Fills `out` with `count` elements. Returns `count`, or 0 and allocates none. Threads that
 * together ask for more than the reserve may wait for each other without end. Ask for no more than
 * the reserve, one thread at a time. */
size_t mempool_alloc_bulk_tag(mempool_t *pool, gfp_t flags, size_t count, void **out,
			      const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_mempool_alloc_bulk_tag);
/* Gives an element back to its pool; NULL does nothing. */
void mempool_free(void *element, mempool_t *pool) KMEM_AS_(kmem_mempool_free);
/* Gives `count` elements back to their pool. */
void mempool_free_bulk(mempool_t *pool, size_t count, void **elements)
	KMEM_AS_(kmem_mempool_free_bulk);
/* Sets the size of the reserve. Returns 0; -ENOMEM: there is no memory for it; -EINVAL: `min` is
 * negative. After an error the old size holds. */
int mempool_resize(mempool_t *pool, int min) KMEM_AS_(kmem_mempool_resize);
/* Destroys a pool of mempool_create, all of whose elements were freed; NULL does nothing. */
void mempool_destroy(mempool_t *pool) KMEM_AS_(kmem_mempool_destroy);

#define mempool_create(min, alloc, release, data)                                                  \
	mempool_create_tag(min, alloc, release, data, KMEM_TAG())
#define mempool_create_slab_pool(min, cache) mempool_create_slab_pool_tag(min, cache, KMEM_TAG())
#define mempool_create_kmalloc_pool(min, size)                                                     \
	mempool_create_kmalloc_pool_tag(min, size, KMEM_TAG())
#define mempool_create_page_pool(min, order) mempool_create_page_pool_tag(min, order, KMEM_TAG())
/* `node` is ignored. */
#define mempool_create_node(min, alloc, release, data, flags, node)                                \
	((void)(flags), (void)(node), mempool_create(min, alloc, release, data))
#define mempool_init(pool, min, alloc, release, data)                                              \
	mempool_init_tag(pool, min, alloc, release, data, KMEM_TAG())
#define mempool_init_slab_pool(pool, min, cache)                                                   \
	mempool_init_slab_pool_tag(pool, min, cache, KMEM_TAG())
#define mempool_init_kmalloc_pool(pool, min, size)                                                 \
	mempool_init_kmalloc_pool_tag(pool, min, size, KMEM_TAG())
#define mempool_init_page_pool(pool, min, order)                                                   \
	mempool_init_page_pool_tag(pool, min, order, KMEM_TAG())
#define mempool_alloc_preallocated(pool) mempool_alloc_preallocated_tag(pool, KMEM_TAG())
#define mempool_alloc(pool, flags) mempool_alloc_tag(pool, flags, KMEM_TAG())
#define mempool_alloc_bulk(pool, flags, count, out)                                                \
	mempool_alloc_bulk_tag(pool, flags, count, out, KMEM_TAG())

/* -- Per-CPU memory ---------------------------------------------------------------------------- */

/* Allocates an object of up to 32 KiB, of which every CPU has a copy of zeroes. `align` is a power
 * of two up to 4096. Returns a handle: the address of the copy shared by threads without a CPU
 * number. The tag and the group are billed one copy. */
void *alloc_percpu_tag(size_t size, size_t align, gfp_t flags, const struct kmem_alloc_tag *tag)
	KMEM_AS_(kmem_alloc_percpu_tag);
void *alloc_percpu_noprof(size_t size, size_t align, gfp_t flags)
	KMEM_AS_(kmem_alloc_percpu_noprof);
/* Frees all copies of an object; NULL does nothing. */
void free_percpu(void *handle) KMEM_AS_(kmem_free_percpu);
/* Returns the copy of a CPU, even of one that no thread ran on yet. NULL: there is no memory for
 * it, or no such CPU. CPU nr_cpu_ids() - 1 is the shared copy, so a loop over all numbers finds all
 * copies. */
void *kmem_per_cpu_ptr(void *handle, unsigned int cpu);
/* The number of possible CPUs, plus one for the shared copy. */
unsigned int nr_cpu_ids(void) KMEM_AS_(kmem_nr_cpu_ids);
/* Writes statistics to a file descriptor, in the layout of the kernel's percpu_stats. Write errors
 * are ignored. */
void kmem_percpu_stats(int fd);

#define __alloc_percpu(size, align) alloc_percpu_tag(size, align, GFP_KERNEL, KMEM_TAG())
#define __alloc_percpu_gfp(size, align, flags) alloc_percpu_tag(size, align, flags, KMEM_TAG())
#define alloc_percpu(type) ((type *)__alloc_percpu(sizeof(type), __alignof__(type)))
#define alloc_percpu_gfp(type, flags)                                                              \
	((type *)__alloc_percpu_gfp(sizeof(type), __alignof__(type), flags))
#define per_cpu_ptr(handle, cpu) ((__typeof__(handle))kmem_per_cpu_ptr(handle, cpu))
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < nr_cpu_ids(); (cpu)++)

/* Operations on a word of 4 or 8 bytes in the copy of the CPU that the thread runs on. `word` is
 * the word in the handle's copy: this_cpu_add(stats->packets, 1). Migration and signals cannot
 * split an operation. A child of vfork must not call them. */
#define KMEM_WORDS_(type, width)                                                                   \
	void kmem_this_cpu_add_##width(type *at, type by);                                         \
	type kmem_this_cpu_add_return_##width(type *at, type by);                                  \
	type kmem_this_cpu_read_##width(type *at);                                                 \
	type kmem_this_cpu_xchg_##width(type *at, type value);                                     \
	type kmem_this_cpu_cmpxchg_##width(type *at, type before, type value);                     \
	type kmem_percpu_sum_##width(type *at);
KMEM_WORDS_(uint32_t, 4)
KMEM_WORDS_(uint64_t, 8)

/* Defined nowhere: a word of another size does not link. */
uint64_t kmem_this_word_has_neither_4_nor_8_bytes(void);
#define KMEM_WORD_(word, call, ...)                                                                \
	((__typeof__(word))(sizeof(word) == 8                                                      \
				    ? kmem_##call##_8((uint64_t *)(void *)&(word)__VA_ARGS__)      \
			    : sizeof(word) == 4                                                    \
				    ? kmem_##call##_4((uint32_t *)(void *)&(word)__VA_ARGS__)      \
				    : kmem_this_word_has_neither_4_nor_8_bytes()))
#define this_cpu_add(word, by)                                                                     \
	((void)(sizeof(word) == 8                                                                  \
			? kmem_this_cpu_add_8((uint64_t *)(void *)&(word), (uint64_t)(by))         \
		: sizeof(word) == 4                                                                \
			? kmem_this_cpu_add_4((uint32_t *)(void *)&(word), (uint32_t)(by))         \
			: (void)kmem_this_word_has_neither_4_nor_8_bytes()))
#define this_cpu_sub(word, by) this_cpu_add(word, -(__typeof__(word))(by))
#define this_cpu_inc(word) this_cpu_add(word, 1)
#define this_cpu_dec(word) this_cpu_sub(word, 1)
/* Adds, and returns the new value. */
#define this_cpu_add_return(word, by) KMEM_WORD_(word, this_cpu_add_return, , by)
#define this_cpu_read(word) KMEM_WORD_(word, this_cpu_read)
/* Stores `value`, and returns the old value. */
#define this_cpu_xchg(word, value) KMEM_WORD_(word, this_cpu_xchg, , value)
#define this_cpu_write(word, value) ((void)this_cpu_xchg(word, value))
/* Stores `value` if the word is `before`, and returns the old value. */
#define this_cpu_cmpxchg(word, before, value) KMEM_WORD_(word, this_cpu_cmpxchg, , before, value)
/* The sum over all copies, exact once no thread writes them. */
#define percpu_sum(word) KMEM_WORD_(word, percpu_sum)

#ifdef __cplusplus
}
#endif

#endif /* KMEM_H */
