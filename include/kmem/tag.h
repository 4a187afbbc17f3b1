/* Tags and scopes, for kmem.h and kmem/hooks.h, which include this. */
#ifndef KMEM_TAG_H
#define KMEM_TAG_H

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

/* C++ has tags in no section: where the compiler makes one function of several (inline, templates), it cannot put
 * their variables and those of other functions into the same one. */
#ifdef __cplusplus
#define KMEM_TAG_PLACE_ __attribute__((aligned(8)))
#define KMEM_AUTO_ auto
#else
#define KMEM_AUTO_ __auto_type
#define KMEM_TAG_PLACE_ __attribute__((section("kmem_alloc_tags"), used, aligned(8)))
#endif

/* The tag of this place. A tag is made of constants only, so that it needs no code. */
#define KMEM_TAG_NAMED(name)                                                                                           \
	(__extension__({                                                                                               \
		static struct kmem_alloc_tag kmem_tag_ KMEM_TAG_PLACE_ = { 0, __FILE__, name, __LINE__, 0 };           \
		&kmem_tag_;                                                                                            \
	}))
#define KMEM_TAG() KMEM_TAG_NAMED(__func__)

/* -- Scopes: everything the thread allocates meanwhile is billed to one tag -------------------------------------- */

/* Makes `tag` (null: none) the thread's scope; returns what kmem_tag_leave wants back. Scopes nest. */
uintptr_t kmem_tag_enter(const struct kmem_alloc_tag *tag);
void kmem_tag_leave(uintptr_t before);

/* Evaluates `call` and bills what it allocates to `tag`, or to this place: for the functions of a library that would
 * rather bill their user (the kernel's alloc_hooks). */
#define alloc_hooks_tag(tag, call)                                                                                     \
	(__extension__({                                                                                               \
		uintptr_t kmem_before_ = kmem_tag_enter(tag);                                                          \
		KMEM_AUTO_ kmem_result_ = (call);                                                                      \
		kmem_tag_leave(kmem_before_);                                                                          \
		kmem_result_;                                                                                          \
	}))
#define alloc_hooks(call) alloc_hooks_tag(KMEM_TAG(), call)

/* -- Tags of a loaded object --------------------------------------------------------------------------------------- */

#ifndef KMEM_TAGS_BY_LOADER
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
#endif /* KMEM_TAGS_BY_LOADER */

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

#endif /* KMEM_TAG_H */
