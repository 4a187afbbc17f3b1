/* Groups: who pays for memory, up to which limit. kmem.h includes this; it also stands alone.
 *
 *	kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
 *	kmem_group_set(tenant, KMEM_GROUP_MAX, 64 << 20);
 *	int64_t token = kmem_group_enter(tenant);
 *	.. malloc, operator new, kmalloc, ..: the tenant pays, until each is freed, whoever frees it ..
 *	kmem_group_leave(token);
 *
 * Every function returns a negative error number (-ESRCH, ..) if it cannot do what it is asked, and then nothing has
 * changed; none sets errno, throws or waits for other threads' callbacks but kmem_group_remove_shrinker. Not for signal
 * handlers. What all have in common:
 *
 *	EINVAL	not a group's number: 0, negative (the error of a call before), or none that could be
 *	ESRCH	no such group, or not any more: a number is not given twice
 *	EFAULT	a null pointer
 *	ENOTSUP	no groups without books (KMEM_CONF=mem_profiling:never)
 *	ENOSYS	libkmem.so is not there
 *
 * The program runs with or without libkmem.so, preloaded or linked. Nothing here makes a linker take it along that was
 * told to leave out what is not needed (-Wl,--as-needed): then link with -Wl,--no-as-needed -lkmem. */
#ifndef KMEM_GROUP_H
#define KMEM_GROUP_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group's number, above zero. */
typedef int64_t kmem_group_t;
/* What nobody else pays for. It has no limits, and cannot be deleted. */
#define KMEM_GROUP_ROOT ((kmem_group_t)1 << 14)
/* Room for any group's name with its zero byte. */
#define KMEM_GROUP_NAME_SIZE 256

enum kmem_group_limit {
	/* Above this, requests are refused, when shrinkers did not help. */
	KMEM_GROUP_MAX,
	/* Above this, shrinkers are called. */
	KMEM_GROUP_HIGH,
	/* Up to this, the group is spared when one above it needs memory back. */
	KMEM_GROUP_LOW,
};
/* No `max` or `high`; of `low`, 0 is none. */
#define KMEM_GROUP_NO_LIMIT UINT64_MAX

/* What a group holds and may hold, in bytes. */
struct kmem_group_stat {
	/* The caller says how large its structure is: KMEM_GROUP_STAT_INIT does. */
	uint64_t size;
	/* Live allocations with their metadata, and reservations, of it and of all below it; of its own. */
	uint64_t current, own;
	/* Of its own, what is reserved: kmem_group_try_charge. */
	uint64_t reserved;
	/* Charged beyond `current`, and ready on CPUs for the next allocations. */
	uint64_t cached;
	/* The highest `current + cached` since it was last reset. */
	uint64_t peak;
	uint64_t max, high, low;
	/* How often: its shrinkers had to be called although it was below `low`; it was above `high`; it was about to
	 * go above `max`; a request was refused, or went above `max` because it could not be. */
	uint64_t low_events, high_events, max_events, oom_events;
	/* 1: a request that could not be refused went above `max`, since the peak was last reset. */
	uint64_t over_limit;
};
#define KMEM_GROUP_STAT_INIT { sizeof(struct kmem_group_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* What its live allocations are, in bytes with their metadata; of it and of all below it. */
struct kmem_group_kinds {
	/* As of kmem_group_stat: KMEM_GROUP_KINDS_INIT. */
	uint64_t size;
	/* Objects of slabs; pages, large blocks of malloc included; areas of vmalloc; per-CPU objects, one copy of each. */
	uint64_t slab, pages, vmalloc, percpu;
};
#define KMEM_GROUP_KINDS_INIT { sizeof(struct kmem_group_kinds), 0, 0, 0, 0 }

/* Frees about so many bytes of the group if it can; returns how many it freed. Called on a thread that allocates, whatever
 * locks of the program it holds: what cannot be had without waiting must be left alone. What it allocates itself is
 * granted, and calls no shrinker. It must return: no longjmp, no exception. */
typedef size_t (*kmem_shrink_t)(void *data, kmem_group_t group, size_t bytes);
struct kmem_shrinker;

/* -- Groups -------------------------------------------------------------------------------------------------------- */

/* A new group below `parent`, or: EINVAL: a name is 1 to 255 bytes of UTF-8 without '/', and not "." or ".."; EEXIST; ENOSPC:
 * there are as many groups as there can be; ELOOP: more than 32 levels; ENOMEM: the library could not start. */
kmem_group_t kmem_group_create(kmem_group_t parent, const char *name) __attribute__((weak));
/* The group at a path from the root, "a/b/c"; "" is the root. */
kmem_group_t kmem_group_find(const char *path) __attribute__((weak));
/* Deletes it in a moment, whatever it holds: its parent pays from now on, also for what threads in it allocate. Its
 * name is free at once. EBUSY: there are groups below it; EPERM: the root. */
int kmem_group_delete(kmem_group_t group) __attribute__((weak));
/* Copies its name ("" for the root) with a zero byte; its length. ERANGE: there is no room. */
int kmem_group_name(kmem_group_t group, char *name, size_t room) __attribute__((weak));
/* The group it is below; of the root, 0. */
kmem_group_t kmem_group_parent(kmem_group_t group) __attribute__((weak));
/* Deleted groups that something is still charged to, or some thread is in. */
int kmem_group_dying(void) __attribute__((weak));

/* Sets a limit. A group that holds more has its shrinkers called; what is left above `max` stays, and nothing more is
 * granted. Any number of bytes will do, 0 as well. EPERM: the root. */
int kmem_group_set(kmem_group_t group, enum kmem_group_limit limit, uint64_t bytes) __attribute__((weak));
/* EINVAL: `size` is that of no version of the structure that the library knows. */
int kmem_group_stat(kmem_group_t group, struct kmem_group_stat *stat) __attribute__((weak));
/* The same by kinds; takes time with the number of objects of the heap. */
int kmem_group_kinds(kmem_group_t group, struct kmem_group_kinds *kinds) __attribute__((weak));
/* Starts `peak` anew, and takes `over_limit` back. */
int kmem_group_reset_peak(kmem_group_t group) __attribute__((weak));
/* Adds 1 to an eventfd at each event; -1: to none any more. EBADF: it is not open. */
int kmem_group_notify(kmem_group_t group, int eventfd) __attribute__((weak));

/* -- Who pays ------------------------------------------------------------------------------------------------------ */

/* Has the group pay for what the calling thread allocates from now on; what kmem_group_leave wants back. Scopes nest, the
 * innermost counts. If it fails, the thread stays in the group it is in. */
int64_t kmem_group_enter(kmem_group_t group) __attribute__((weak));
/* Goes back. EINVAL, and nothing changes: the token is none (an error of kmem_group_enter may be given here), or not that of the
 * scope the thread is in. */
int kmem_group_leave(int64_t token) __attribute__((weak));
/* The group of the calling thread. */
kmem_group_t kmem_group_current(void) __attribute__((weak));
/* The group that pays for a live allocation. (What is none ends the program, as in malloc_usable_size.) EINVAL: null. */
kmem_group_t kmem_group_of(const void *allocation) __attribute__((weak));

/* Charges bytes that are not allocated yet, before large work is begun; ENOMEM: the group is at its max. */
int kmem_group_try_charge(kmem_group_t group, uint64_t bytes) __attribute__((weak));
/* Takes that back, also after the group was deleted. EINVAL, and nothing changes: so much is not reserved. */
int kmem_group_uncharge(kmem_group_t group, uint64_t bytes) __attribute__((weak));

/* Has `shrink` called with `data` when the group is to give memory back, on any thread, until it is removed. */
int kmem_group_add_shrinker(kmem_group_t group, kmem_shrink_t shrink, void *data, struct kmem_shrinker **shrinker)
	__attribute__((weak));
/* Returns when no thread is in it any more. EDEADLK, and it stays: called from within a shrinker. */
int kmem_group_remove_shrinker(struct kmem_shrinker *shrinker) __attribute__((weak));

#define KMEM_OR_(function, call) (function ? (call) : -ENOSYS)
#define kmem_group_create(parent, name) KMEM_OR_(kmem_group_create, kmem_group_create(parent, name))
#define kmem_group_find(path) KMEM_OR_(kmem_group_find, kmem_group_find(path))
#define kmem_group_delete(group) KMEM_OR_(kmem_group_delete, kmem_group_delete(group))
#define kmem_group_name(group, name, room) KMEM_OR_(kmem_group_name, kmem_group_name(group, name, room))
#define kmem_group_parent(group) KMEM_OR_(kmem_group_parent, kmem_group_parent(group))
#define kmem_group_dying() KMEM_OR_(kmem_group_dying, kmem_group_dying())
#define kmem_group_set(group, limit, bytes) KMEM_OR_(kmem_group_set, kmem_group_set(group, limit, bytes))
#define kmem_group_stat(group, stat) KMEM_OR_(kmem_group_stat, kmem_group_stat(group, stat))
#define kmem_group_kinds(group, kinds) KMEM_OR_(kmem_group_kinds, kmem_group_kinds(group, kinds))
#define kmem_group_reset_peak(group) KMEM_OR_(kmem_group_reset_peak, kmem_group_reset_peak(group))
#define kmem_group_notify(group, eventfd) KMEM_OR_(kmem_group_notify, kmem_group_notify(group, eventfd))
#define kmem_group_enter(group) KMEM_OR_(kmem_group_enter, kmem_group_enter(group))
#define kmem_group_leave(token) KMEM_OR_(kmem_group_leave, kmem_group_leave(token))
#define kmem_group_current() KMEM_OR_(kmem_group_current, kmem_group_current())
#define kmem_group_of(allocation) KMEM_OR_(kmem_group_of, kmem_group_of(allocation))
#define kmem_group_try_charge(group, bytes) KMEM_OR_(kmem_group_try_charge, kmem_group_try_charge(group, bytes))
#define kmem_group_uncharge(group, bytes) KMEM_OR_(kmem_group_uncharge, kmem_group_uncharge(group, bytes))
#define kmem_group_add_shrinker(group, shrink, data, shrinker)                                                         \
	KMEM_OR_(kmem_group_add_shrinker, kmem_group_add_shrinker(group, shrink, data, shrinker))
#define kmem_group_remove_shrinker(shrinker) KMEM_OR_(kmem_group_remove_shrinker, kmem_group_remove_shrinker(shrinker))

#ifdef __cplusplus
}

namespace kmem
{
/* A group that is deleted when its object goes; what it holds is its parent's then.
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
	/* The error number of its making, 0 for none. */
	int error() const noexcept
	{
		return id_ > 0 ? 0 : (int)-id_;
	}
	/* Its number, or the negative error. */
	kmem_group_t id() const noexcept
	{
		return id_;
	}
	/* Leaves the group there for good. */
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
	/* All zeroes if there is no such group; the next one, too. */
	struct kmem_group_stat stat() const noexcept
	{
		struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
		(void)kmem_group_stat(id_, &stat);
		return stat;
	}
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

/* While it lives, a group pays for what its thread allocates. */
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

	/* Whether the thread is in the group. */
	explicit operator bool() const noexcept
	{
		return token_ >= 0;
	}

private:
	int64_t token_;
};
} // namespace kmem
#endif

#endif /* KMEM_GROUP_H */
