/* File and line for every malloc of a C program, without an edit:
 *
 *	cc -include kmem/hooks.h program.c
 *
 * Without libkmem.so the hooks call the C library. Position-dependent code (-fno-pic) finds the
 * hooks only if it is linked with -lkmem. A source that declares one of these functions, or calls a
 * member of such a name, must #undef the name first. */
#ifndef KMEM_HOOKS_H
#define KMEM_HOOKS_H
#ifndef __cplusplus

/* The C library must declare the functions before their names become macros. That is before the
 * source can define feature macros, so it gets all features unless the command line names some
 * (-D_POSIX_C_SOURCE=200809L, or -D_DEFAULT_SOURCE). The macros are restored below, so a definition
 * in the source is no redefinition. */
#pragma push_macro("_GNU_SOURCE")
#pragma push_macro("_DEFAULT_SOURCE")
#pragma push_macro("_ATFILE_SOURCE")
#pragma push_macro("_DYNAMIC_STACK_SIZE_SOURCE")
#pragma push_macro("_ISOC95_SOURCE")
#pragma push_macro("_ISOC99_SOURCE")
#pragma push_macro("_ISOC11_SOURCE")
#pragma push_macro("_ISOC2X_SOURCE")
#pragma push_macro("_ISOC23_SOURCE")
#pragma push_macro("_LARGEFILE64_SOURCE")
#pragma push_macro("_POSIX_SOURCE")
#pragma push_macro("_POSIX_C_SOURCE")
#pragma push_macro("_XOPEN_SOURCE")
#pragma push_macro("_XOPEN_SOURCE_EXTENDED")
#if !defined(_GNU_SOURCE) && !defined(_DEFAULT_SOURCE) && !defined(_POSIX_SOURCE) &&               \
	!defined(_POSIX_C_SOURCE) && !defined(_XOPEN_SOURCE)
#define _GNU_SOURCE 1
#endif
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#pragma pop_macro("_GNU_SOURCE")
#pragma pop_macro("_DEFAULT_SOURCE")
#pragma pop_macro("_ATFILE_SOURCE")
#pragma pop_macro("_DYNAMIC_STACK_SIZE_SOURCE")
#pragma pop_macro("_ISOC95_SOURCE")
#pragma pop_macro("_ISOC99_SOURCE")
#pragma pop_macro("_ISOC11_SOURCE")
#pragma pop_macro("_ISOC2X_SOURCE")
#pragma pop_macro("_ISOC23_SOURCE")
#pragma pop_macro("_LARGEFILE64_SOURCE")
#pragma pop_macro("_POSIX_SOURCE")
#pragma pop_macro("_POSIX_C_SOURCE")
#pragma pop_macro("_XOPEN_SOURCE")
#pragma pop_macro("_XOPEN_SOURCE_EXTENDED")
#include "tag.h"

/* Each works as the C library's function of its name, and bills the thread's scope, else `tag`. */
void *kmem_malloc_tag(size_t size, const struct kmem_alloc_tag *tag) __attribute__((weak, malloc));
void *kmem_calloc_tag(size_t count, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak, malloc));
void *kmem_realloc_tag(void *at, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak));
void *kmem_reallocarray_tag(void *at, size_t count, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak));
void *kmem_memalign_tag(size_t align, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak, malloc));
int kmem_posix_memalign_tag(void **out, size_t align, size_t size, const struct kmem_alloc_tag *tag)
	__attribute__((weak));
char *kmem_strdup_tag(const char *text, const struct kmem_alloc_tag *tag)
	__attribute__((weak, malloc));
char *kmem_strndup_tag(const char *text, size_t most, const struct kmem_alloc_tag *tag)
	__attribute__((weak, malloc));
wchar_t *kmem_wcsdup_tag(const wchar_t *text, const struct kmem_alloc_tag *tag)
	__attribute__((weak, malloc));

#undef strdup
#undef strndup
#define malloc(size) (kmem_malloc_tag ? kmem_malloc_tag(size, KMEM_TAG()) : (malloc)(size))
#define calloc(count, size)                                                                        \
	(kmem_calloc_tag ? kmem_calloc_tag(count, size, KMEM_TAG()) : (calloc)(count, size))
#define realloc(at, size)                                                                          \
	(kmem_realloc_tag ? kmem_realloc_tag(at, size, KMEM_TAG()) : (realloc)(at, size))
#define reallocarray(at, count, size)                                                              \
	(kmem_reallocarray_tag ? kmem_reallocarray_tag(at, count, size, KMEM_TAG())                \
			       : (reallocarray)(at, count, size))
#define memalign(align, size)                                                                      \
	(kmem_memalign_tag ? kmem_memalign_tag(align, size, KMEM_TAG()) : (memalign)(align, size))
#define aligned_alloc(align, size)                                                                 \
	(kmem_memalign_tag ? kmem_memalign_tag(align, size, KMEM_TAG())                            \
			   : (aligned_alloc)(align, size))
#define posix_memalign(out, align, size)                                                           \
	(kmem_posix_memalign_tag ? kmem_posix_memalign_tag(out, align, size, KMEM_TAG())           \
				 : (posix_memalign)(out, align, size))
#define strdup(text) (kmem_strdup_tag ? kmem_strdup_tag(text, KMEM_TAG()) : (strdup)(text))
#define strndup(text, most)                                                                        \
	(kmem_strndup_tag ? kmem_strndup_tag(text, most, KMEM_TAG()) : (strndup)(text, most))
#define wcsdup(text) (kmem_wcsdup_tag ? kmem_wcsdup_tag(text, KMEM_TAG()) : (wcsdup)(text))

#endif /* __cplusplus */
#endif /* KMEM_HOOKS_H */
