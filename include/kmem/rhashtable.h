/* Hash tables that grow and shrink while threads use them without locks. kmem.h includes this
 * header; it also works alone.
 *
 *	struct entry { int key; struct rhash_head node; .. };
 *	static const struct rhashtable_params params = {
 *		.key_len = sizeof(int), .key_offset = offsetof(struct entry, key),
 *		.head_offset = offsetof(struct entry, node), .automatic_shrinking = true,
 *		.obj_freefn = free_entry,
 *	};
 *	struct rhashtable table;
 *	rhashtable_init(&table, &params);
 *	rhashtable_insert_fast(&table, &entry->node, params);
 *	int side = rhashtable_read_lock(&table);
 *	struct entry *found = rhashtable_lookup_fast(&table, &key, params);
 *	rhashtable_read_unlock(&table, side);
 *
 * Names and meanings are those of Linux (include/linux/rhashtable.h), with these differences:
 *
 *	- A reader of objects that another thread may remove holds the table's read lock, as by
 *	  srcu_read_lock. Neither readers nor writers wait for it. When no reader has a removed or
 *	  replaced object any more, `obj_freefn` gets it: there is no call_rcu.
 *	- A table allocates a word for each object, so insert and replace can fail with -ENOMEM. All
 *	  memory of a table is billed to the line of rhashtable_init. The group of the thread that
 *	  inserts pays. The object file with that line must stay loaded as long as the table exists.
 *	- rhashtable_insert_fast fails for a key in the table, as rhashtable_lookup_insert_fast
 *	  does.
 *	- A walk does not start over when the table is resized.
 *	- The parameters of rhashtable_init hold; `params` of other functions is ignored.
 *
 * Any thread and any signal handler may call these functions. None sets errno. Errors are negative
 * numbers: EINVAL (the table has no rhashtable_init; bad parameters), ENOMEM, EEXIST, ENOENT,
 * E2BIG, ENOSYS (libkmem.so is not loaded, see kmem/group.h). A child that is forked while another
 * thread uses a table may read it, but objects that the child removes are not freed. */
#ifndef KMEM_RHASHTABLE_H
#define KMEM_RHASHTABLE_H

#include "tag.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A member that each object must have. */
struct rhash_head {
	struct rhash_head *next;
};

struct kmem_rhashtable;
/* A handle of a table. All zero, or after a failed rhashtable_init, it has no table. */
struct rhashtable {
	struct kmem_rhashtable *table;
};

struct rhashtable_compare_arg {
	struct rhashtable *ht;
	const void *key;
};

/* Return the hash of a key of `len` bytes, and that of an object. */
typedef uint32_t (*rht_hashfn_t)(const void *data, uint32_t len, uint32_t seed);
typedef uint32_t (*rht_obj_hashfn_t)(const void *data, uint32_t len, uint32_t seed);
/* Returns 0 if the object has the key of `arg`. */
typedef int (*rht_obj_cmpfn_t)(struct rhashtable_compare_arg *arg, const void *obj);

struct rhashtable_params {
	/* Ignored. */
	uint16_t nelem_hint;
	/* Length of a key, and offsets of the key and the rhash_head in an object, in bytes. */
	uint16_t key_len, key_offset, head_offset;
	/* Most buckets, rounded down to a power of two (0: 2^31). A table has at most 2 *
	 * `max_size` objects. */
	unsigned int max_size;
	/* Fewest buckets, rounded up to a power of two (0: 64). */
	uint16_t min_size;
	bool automatic_shrinking;
	/* Hash a key, hash an object, compare. Without a function, the bytes of the key are hashed
	 * or compared. `obj_hashfn` needs `obj_cmpfn`. */
	rht_hashfn_t hashfn;
	rht_obj_hashfn_t obj_hashfn;
	rht_obj_cmpfn_t obj_cmpfn;
	/* Gets each removed or replaced object, on any thread that changes the table; may be
	 * null. */
	void (*obj_freefn)(void *obj);
};

/* A walk over all objects. */
struct rhashtable_iter {
	struct rhashtable *ht;
	uint64_t position;
	void *last;
	const void *place;
	int side;
};

/* A table in which several objects may have one key, and the member that its objects must have. */
struct rhltable {
	struct rhashtable ht;
};
struct rhlist_head {
	struct rhash_head rhead;
	const void *place;
};

int kmem_rhashtable_init_tag(struct rhashtable *ht, const struct rhashtable_params *params,
			     const struct kmem_alloc_tag *tag) __attribute__((weak));
int kmem_rhashtable_init_noprof(struct rhashtable *ht, const struct rhashtable_params *params)
	__attribute__((weak));
void *kmem_rhashtable_lookup(struct rhashtable *ht, const void *key) __attribute__((weak));
int kmem_rhashtable_insert(struct rhashtable *ht, struct rhash_head *obj) __attribute__((weak));
int kmem_rhashtable_remove(struct rhashtable *ht, struct rhash_head *obj) __attribute__((weak));
int kmem_rhashtable_replace(struct rhashtable *ht, struct rhash_head *obj_old,
			    struct rhash_head *obj_new) __attribute__((weak));
int kmem_rhashtable_nelems(struct rhashtable *ht) __attribute__((weak));
int kmem_rhashtable_read_lock(struct rhashtable *ht) __attribute__((weak));
void kmem_rhashtable_read_unlock(struct rhashtable *ht, int side) __attribute__((weak));
void *kmem_rhashtable_walk_next(struct rhashtable_iter *iter) __attribute__((weak));
int kmem_rhashtable_free_and_destroy(struct rhashtable *ht, void (*free_fn)(void *ptr, void *arg),
				     void *arg) __attribute__((weak));
int kmem_rhltable_insert(struct rhashtable *ht, struct rhlist_head *list) __attribute__((weak));
struct rhlist_head *kmem_rhltable_lookup(struct rhashtable *ht, const void *key)
	__attribute__((weak));
struct rhlist_head *kmem_rhltable_next(const struct rhlist_head *list) __attribute__((weak));

#define KMEM_RHT_OR_(otherwise, function, ...) (function ? function(__VA_ARGS__) : (otherwise))

/* Makes the table of a handle and returns 0. EINVAL: a pointer is null, or `params` defines no key
 * or no comparison. */
#define rhashtable_init(ht, params)                                                                \
	KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_init_tag, ht, params, KMEM_TAG())
/* As rhashtable_init, but bills the thread's scope: for alloc_hooks_tag. */
#define rhashtable_init_noprof(ht, params)                                                         \
	KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_init_noprof, ht, params)
/* Returns the object with a key, or NULL. */
#define rhashtable_lookup_fast(ht, key, params)                                                    \
	((void)(params), KMEM_RHT_OR_(NULL, kmem_rhashtable_lookup, ht, key))
#define rhashtable_lookup(ht, key, params) rhashtable_lookup_fast(ht, key, params)
/* Inserts an object, given by its rhash_head, and returns 0. EEXIST: the table has an object with
 * that key. E2BIG: it has 2 * `max_size` objects. */
#define rhashtable_insert_fast(ht, obj, params)                                                    \
	((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_insert, ht, obj))
#define rhashtable_lookup_insert_fast(ht, obj, params) rhashtable_insert_fast(ht, obj, params)
/* Removes an object, given by its rhash_head, and returns 0. ENOENT: this object is not in the
 * table. */
#define rhashtable_remove_fast(ht, obj, params)                                                    \
	((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_remove, ht, obj))
/* Replaces an object in one step: a reader finds the old one or the new one. Returns 0. EINVAL:
 * their hashes differ. ENOENT: the old one is not in the table. */
#define rhashtable_replace_fast(ht, obj_old, obj_new, params)                                      \
	((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_replace, ht, obj_old, obj_new))
/* Returns the approximate number of objects. */
#define rhashtable_nelems(ht) KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_nelems, ht)

/* Takes the read lock, and returns a number, 0 or greater, for rhashtable_read_unlock. Never waits,
 * and nests. Another thread may unlock. */
#define rhashtable_read_lock(ht) KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_read_lock, ht)
#define rhashtable_read_unlock(ht, side)                                                           \
	KMEM_RHT_OR_((void)0, kmem_rhashtable_read_unlock, ht, side)

/* A walk returns each object that is in the table all the time once. The objects may be used until
 * rhashtable_walk_stop. A walk that starts again goes on where it stopped. If the last returned
 * object is removed meanwhile, others with its hash may be missed or come again. One thread at a
 * time may use an iterator. */
static inline void rhashtable_walk_enter(struct rhashtable *ht, struct rhashtable_iter *iter)
{
	iter->ht = ht;
	iter->position = 0;
	iter->last = NULL;
	iter->place = NULL;
	iter->side = -EINVAL;
}
static inline void rhashtable_walk_start(struct rhashtable_iter *iter)
{
	iter->side = rhashtable_read_lock(iter->ht);
}
/* Returns the next object. NULL: the walk is at its end, or was not started. */
#define rhashtable_walk_next(iter) KMEM_RHT_OR_(NULL, kmem_rhashtable_walk_next, iter)
static inline void rhashtable_walk_stop(struct rhashtable_iter *iter)
{
	rhashtable_read_unlock(iter->ht, iter->side);
	iter->side = -EINVAL;
	iter->place = NULL;
}
static inline void rhashtable_walk_exit(struct rhashtable_iter *iter)
{
	iter->ht = NULL;
}

/* Destroys a table that no other thread uses any more. `free_fn`, if not null, gets each object in
 * it; `obj_freefn` gets those that were removed before. */
#define rhashtable_free_and_destroy(ht, free_fn, arg)                                              \
	((void)KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_free_and_destroy, ht, free_fn, arg))
#define rhashtable_destroy(ht) rhashtable_free_and_destroy(ht, NULL, NULL)

/* -- Tables in which several objects may have one key ------------------------------------------ */

/* As for rhashtable, with a struct rhlist_head in each object, at `head_offset`. An object of a key
 * comes before those of its key that were inserted earlier. Inserting, and going to the next, take
 * no longer for many objects of one key. Removing takes a walk over those of its key in front of
 * it. A lookup of another key may take a walk over all of them.
 *
 *	int side = rhltable_read_lock(&table);
 *	list = rhltable_lookup(&table, &key, params);
 *	rhl_for_each_entry_rcu(entry, pos, list, node)
 *		use(entry);
 *	rhltable_read_unlock(&table, side); */
#define rhltable_init(hlt, params) rhashtable_init(&(hlt)->ht, params)
#define rhltable_init_noprof(hlt, params) rhashtable_init_noprof(&(hlt)->ht, params)
/* Inserts an object, given by its rhlist_head, and returns 0. E2BIG: the table has 2 * `max_size`
 * objects. */
#define rhltable_insert(hlt, list, params)                                                         \
	((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhltable_insert, &(hlt)->ht, list))
/* As rhltable_insert. The key is that of the object, so `key` is ignored. */
#define rhltable_insert_key(hlt, key, list, params)                                                \
	((void)(key), rhltable_insert(hlt, list, params))
/* Returns the rhlist_head of the first object with a key, or NULL. */
#define rhltable_lookup(hlt, key, params)                                                          \
	((void)(params), KMEM_RHT_OR_(NULL, kmem_rhltable_lookup, &(hlt)->ht, key))
/* Removes an object, given by its rhlist_head, and returns 0. ENOENT: this object is not in the
 * table. */
#define rhltable_remove(hlt, list, params)                                                         \
	rhashtable_remove_fast(&(hlt)->ht, &(list)->rhead, params)
#define rhltable_read_lock(hlt) rhashtable_read_lock(&(hlt)->ht)
#define rhltable_read_unlock(hlt, side) rhashtable_read_unlock(&(hlt)->ht, side)
#define rhltable_walk_enter(hlt, iter) rhashtable_walk_enter(&(hlt)->ht, iter)
#define rhltable_free_and_destroy(hlt, free_fn, arg)                                               \
	rhashtable_free_and_destroy(&(hlt)->ht, free_fn, arg)
#define rhltable_destroy(hlt) rhltable_free_and_destroy(hlt, NULL, NULL)

/* Loop over the objects with one key: `pos` is each rhlist_head, from `list` on. The read lock is
 * held from the lookup on, also where no other thread changes the table. The object may be removed
 * in the loop. */
#define rhl_for_each_rcu(pos, list)                                                                \
	for (pos = (list); pos; pos = KMEM_RHT_OR_(NULL, kmem_rhltable_next, pos))
/* The same, with the object that contains `pos` as its `member` in `tpos`. */
#define rhl_for_each_entry_rcu(tpos, pos, list, member)                                            \
	for (pos = (list); pos && KMEM_RHL_ENTRY_(tpos, pos, member);                              \
	     pos = KMEM_RHT_OR_(NULL, kmem_rhltable_next, pos))
#define KMEM_RHL_ENTRY_(tpos, pos, member)                                                         \
	((tpos) = (__typeof__(tpos))((char *)(pos) - offsetof(__typeof__(*(tpos)), member)))

#ifdef __cplusplus
}
#endif

#endif /* KMEM_RHASHTABLE_H */
