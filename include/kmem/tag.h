/* Static tags and scopes, for kmem.h and kmem/hooks.h, which include this header. */
#ifndef KMEM_TAG_H
#define KMEM_TAG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A call site. If `module` is null, it is the loaded object that contains the tag. */
struct kmem_alloc_tag {
	const char *module;
	const char *file;
	const char *function;
	uint32_t line;
	uint32_t flags;
};

/* In C++ tags have no section of their own. The compiler cannot put variables of inline functions
 * and templates into one section with those of other functions. */
#ifdef __cplusplus
#define KMEM_TAG_PLACE_ __attribute__((aligned(8)))
#define KMEM_AUTO_ auto
#else
#define KMEM_AUTO_ __auto_type
#define KMEM_TAG_PLACE_ __attribute__((section("kmem_alloc_tags"), used, aligned(8)))
#endif

/* The address of a static tag for this line. It needs no code to initialise. */
#define KMEM_TAG_NAMED(name)                                                                       \
	(__extension__({                                                                           \
		static struct kmem_alloc_tag kmem_tag_ KMEM_TAG_PLACE_ = { 0, __FILE__, name,      \
									   __LINE__, 0 };          \
		&kmem_tag_;                                                                        \
	}))
#define KMEM_TAG() KMEM_TAG_NAMED(__func__)

/* -- Scopes: allocations of a thread are billed to one tag ------------------------------------- */

/* Makes `tag` (null: none) the thread's scope. Returns a value for kmem_tag_leave. Scopes nest.
 * Signal handlers may use them. A handler allocates in the scope of the thread that it interrupts.
 * It may enter a scope of its own, and leave it at its end. */
uintptr_t kmem_tag_enter(const struct kmem_alloc_tag *tag);
/* Restores the scope before the kmem_tag_enter that returned `before`. */
void kmem_tag_leave(uintptr_t before);

/* Evaluates `call`, and bills its allocations to `tag`, or to this line. A library uses it to bill
 * its caller, as the kernel's alloc_hooks. */
#define alloc_hooks_tag(tag, call)                                                                 \
	(__extension__({                                                                           \
		uintptr_t kmem_before_ = kmem_tag_enter(tag);                                      \
		KMEM_AUTO_ kmem_result_ = (call);                                                  \
		kmem_tag_leave(kmem_before_);                                                      \
		kmem_result_;                                                                      \
	}))
#define alloc_hooks(call) alloc_hooks_tag(KMEM_TAG(), call)

/* -- The switch -------------------------------------------------------------------------------- */

/* Switches memory allocation profiling off (0) or on, as `kmem sysctl vm.mem_profiling` does from
 * outside. While it is off, new objects are not tagged. Objects keep the tag that they have, and
 * groups pay as ever. Returns 0, or -ENOTSUP if there are no books to switch
 * (KMEM_CONF=mem_profiling:never). Signal handlers may use both functions. */
int kmem_profiling_set(int on);
/* 1: new objects get the tag of their call site; 0: they are not tagged; -ENOTSUP as above. */
int kmem_profiling_get(void);

/* -- Tags of a loaded object ------------------------------------------------------------------- */

#ifndef KMEM_TAGS_BY_LOADER
/* Make the tags of a loaded object known, and unknown before it is unloaded. Its live allocations
 * keep their tags then, and a warning lists them. The array from `start` up to `stop` is in the
 * object. Readers list its tags from then on, used or not, as /proc/allocinfo does. Zeroed entries
 * are no tags. The constructor below runs before those of the program, the destructor after. */
void kmem_tags_register(const struct kmem_alloc_tag *start, const struct kmem_alloc_tag *stop)
	__attribute__((weak));
void kmem_tags_unregister(const struct kmem_alloc_tag *start, const struct kmem_alloc_tag *stop)
	__attribute__((weak));

#ifdef __cplusplus
static const struct kmem_alloc_tag kmem_my_tags_[1] = {};
#define KMEM_MY_TAGS_ kmem_my_tags_, kmem_my_tags_ + 1
#define KMEM_HAS_TAGS_ true
#else
extern const struct kmem_alloc_tag __start_kmem_alloc_tags[]
	__attribute__((weak, visibility("hidden")));
extern const struct kmem_alloc_tag __stop_kmem_alloc_tags[]
	__attribute__((weak, visibility("hidden")));
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
#endif /* KMEM_TAGS_BY_LOADER */

#ifdef __cplusplus
}

namespace kmem
{
/* Scope of the thread that makes it: while the object lives, allocations are billed to the tag.
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

#endif /* KMEM_TAG_H */
