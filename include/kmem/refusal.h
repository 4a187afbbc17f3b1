/* A function of the program that is told of each request for memory that is refused. Without one, a
 * refusal is reported on standard error. kmem.h includes this header; it also works alone.
 *
 *	static void refused(void *data, const struct kmem_refusal *refusal)
 *	{
 *		.. count it, or wake a thread that answers 503 ..
 *	}
 *
 *	kmem_on_refusal(refused, NULL);
 *
 * The functions return a negative error number on failure, and then have changed nothing. -ENOSYS:
 * libkmem.so is not loaded. None sets errno or throws. See kmem/group.h for groups and linking. */
#ifndef KMEM_REFUSAL_H
#define KMEM_REFUSAL_H

#include "group.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kmem_refusal_reason {
	/* There is no memory. */
	KMEM_REFUSAL_NO_MEMORY,
	/* A group is at its max. */
	KMEM_REFUSAL_AT_MAX,
};

/* A request that was refused. */
struct kmem_refusal {
	/* Size of the structure; later versions may be longer. */
	uint64_t size;
	/* The group whose max refused the request; KMEM_GROUP_ROOT if there is no memory. */
	kmem_group_t group;
	/* The group of the request: that one, or one below it. */
	kmem_group_t payer;
	/* Bytes of the request. Up to 32 KiB, they are those of its size class. For a change of size,
	 * they are those that it adds. */
	uint64_t bytes;
	/* Bytes charged to `group`, with what CPUs keep for it, and its max. For
	 * KMEM_REFUSAL_NO_MEMORY: bytes of pages in use, and the most that the heap may have. */
	uint64_t usage, limit;
	/* Return address of the call that asked; 0 for a static tag, or if it is not known. */
	uintptr_t caller;
	/* For kmem_refusal_site. */
	uint32_t tag;
	/* enum kmem_refusal_reason. */
	uint32_t reason;
};

/* Function that is told of a refusal. It is called on the thread that allocates, outside of all
 * locks of the library. The thread may hold any lock of the program, so the function must wait for
 * no lock. It runs in a signal handler if that allocates. It must return: no longjmp, no exception.
 * It may allocate: KMEM_GROUP_ROOT pays, and no max refuses that. It is not called within itself:
 * a failure there is reported on standard error. */
typedef void (*kmem_on_refusal_t)(void *data, const struct kmem_refusal *refusal);

/* Calls `call` with `data` on any thread for each request that is refused from now on. With NULL,
 * refusals are reported on standard error again. Replaces the function before it, and returns 0
 * when no thread runs that any more. A request that is refused meanwhile may be reported.
 * EDEADLK: the caller is such a function or a shrinker; ENOMEM: the library could not start. Not
 * for signal handlers.
 *
 * The function is not called for requests with __GFP_NOWARN and for kmem_group_try_charge. Nor is
 * it called for pages of alloc_pages_bulk, nor for a product of sizes that overflows. A request
 * with __GFP_NOFAIL calls it when it begins to wait for memory. */
int kmem_on_refusal(kmem_on_refusal_t call, void *data) __attribute__((weak));

/* Copies the name of a refusal's call site with its zero byte to `room` bytes at `text`:
 * "file:line func:name", or "module+0xoffset:0 func:module+0xoffset". Returns the length.
 * ERANGE: `room` is too small; 401 bytes are enough. EFAULT: a pointer is null. */
int kmem_refusal_site(const struct kmem_refusal *refusal, char *text, size_t room)
	__attribute__((weak));

#define kmem_on_refusal(call, data) KMEM_OR_(kmem_on_refusal, kmem_on_refusal(call, data))
#define kmem_refusal_site(refusal, text, room)                                                     \
	KMEM_OR_(kmem_refusal_site, kmem_refusal_site(refusal, text, room))

#ifdef __cplusplus
}
#endif

#endif /* KMEM_REFUSAL_H */
