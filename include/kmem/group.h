/* Groups of allocations, each with a limit on the memory it pays for. kmem.h includes this header;
 * it also works alone.
 *
 *	kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
 *	kmem_group_set(tenant, KMEM_GROUP_MAX, 64 << 20);
 *	int64_t token = kmem_group_enter(tenant);
 *	.. malloc, operator new, kmalloc, ..: the tenant pays until each is freed, on any thread ..
 *	kmem_group_leave(token);
 *
 * Every function returns a negative error number (-ESRCH, ..) on failure, and then has changed
 * nothing. None sets errno or throws. None waits for callbacks on other threads, except
 * kmem_group_remove_shrinker. Any thread may call them. Signal handlers may call
 * kmem_group_enter, kmem_group_leave, kmem_group_switch and kmem_group_current only. Errors of all
 * functions:
 *
 *	EINVAL	no group has this number: it is 0, negative (an earlier error), or too large
 *	ESRCH	there is no such group; the number of a deleted one is never used again
 *	EFAULT	a pointer is null
 *	ENOTSUP	there are no groups without books (KMEM_CONF=mem_profiling:never), but with
 *		groups:always beside it
 *	ENOSYS	libkmem.so is not loaded
 *
 * The program runs with or without libkmem.so, preloaded or linked. The functions are weak, so a
 * linker with -Wl,--as-needed drops the library: then link with -Wl,--no-as-needed -lkmem. */
#ifndef KMEM_GROUP_H
#define KMEM_GROUP_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The number of a group, greater than 0. */
typedef int64_t kmem_group_t;
/* The root group, which pays for all memory of no other group. It has no limits and cannot be
 * deleted. */
#define KMEM_GROUP_ROOT ((kmem_group_t)1 << 14)
/* Bytes of the longest name of a group, with its zero byte. */
#define KMEM_GROUP_NAME_SIZE 256

enum kmem_group_limit {
	/* Above this, shrinkers are called; if they free too little, requests fail. */
	KMEM_GROUP_MAX,
	/* Above this, shrinkers are called. */
	KMEM_GROUP_HIGH,
	/* Up to this, the group's shrinkers are spared when a group above it needs memory. */
	KMEM_GROUP_LOW,
};
/* Value of `max` and `high` without a limit; `low` has 0 then. */
#define KMEM_GROUP_NO_LIMIT UINT64_MAX

/* Usage and limits of a group, in bytes. */
struct kmem_group_stat {
	/* Size of the structure, set by the caller with KMEM_GROUP_STAT_INIT. */
	uint64_t size;
	/* Live allocations with their metadata, and reservations: of the group and all groups below
	 * it; of the group alone. */
	uint64_t current, own;
	/* The part of `own` that kmem_group_try_charge reserved. */
	uint64_t reserved;
	/* Charged beyond `current`: CPUs keep it for the next allocations. */
	uint64_t cached;
	/* The highest `current + cached` since kmem_group_reset_peak. */
	uint64_t peak;
	uint64_t max, high, low;
	/* Counts of calls of shrinkers below `low`; of excesses of `high`; of requests that would
	 * have exceeded `max`; of requests that failed or exceeded `max`. */
	uint64_t low_events, high_events, max_events, oom_events;
	/* 1 if a request that must not fail exceeded `max` since kmem_group_reset_peak, else 0. */
	uint64_t over_limit;
};
#define KMEM_GROUP_STAT_INIT                                                                       \
	{ sizeof(struct kmem_group_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Bytes of live allocations of a group and all groups below it by kind, metadata included. */
struct kmem_group_kinds {
	/* Size of the structure, set by the caller with KMEM_GROUP_KINDS_INIT. */
	uint64_t size;
	/* Objects of slabs; pages and large blocks of malloc; areas of vmalloc; per-CPU objects,
	 * one copy of each. */
	uint64_t slab, pages, vmalloc, percpu;
};
#define KMEM_GROUP_KINDS_INIT { sizeof(struct kmem_group_kinds), 0, 0, 0, 0 }

/* A shrinker: frees about `bytes` bytes of the group, and returns the number of bytes freed. The
 * library calls it on any thread that allocates, which may hold locks of the program. So it must
 * wait for no lock. Its own allocations exceed the limits and call no shrinker. It must return: no
 * longjmp, no exception. */
typedef size_t (*kmem_shrink_t)(void *data, kmem_group_t group, size_t bytes);
struct kmem_shrinker;

/* -- Groups ------------------------------------------------------------------------------------ */

/* Makes a group below `parent` and returns its number. A name is 1 to 255 bytes of UTF-8 without
 * '/', and not "." or "..". EINVAL: no such name; EEXIST: the parent has a group of that name;
 * ENOSPC: there are as many groups as there can be at a time; ELOOP: more than 32 levels; ENOMEM:
 * the library could not start. When few numbers are free, a call also gives live allocations of
 * deleted groups to their parents, a part of the heap at a time. */
kmem_group_t kmem_group_create(kmem_group_t parent, const char *name) __attribute__((weak));
/* Returns the group at a path from the root ("a/b/c"; "" is the root). ESRCH: there is none. */
kmem_group_t kmem_group_find(const char *path) __attribute__((weak));
/* Deletes a group, without a look at its allocations. From now on its parent pays for them, and for
 * allocations of threads in the group. Its name can be used again at once. Returns 0. EBUSY: there
 * are groups below it; EPERM: it is the root. */
int kmem_group_delete(kmem_group_t group) __attribute__((weak));
/* Copies a group's name with its zero byte to `room` bytes at `name`, and returns the name's
 * length. The root's name is "". ERANGE: `room` is too small. */
int kmem_group_name(kmem_group_t group, char *name, size_t room) __attribute__((weak));
/* Returns the group's parent; 0 for the root. */
kmem_group_t kmem_group_parent(kmem_group_t group) __attribute__((weak));
/* Returns the number of deleted groups whose numbers are not free yet: those that have allocations,
 * reservations or threads in them. */
int kmem_group_dying(void) __attribute__((weak));

/* Sets a limit of a group to any number of bytes, and returns 0. If the group has more, its
 * shrinkers are called. Memory that is left above `max` stays allocated, and further requests fail.
 * EPERM: it is the root. */
int kmem_group_set(kmem_group_t group, enum kmem_group_limit limit, uint64_t bytes)
	__attribute__((weak));
/* Fills `stat` in and returns 0. EINVAL: the library knows no version of the structure of that
 * size. */
int kmem_group_stat(kmem_group_t group, struct kmem_group_stat *stat) __attribute__((weak));
/* Fills `kinds` in and returns 0; reads all objects of the heap for it. EINVAL: as for
 * kmem_group_stat. */
int kmem_group_kinds(kmem_group_t group, struct kmem_group_kinds *kinds) __attribute__((weak));
/* Sets `peak` to the present usage and `over_limit` to 0. Returns 0. */
int kmem_group_reset_peak(kmem_group_t group) __attribute__((weak));
/* Adds 1 to an eventfd at each event of the group from now on; with -1, to none. Returns 0. EBADF:
 * `eventfd` is not open. */
int kmem_group_notify(kmem_group_t group, int eventfd) __attribute__((weak));

/* -- Who pays ---------------------------------------------------------------------------------- */

/* Begins a scope in which the group pays for allocations of the calling thread. Returns a token for
 * kmem_group_leave, 0 or greater. Scopes nest; the innermost one pays. A signal handler works for
 * the group of the thread that it interrupts. It may enter KMEM_GROUP_ROOT, and leave it at its
 * end. */
int64_t kmem_group_enter(kmem_group_t group) __attribute__((weak));
/* Ends the scope of the token, and returns 0. EINVAL: the token is an error of kmem_group_enter, or
 * not that of the thread's innermost scope. No two scopes have the same token. Those of a thread
 * count up by 1. A thread that ends leaves its open scopes. */
int kmem_group_leave(int64_t token) __attribute__((weak));
/* Pins a group for kmem_group_switch, until kmem_group_unpin. It may be deleted meanwhile: then its
 * parent pays. Returns 0. */
int kmem_group_pin(kmem_group_t group) __attribute__((weak));
/* Removes a pin, by which no thread is in the group any more. Returns 0. ESRCH: there is none. */
int kmem_group_unpin(kmem_group_t group) __attribute__((weak));
/* Makes a group that the caller has pinned, or the root, that of the calling thread. Returns a
 * number for the switch back, 0 or greater. The same thread passes it to this function, while the
 * group from before is pinned. This costs a few instructions, and a scope of kmem_group_enter two
 * atomic operations. A thread may end in a group that it switched to. (Linux: set_active_memcg.) */
int64_t kmem_group_switch(int64_t group) __attribute__((weak));
/* Returns the group of the calling thread. */
kmem_group_t kmem_group_current(void) __attribute__((weak));
/* Returns the group that pays for a live allocation. EINVAL: it is null. An address that is no live
 * allocation is reported and ends the program. */
kmem_group_t kmem_group_of(const void *allocation) __attribute__((weak));
/* Returns the group that pays for the live allocation in which an address lies. It tells of any
 * address, as /proc/kpagecgroup of a page. Another thread may free the allocation meanwhile.
 * ENOENT: no live allocation is there, or a per-CPU object is. With mem_profiling:never it cannot
 * tell free objects from those of the root, and returns the root for both. */
kmem_group_t kmem_group_of_address(const void *address) __attribute__((weak));

/* Charges `bytes` to the group without an allocation, to reserve them before a large piece of work.
 * Returns 0. ENOMEM: the group would exceed its max. */
int kmem_group_try_charge(kmem_group_t group, uint64_t bytes) __attribute__((weak));
/* Gives bytes of kmem_group_try_charge back, even if the group was deleted. Returns 0. EINVAL:
 * fewer bytes are reserved. */
int kmem_group_uncharge(kmem_group_t group, uint64_t bytes) __attribute__((weak));

/* Adds a shrinker and stores it in `*shrinker`. `shrink` is called with `data` on any thread, when
 * the group must free memory. Returns 0. ENOMEM: there is no memory. */
int kmem_group_add_shrinker(kmem_group_t group, kmem_shrink_t shrink, void *data,
			    struct kmem_shrinker **shrinker) __attribute__((weak));
/* Removes a shrinker, waits until no thread runs it any more, and returns 0. EDEADLK: the caller is
 * a shrinker. */
int kmem_group_remove_shrinker(struct kmem_shrinker *shrinker) __attribute__((weak));

#define KMEM_OR_(function, call) (function ? (call) : -ENOSYS)
#define kmem_group_create(parent, name) KMEM_OR_(kmem_group_create, kmem_group_create(parent, name))
#define kmem_group_find(path) KMEM_OR_(kmem_group_find, kmem_group_find(path))
#define kmem_group_delete(group) KMEM_OR_(kmem_group_delete, kmem_group_delete(group))
#define kmem_group_name(group, name, room)                                                         \
	KMEM_OR_(kmem_group_name, kmem_group_name(group, name, room))
#define kmem_group_parent(group) KMEM_OR_(kmem_group_parent, kmem_group_parent(group))
#define kmem_group_dying() KMEM_OR_(kmem_group_dying, kmem_group_dying())
#define kmem_group_set(group, limit, bytes)                                                        \
	KMEM_OR_(kmem_group_set, kmem_group_set(group, limit, bytes))
#define kmem_group_stat(group, stat) KMEM_OR_(kmem_group_stat, kmem_group_stat(group, stat))
#define kmem_group_kinds(group, kinds) KMEM_OR_(kmem_group_kinds, kmem_group_kinds(group, kinds))
#define kmem_group_reset_peak(group) KMEM_OR_(kmem_group_reset_peak, kmem_group_reset_peak(group))
#define kmem_group_notify(group, eventfd)                                                          \
	KMEM_OR_(kmem_group_notify, kmem_group_notify(group, eventfd))
#define kmem_group_enter(group) KMEM_OR_(kmem_group_enter, kmem_group_enter(group))
#define kmem_group_leave(token) KMEM_OR_(kmem_group_leave, kmem_group_leave(token))
#define kmem_group_pin(group) KMEM_OR_(kmem_group_pin, kmem_group_pin(group))
#define kmem_group_unpin(group) KMEM_OR_(kmem_group_unpin, kmem_group_unpin(group))
#define kmem_group_switch(group) KMEM_OR_(kmem_group_switch, kmem_group_switch(group))
#define kmem_group_current() KMEM_OR_(kmem_group_current, kmem_group_current())
#define kmem_group_of(allocation) KMEM_OR_(kmem_group_of, kmem_group_of(allocation))
#define kmem_group_of_address(address)                                                             \
	KMEM_OR_(kmem_group_of_address, kmem_group_of_address(address))
#define kmem_group_try_charge(group, bytes)                                                        \
	KMEM_OR_(kmem_group_try_charge, kmem_group_try_charge(group, bytes))
#define kmem_group_uncharge(group, bytes)                                                          \
	KMEM_OR_(kmem_group_uncharge, kmem_group_uncharge(group, bytes))
#define kmem_group_add_shrinker(group, shrink, data, shrinker)                                     \
	KMEM_OR_(kmem_group_add_shrinker, kmem_group_add_shrinker(group, shrink, data, shrinker))
#define kmem_group_remove_shrinker(shrinker)                                                       \
	KMEM_OR_(kmem_group_remove_shrinker, kmem_group_remove_shrinker(shrinker))

#ifdef __cplusplus
}

namespace kmem
{
/* Owner of a group. Its destructor deletes the group, whose parent pays for its memory then.
 *
 *	kmem::group tenant("tenant");
 *	if (!tenant)
 *		return tenant.error(); */
class group {
public:
	explicit group(const char *name, kmem_group_t parent = KMEM_GROUP_ROOT) noexcept
		: id_(kmem_group_create(parent, name))
	{
	}
	group(group &&other) noexcept : id_(other.release())
	{
	}
	group &operator=(group &&other) noexcept
	{
		kmem_group_t id = other.release();
		reset();
		id_ = id;
		return *this;
	}
	~group()
	{
		reset();
	}
	group(const group &) = delete;
	group &operator=(const group &) = delete;

	explicit operator bool() const noexcept
	{
		return id_ > 0;
	}
	/* The positive error number of kmem_group_create, or 0. */
	int error() const noexcept
	{
		return id_ > 0 ? 0 : (int)-id_;
	}
	/* The group's number, or a negative error number. */
	kmem_group_t id() const noexcept
	{
		return id_;
	}
	/* Gives the group up without deleting it, and returns its number. */
	kmem_group_t release() noexcept
	{
		kmem_group_t id = id_;
		id_ = -ESRCH;
		return id;
	}
	int set(kmem_group_limit limit, uint64_t bytes) const noexcept
	{
		return kmem_group_set(id_, limit, bytes);
	}
	/* The group's statistics; all 0 but `size` on failure. */
	struct kmem_group_stat stat() const noexcept
	{
		struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
		(void)kmem_group_stat(id_, &stat);
		return stat;
	}
	/* The group's bytes by kind; all 0 but `size` on failure. */
	struct kmem_group_kinds kinds() const noexcept
	{
		struct kmem_group_kinds kinds = KMEM_GROUP_KINDS_INIT;
		(void)kmem_group_kinds(id_, &kinds);
		return kinds;
	}

private:
	void reset() noexcept
	{
		if (id_ > 0)
			(void)kmem_group_delete(id_);
	}

	kmem_group_t id_;
};

/* Scope of the thread that makes it: while the object lives, the group pays for allocations. */
class group_scope {
public:
	explicit group_scope(kmem_group_t group) noexcept : token_(kmem_group_enter(group))
	{
	}
	explicit group_scope(const group &group) noexcept : group_scope(group.id())
	{
	}
	~group_scope()
	{
		(void)kmem_group_leave(token_);
	}
	group_scope(const group_scope &) = delete;
	group_scope &operator=(const group_scope &) = delete;

	/* True if the thread is in the group. */
	explicit operator bool() const noexcept
	{
		return token_ >= 0;
	}

private:
	int64_t token_;
};

/* A pin of a group, for scopes that begin and end often. It outlives them. */
class group_pin {
public:
	explicit group_pin(kmem_group_t group) noexcept : id_(group), error_(-kmem_group_pin(group))
	{
	}
	explicit group_pin(const group &group) noexcept : group_pin(group.id())
	{
	}
	~group_pin()
	{
		if (error_ == 0)
			(void)kmem_group_unpin(id_);
	}
	group_pin(const group_pin &) = delete;
	group_pin &operator=(const group_pin &) = delete;

	explicit operator bool() const noexcept
	{
		return error_ == 0;
	}
	/* The positive error number of kmem_group_pin, or 0. */
	int error() const noexcept
	{
		return error_;
	}
	/* The group's number, or a negative error number. */
	kmem_group_t id() const noexcept
	{
		return error_ == 0 ? id_ : -error_;
	}

private:
	kmem_group_t id_;
	int error_;
};

/* Scope of the thread that makes it, as a group_scope. It costs a few instructions. */
class group_switch {
public:
	explicit group_switch(const group_pin &pin) noexcept : before_(kmem_group_switch(pin.id()))
	{
	}
	~group_switch()
	{
		(void)kmem_group_switch(before_);
	}
	group_switch(const group_switch &) = delete;
	group_switch &operator=(const group_switch &) = delete;

	/* True if the thread is in the group. */
	explicit operator bool() const noexcept
	{
		return before_ >= 0;
	}

private:
	int64_t before_;
};
} // namespace kmem
#endif

#endif /* KMEM_GROUP_H */
