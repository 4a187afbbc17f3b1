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

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A call site. `module` may be null: the object the tag is in. */
struct kmem_alloc_tag {
	const char *module;
	const char *file;
	const char *function;
	uint32_t line;
	uint32_t flags;
};

typedef unsigned int gfp_t;
#define GFP_KERNEL 0u
#define GFP_NOWAIT 0u
#define GFP_ATOMIC 0u
/* Zeroed memory. */
#define __GFP_ZERO 0x1u
/* Do without: no report when there is no memory. */
#define __GFP_NOWARN 0x2u

/* C++ has tags in no section: where the compiler makes one function of several (inline, templates), it cannot put
 * their variables and those of other functions into the same one. */
#ifdef __cplusplus
#define KMEM_TAG_PLACE_ __attribute__((aligned(8)))
#else
#define KMEM_TAG_PLACE_ __attribute__((section("kmem_alloc_tags"), used, aligned(8)))
#endif

/* The tag of this place. A tag is made of constants only, so that it needs no code. */
#define KMEM_TAG_NAMED(name)                                                                                           \
	(__extension__({                                                                                               \
		static struct kmem_alloc_tag kmem_tag_ KMEM_TAG_PLACE_ = { 0, __FILE__, name, __LINE__, 0 };           \
		&kmem_tag_;                                                                                            \
	}))
#define KMEM_TAG() KMEM_TAG_NAMED(__func__)

/* The functions' names are common ones; their symbols are not. */
#define KMEM_SYMBOL_(name) __asm__("__kmem_" #name)

/* -- Scopes: everything the thread allocates meanwhile is billed to one tag -------------------------------------- */

/* Makes `tag` (null: none) the thread's scope; returns what kmem_tag_leave wants back. Scopes nest. */
uintptr_t kmem_tag_enter(const struct kmem_alloc_tag *tag);
void kmem_tag_leave(uintptr_t before);

/* Evaluates `call` and bills what it allocates to `tag`, or to this place: for the functions of a library that would
 * rather bill their user (the kernel's alloc_hooks). */
#define alloc_hooks_tag(tag, call)                                                                                     \
	(__extension__({                                                                                               \
		uintptr_t kmem_before_ = kmem_tag_enter(tag);                                                          \
		__auto_type kmem_result_ = (call);                                                                     \
		kmem_tag_leave(kmem_before_);                                                                          \
		kmem_result_;                                                                                          \
	}))
#define alloc_hooks(call) alloc_hooks_tag(KMEM_TAG(), call)

/* -- kmalloc ----------------------------------------------------------------------------------------------------- */

void *kmalloc_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kmalloc_tag);
void *kmalloc_noprof(size_t size, gfp_t flags) KMEM_SYMBOL_(kmalloc_noprof);
void *kcalloc_tag(size_t count, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kcalloc_tag);
void *kcalloc_noprof(size_t count, size_t size, gfp_t flags) KMEM_SYMBOL_(kcalloc_noprof);
void *krealloc_tag(const void *at, size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(krealloc_tag);
void *krealloc_noprof(const void *at, size_t size, gfp_t flags) KMEM_SYMBOL_(krealloc_noprof);
char *kstrdup_tag(const char *text, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kstrdup_tag);
char *kstrdup_noprof(const char *text, gfp_t flags) KMEM_SYMBOL_(kstrdup_noprof);
/* All or none: `count`, or 0. */
size_t kmalloc_bulk_tag(size_t size, gfp_t flags, size_t count, void **out, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kmalloc_bulk_tag);
void kfree(const void *at) KMEM_SYMBOL_(kfree);
void kfree_bulk(size_t count, void **objects) KMEM_SYMBOL_(kfree_bulk);
size_t ksize(const void *at) KMEM_SYMBOL_(ksize);

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
					 const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kmem_cache_create_tag);
/* False, and a warning: objects of the cache are live; it stays. */
int kmem_cache_destroy(struct kmem_cache *cache) KMEM_SYMBOL_(kmem_cache_destroy);
void *kmem_cache_alloc_tag(struct kmem_cache *cache, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kmem_cache_alloc_tag);
void *kmem_cache_alloc_noprof(struct kmem_cache *cache, gfp_t flags) KMEM_SYMBOL_(kmem_cache_alloc_noprof);
void kmem_cache_free(struct kmem_cache *cache, void *object) KMEM_SYMBOL_(kmem_cache_free);
/* All or none: `count`, or 0. */
size_t kmem_cache_alloc_bulk_tag(struct kmem_cache *cache, gfp_t flags, size_t count, void **out,
				 const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(kmem_cache_alloc_bulk_tag);
void kmem_cache_free_bulk(struct kmem_cache *cache, size_t count, void **objects) KMEM_SYMBOL_(kmem_cache_free_bulk);

#define kmem_cache_create(name, size, align, ctor) kmem_cache_create_tag(name, size, align, ctor, KMEM_TAG())
#define kmem_cache_alloc(cache, flags) kmem_cache_alloc_tag(cache, flags, KMEM_TAG())
#define kmem_cache_zalloc(cache, flags) kmem_cache_alloc_tag(cache, (flags) | __GFP_ZERO, KMEM_TAG())
#define kmem_cache_alloc_bulk(cache, flags, count, out) kmem_cache_alloc_bulk_tag(cache, flags, count, out, KMEM_TAG())

/* -- Pages of 4 KiB ------------------------------------------------------------------------------------------------ */

/* 1 << order pages at a multiple of their size. */
void *alloc_pages_tag(gfp_t flags, unsigned int order, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(alloc_pages_tag);
void *alloc_pages_noprof(gfp_t flags, unsigned int order) KMEM_SYMBOL_(alloc_pages_noprof);
/* Just as many pages as `size` takes. */
void *alloc_pages_exact_tag(size_t size, gfp_t flags, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(alloc_pages_exact_tag);
/* Single pages; how many of the null entries of `pages` were filled. */
size_t alloc_pages_bulk_tag(gfp_t flags, size_t count, void **pages, const struct kmem_alloc_tag *tag) KMEM_SYMBOL_(alloc_pages_bulk_tag);
/* Makes 1 << order pages into as many allocations, each billed to the same tag. */
void split_page(void *pages, unsigned int order) KMEM_SYMBOL_(split_page);
/* Frees 1 << order pages: one allocation, or the pieces of one that was split. */
void __free_pages(void *pages, unsigned int order) KMEM_SYMBOL_(__free_pages);
void free_pages_exact(void *pages, size_t size) KMEM_SYMBOL_(free_pages_exact);

#define alloc_pages(flags, order) alloc_pages_tag(flags, order, KMEM_TAG())
#define alloc_page(flags) alloc_pages_tag(flags, 0, KMEM_TAG())
#define get_zeroed_page(flags) alloc_pages_tag((flags) | __GFP_ZERO, 0, KMEM_TAG())
#define alloc_pages_exact(size, flags) alloc_pages_exact_tag(size, flags, KMEM_TAG())
#define alloc_pages_bulk(flags, count, pages) alloc_pages_bulk_tag(flags, count, pages, KMEM_TAG())
#define __free_page(page) __free_pages(page, 0)

/* -- Tags of a loaded object --------------------------------------------------------------------------------------- */

/* Tells the name of the object that the tags are in, when it is loaded, and that it goes, before it is unloaded: its
 * live allocations keep their tags, and are named in a warning. Called by the constructor and destructor below, which
 * come before and after those of the program. One address in the object is enough. */
void kmem_tags_register(const struct kmem_alloc_tag *start, const struct kmem_alloc_tag *stop) __attribute__((weak));
void kmem_tags_unregister(const struct kmem_alloc_tag *start, const struct kmem_alloc_tag *stop) __attribute__((weak));

#ifdef __cplusplus
static const struct kmem_alloc_tag kmem_my_tags_[1] = {};
#define KMEM_MY_TAGS_ kmem_my_tags_, kmem_my_tags_ + 1
#define KMEM_HAS_TAGS_ true
#else
extern const struct kmem_alloc_tag __start_kmem_alloc_tags[] __attribute__((weak, visibility("hidden")));
extern const struct kmem_alloc_tag __stop_kmem_alloc_tags[] __attribute__((weak, visibility("hidden")));
#define KMEM_MY_TAGS_ __start_kmem_alloc_tags, __stop_kmem_alloc_tags
#define KMEM_HAS_TAGS_ __start_kmem_alloc_tags
#endif

static __attribute__((constructor(101), unused)) void kmem_register_my_tags_(void)
{
	if (kmem_tags_register && KMEM_HAS_TAGS_)
		kmem_tags_register(KMEM_MY_TAGS_);
}

static __attribute__((destructor(101), unused)) void kmem_unregister_my_tags_(void)
{
	if (kmem_tags_unregister && KMEM_HAS_TAGS_)
		kmem_tags_unregister(KMEM_MY_TAGS_);
}

#ifdef __cplusplus
}

namespace kmem
{
/* While it lives, what its thread allocates is billed to a tag:
 *
 *	kmem::scope building(KMEM_TAG_NAMED("index build")); */
class scope {
public:
	explicit scope(const kmem_alloc_tag *tag) : before_(kmem_tag_enter(tag))
	{
	}
	~scope()
	{
		kmem_tag_leave(before_);
	}
	scope(const scope &) = delete;
	scope &operator=(const scope &) = delete;

private:
	uintptr_t before_;
};
} // namespace kmem
#endif

#endif /* KMEM_H */
