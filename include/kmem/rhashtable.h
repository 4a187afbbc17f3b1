/* Hash tables that grow and shrink while threads use them without locks. kmem.h includes this; it also stands alone.
 *
 *	struct entry { int key; struct rhash_head node; .. };
 *	static const struct rhashtable_params params = {
 *		.key_len = sizeof(int), .key_offset = offsetof(struct entry, key),
 *		.head_offset = offsetof(struct entry, node), .automatic_shrinking = true, .obj_freefn = free_entry,
 *	};
 *	struct rhashtable table;
 *	rhashtable_init(&table, &params);
 *	rhashtable_insert_fast(&table, &entry->node, params);
 *	int side = rhashtable_read_lock(&table);
 *	struct entry *found = rhashtable_lookup_fast(&table, &key, params);
 *	rhashtable_read_unlock(&table, side);
 *
 * Names and meanings are those of Linux (include/linux/rhashtable.h), but for this:
 *
 *	- Whoever may meet an object that another thread removes holds the table's read lock (as srcu_read_lock: it
 *	  waits for nobody, and nobody waits for it). An object that was removed or replaced is given to `obj_freefn`
 *	  when no reader has it any more: there is no call_rcu.
 *	- A table keeps a word of its own for each object, so to insert and to replace may fail with -ENOMEM. All memory of
 *	  a table is billed to the line of rhashtable_init and to the group of the thread that asks for it. What is loaded with
 *	  that line stays loaded as long as the table.
 *	- rhashtable_insert_fast refuses a key that is there, as rhashtable_lookup_insert_fast does.
 *	- A walk does not start over when the table is resized.
 *	- The parameters are those given to rhashtable_init; `params` of other calls is for source compatibility.
 *
 * Nothing here sets errno. Errors are negative numbers: EINVAL (a table that was not initialised; bad parameters), ENOMEM,
 * EEXIST, ENOENT, E2BIG, ENOSYS (libkmem.so is not there, see kmem/group.h). Not for children that were forked while another
 * thread used the table: they may read it, but what they remove is not freed any more. */
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

/* A member of each object. */
struct rhash_head {
	struct rhash_head *next;
};

struct kmem_rhashtable;
/* Zeroes, and what a call of rhashtable_init failed for, are no table. */
struct rhashtable {
	struct kmem_rhashtable *table;
};

struct rhashtable_compare_arg {
	struct rhashtable *ht;
	const void *key;
};

typedef uint32_t (*rht_hashfn_t)(const void *data, uint32_t len, uint32_t seed);
typedef uint32_t (*rht_obj_hashfn_t)(const void *data, uint32_t len, uint32_t seed);
/* 0: the object has that key. */
typedef int (*rht_obj_cmpfn_t)(struct rhashtable_compare_arg *arg, const void *obj);

struct rhashtable_params {
	/* Of no use here. */
	uint16_t nelem_hint;
	/* Where the key is in an object, and the rhash_head. */
	uint16_t key_len, key_offset, head_offset;
	/* Buckets, made powers of two; 0: 2^31 and 64. At most twice as many elements as `max_size`. */
	unsigned int max_size;
	uint16_t min_size;
	bool automatic_shrinking;
	/* The hash of a key, of an object's key, and whether an object has a key; null: of its bytes. */
	rht_hashfn_t hashfn;
	rht_obj_hashfn_t obj_hashfn;
	rht_obj_cmpfn_t obj_cmpfn;
	/* Gets each object that was removed or replaced, from any thread that changes the table; null: nobody does. */
	void (*obj_freefn)(void *obj);
};

/* A walk over all objects. */
struct rhashtable_iter {
	struct rhashtable *ht;
	uint64_t position;
	void *last;
	int side;
};

int kmem_rhashtable_init_tag(struct rhashtable *ht, const struct rhashtable_params *params,
			     const struct kmem_alloc_tag *tag) __attribute__((weak));
int kmem_rhashtable_init_noprof(struct rhashtable *ht, const struct rhashtable_params *params) __attribute__((weak));
void *kmem_rhashtable_lookup(struct rhashtable *ht, const void *key) __attribute__((weak));
int kmem_rhashtable_insert(struct rhashtable *ht, struct rhash_head *obj) __attribute__((weak));
int kmem_rhashtable_remove(struct rhashtable *ht, struct rhash_head *obj) __attribute__((weak));
int kmem_rhashtable_replace(struct rhashtable *ht, struct rhash_head *obj_old, struct rhash_head *obj_new)
	__attribute__((weak));
int kmem_rhashtable_nelems(struct rhashtable *ht) __attribute__((weak));
int kmem_rhashtable_read_lock(struct rhashtable *ht) __attribute__((weak));
void kmem_rhashtable_read_unlock(struct rhashtable *ht, int side) __attribute__((weak));
void *kmem_rhashtable_walk_next(struct rhashtable_iter *iter) __attribute__((weak));
int kmem_rhashtable_free_and_destroy(struct rhashtable *ht, void (*free_fn)(void *ptr, void *arg), void *arg)
	__attribute__((weak));

#define KMEM_RHT_OR_(otherwise, function, ...) (function ? function(__VA_ARGS__) : (otherwise))

#define rhashtable_init(ht, params) KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_init_tag, ht, params, KMEM_TAG())
/* Bills the scope of the thread: for alloc_hooks_tag. */
#define rhashtable_init_noprof(ht, params) KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_init_noprof, ht, params)
/* The object with a key, or NULL. */
#define rhashtable_lookup_fast(ht, key, params) ((void)(params), KMEM_RHT_OR_(NULL, kmem_rhashtable_lookup, ht, key))
#define rhashtable_lookup(ht, key, params) rhashtable_lookup_fast(ht, key, params)
/* EEXIST: an object with that key is there. E2BIG: there are twice as many as `max_size`. */
#define rhashtable_insert_fast(ht, obj, params) ((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_insert, ht, obj))
#define rhashtable_lookup_insert_fast(ht, obj, params) rhashtable_insert_fast(ht, obj, params)
/* ENOENT: that very object is not in the table. */
#define rhashtable_remove_fast(ht, obj, params) ((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_remove, ht, obj))
/* In one step: a reader meets the one or the other. EINVAL: their hashes differ. ENOENT: the old one is not there. */
#define rhashtable_replace_fast(ht, obj_old, obj_new, params)                                                          \
	((void)(params), KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_replace, ht, obj_old, obj_new))
/* Objects, about. */
#define rhashtable_nelems(ht) KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_nelems, ht)

/* Nests; from any thread. What it returns goes to rhashtable_read_unlock, which another thread may call. */
#define rhashtable_read_lock(ht) KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_read_lock, ht)
#define rhashtable_read_unlock(ht, side) KMEM_RHT_OR_((void)0, kmem_rhashtable_read_unlock, ht, side)

/* Objects that are there all the while come once each, unless the one that came last was removed and others have its
 * hash. What rhashtable_walk_next returned may be used until rhashtable_walk_stop, after which a walk can be started again where
 * it was. */
static inline void rhashtable_walk_enter(struct rhashtable *ht, struct rhashtable_iter *iter)
{
	iter->ht = ht;
	iter->position = 0;
	iter->last = NULL;
	iter->side = -EINVAL;
}
static inline void rhashtable_walk_start(struct rhashtable_iter *iter)
{
	iter->side = rhashtable_read_lock(iter->ht);
}
/* The next object; NULL: that was the last one, or the walk is not started. */
#define rhashtable_walk_next(iter) KMEM_RHT_OR_(NULL, kmem_rhashtable_walk_next, iter)
static inline void rhashtable_walk_stop(struct rhashtable_iter *iter)
{
	rhashtable_read_unlock(iter->ht, iter->side);
	iter->side = -EINVAL;
}
static inline void rhashtable_walk_exit(struct rhashtable_iter *iter)
{
	iter->ht = NULL;
}

/* Nobody may use the table any more. `free_fn` (or null) gets the objects that are still in it; those that were
 * removed go to `obj_freefn`. */
#define rhashtable_free_and_destroy(ht, free_fn, arg)                                                                  \
	((void)KMEM_RHT_OR_(-ENOSYS, kmem_rhashtable_free_and_destroy, ht, free_fn, arg))
#define rhashtable_destroy(ht) rhashtable_free_and_destroy(ht, NULL, NULL)

#ifdef __cplusplus
}
#endif

#endif /* KMEM_RHASHTABLE_H */
