/* File and line for every malloc of a C program, without an edit:
 *
 *	cc -include kmem/hooks.h program.c
 *
 * The program runs with or without libkmem.so: without it, the hooks call the C library. A source that declares one of
 * these functions itself, or has members of these names that it calls, needs an #undef of the name there. */
#ifndef KMEM_HOOKS_H
#define KMEM_HOOKS_H
#ifndef __cplusplus

/* What declares the functions must be read before their names become macros. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include "../kmem.h"

void *kmem_malloc_tag(size_t size, const struct kmem_alloc_tag *tag) __attribute__((weak, malloc));
void *kmem_calloc_tag(size_t count, size_t size, const struct kmem_alloc_tag *tag) __attribute__((weak, malloc));
void *kmem_realloc_tag(void *at, size_t size, const struct kmem_alloc_tag *tag) __attribute__((weak));
void *kmem_reallocarray_tag(void *at, size_t count, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak));
void *kmem_memalign_tag(size_t align, size_t size, const struct kmem_alloc_tag *tag) __attribute__((weak, malloc));
int kmem_posix_memalign_tag(void **out, size_t align, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak));

/* For the functions of the C library that call malloc themselves: their caller is billed. */
#define KMEM_HOOK_SCOPE_(call)                                                                                         \
	(__extension__({                                                                                               \
		uintptr_t kmem_before_ = kmem_malloc_tag ? kmem_tag_enter(KMEM_TAG()) : 0;                             \
		__auto_type kmem_result_ = (call);                                                                     \
		if (kmem_malloc_tag)                                                                                   \
			kmem_tag_leave(kmem_before_);                                                                  \
		kmem_result_;                                                                                          \
	}))
#pragma weak kmem_tag_enter
#pragma weak kmem_tag_leave

#define malloc(size) (kmem_malloc_tag ? kmem_malloc_tag(size, KMEM_TAG()) : (malloc)(size))
#define calloc(count, size) (kmem_calloc_tag ? kmem_calloc_tag(count, size, KMEM_TAG()) : (calloc)(count, size))
#define realloc(at, size) (kmem_realloc_tag ? kmem_realloc_tag(at, size, KMEM_TAG()) : (realloc)(at, size))
#define reallocarray(at, count, size)                                                                                  \
	(kmem_reallocarray_tag ? kmem_reallocarray_tag(at, count, size, KMEM_TAG()) : (reallocarray)(at, count, size))
#define memalign(align, size) (kmem_memalign_tag ? kmem_memalign_tag(align, size, KMEM_TAG()) : (memalign)(align, size))
#define aligned_alloc(align, size)                                                                                     \
	(kmem_memalign_tag ? kmem_memalign_tag(align, size, KMEM_TAG()) : (aligned_alloc)(align, size))
#define posix_memalign(out, align, size)                                                                               \
	(kmem_posix_memalign_tag ? kmem_posix_memalign_tag(out, align, size, KMEM_TAG()) :                             \
				   (posix_memalign)(out, align, size))
#define strdup(text) KMEM_HOOK_SCOPE_((strdup)(text))
#define strndup(text, most) KMEM_HOOK_SCOPE_((strndup)(text, most))
#define wcsdup(text) KMEM_HOOK_SCOPE_((wcsdup)(text))

#endif /* __cplusplus */
#endif /* KMEM_HOOKS_H */
