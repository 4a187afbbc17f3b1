/* Hash tables from C: every function, and threads that change a table of 50,000 entries while
 * others read and walk. */
#include "group_check.h"
#include <kmem.h>
#include <pthread.h>

#define ENTRIES 50000
#define THREADS 4

struct entry {
	uint64_t value;
	struct rhash_head node;
	uint32_t key;
	uint32_t alive;
};

static unsigned freed;

static struct entry *make(uint32_t key, uint64_t value)
{
	struct entry *entry = malloc(sizeof *entry);
	REQUIRE(entry);
	entry->key = key;
	entry->value = value;
	entry->alive = 1;
	return entry;
}

static void release(void *object)
{
	struct entry *entry = object;
	CHECK(entry->alive == 1);
	entry->alive = 0;
	__atomic_fetch_add(&freed, 1, __ATOMIC_RELAXED);
	free(entry);
}

static void release_with(void *object, void *count)
{
	++*(unsigned *)count;
	free(object);
}

static const struct rhashtable_params params = {
	.key_len = sizeof(uint32_t),
	.key_offset = offsetof(struct entry, key),
	.head_offset = offsetof(struct entry, node),
	.min_size = 4,
	.automatic_shrinking = true,
	.obj_freefn = release,
};

static unsigned walked(struct rhashtable *table, unsigned pause)
{
	struct rhashtable_iter iter;
	unsigned count = 0;
	struct entry *entry;
	rhashtable_walk_enter(table, &iter);
	CHECK(rhashtable_walk_next(&iter) == NULL);
	rhashtable_walk_start(&iter);
	while ((entry = rhashtable_walk_next(&iter))) {
		CHECK(entry->alive == 1);
		if (++count % pause == 0) {
			rhashtable_walk_stop(&iter);
			rhashtable_walk_start(&iter);
		}
	}
	rhashtable_walk_stop(&iter);
	rhashtable_walk_exit(&iter);
	return count;
}

static void rules(void)
{
	struct rhashtable table = { 0 };
	struct entry *one = make(1, 10), *other = make(1, 11), *two = make(2, 20), *lost = make(3, 30);
	uint32_t key = 1, none = 9;
	unsigned left = 0;

	/* Functions on memory that is no table. */
	CHECK(rhashtable_insert_fast(&table, &one->node, params) == -EINVAL);
	CHECK(rhashtable_remove_fast(&table, &one->node, params) == -EINVAL);
	CHECK(rhashtable_lookup_fast(&table, &key, params) == NULL);
	CHECK(rhashtable_read_lock(&table) == -EINVAL);
	rhashtable_read_unlock(&table, -EINVAL);
	CHECK(walked(&table, 1) == 0);
	rhashtable_destroy(&table);
	CHECK(rhashtable_init(&table, NULL) == -EINVAL);
	CHECK(rhashtable_init(NULL, &params) == -EINVAL);
	CHECK(rhashtable_init(&table, (&(struct rhashtable_params){ .key_len = 0 })) == -EINVAL);
	CHECK(!table.table);

	REQUIRE(rhashtable_init(&table, &params) == 0);
	CHECK(rhashtable_insert_fast(&table, &one->node, params) == 0);
	CHECK(rhashtable_insert_fast(&table, &two->node, params) == 0);
	CHECK(rhashtable_insert_fast(&table, &other->node, params) == -EEXIST);
	CHECK(rhashtable_lookup_fast(&table, &key, params) == one);
	CHECK(rhashtable_lookup_fast(&table, &key, params) == one);
	CHECK(rhashtable_lookup_fast(&table, &none, params) == NULL);
	CHECK(rhashtable_nelems(&table) == 2);
	/* Only the very object is removed or replaced. */
	CHECK(rhashtable_remove_fast(&table, &other->node, params) == -ENOENT);
	CHECK(rhashtable_replace_fast(&table, &two->node, &other->node, params) == -EINVAL);
	CHECK(rhashtable_replace_fast(&table, &lost->node, &lost->node, params) == -ENOENT);
	CHECK(rhashtable_replace_fast(&table, &one->node, &other->node, params) == 0);
	CHECK(rhashtable_lookup_fast(&table, &key, params) == other);
	CHECK(rhashtable_remove_fast(&table, &one->node, params) == -ENOENT);
	CHECK(rhashtable_remove_fast(&table, &two->node, params) == 0);
	CHECK(rhashtable_remove_fast(&table, &two->node, params) == -ENOENT);
	CHECK(walked(&table, 1) == 1);
	CHECK(freed == 0);
	rhashtable_free_and_destroy(&table, release_with, &left);
	CHECK(left == 1 && freed == 2 && !table.table);
	freed = 0;
	free(lost);
}

/* Functions of the program's: keys are strings, and all have one of four hashes. */
struct word {
	struct rhash_head node;
	char text[16];
};

static uint32_t hash_text(const void *text, uint32_t len, uint32_t seed)
{
	(void)len;
	return seed + ((const char *)text)[1] % 4u;
}

static uint32_t hash_word(const void *word, uint32_t len, uint32_t seed)
{
	return hash_text(((const struct word *)word)->text, len, seed);
}

static int compare_word(struct rhashtable_compare_arg *arg, const void *word)
{
	CHECK(arg->ht);
	return strcmp(arg->key, ((const struct word *)word)->text);
}

static void functions(void)
{
	const struct rhashtable_params own = {
		.key_offset = offsetof(struct word, text),
		.hashfn = hash_text,
		.obj_hashfn = hash_word,
		.obj_cmpfn = compare_word,
		.max_size = 16,
	};
	struct rhashtable table;
	struct word words[40];
	struct rhashtable_iter iter;
	struct word *word;
	unsigned seen = 0;
	REQUIRE(rhashtable_init(&table, &own) == 0);
	for (int i = 0; i < 32; i++) {
		snprintf(words[i].text, sizeof words[i].text, "w%d", i);
		CHECK_AT(rhashtable_insert_fast(&table, &words[i].node, own) == 0, i);
	}
	strcpy(words[32].text, "w32");
	CHECK(rhashtable_insert_fast(&table, &words[32].node, own) == -E2BIG);
	for (int i = 0; i < 32; i++)
		CHECK_AT(rhashtable_lookup_fast(&table, words[i].text, own) == &words[i], i);
	CHECK(rhashtable_lookup_fast(&table, "w32", own) == NULL);
	/* Equal hashes do not confuse a walk that pauses. */
	rhashtable_walk_enter(&table, &iter);
	rhashtable_walk_start(&iter);
	while ((word = rhashtable_walk_next(&iter))) {
		CHECK(word->text[0] == 'w');
		word->text[0] = 'v';
		seen++;
		rhashtable_walk_stop(&iter);
		rhashtable_walk_start(&iter);
	}
	rhashtable_walk_stop(&iter);
	rhashtable_walk_exit(&iter);
	CHECK(seen == 32);
	rhashtable_destroy(&table);
}

/* Tables in which several objects have one key. */
struct port {
	uint32_t key;
	uint32_t number;
	struct rhlist_head list;
};

static const struct rhashtable_params ports = {
	.key_len = sizeof(uint32_t),
	.key_offset = offsetof(struct port, key),
	.head_offset = offsetof(struct port, list),
	.automatic_shrinking = true,
};

/* Checks that a key has the objects with these numbers, from one down to another, in steps of 3. */
static void has(struct rhltable *table, uint32_t key, int from, int to)
{
	struct rhlist_head *list, *pos;
	struct port *port;
	int side = rhltable_read_lock(table);

	list = rhltable_lookup(table, &key, ports);
	rhl_for_each_entry_rcu(port, pos, list, list) {
		CHECK_AT(port->key == key && (int)port->number == from, port->number);
		from -= 3;
	}
	CHECK_AT(from < to && from >= to - 3, from);
	rhltable_read_unlock(table, side);
}

static void lists(void)
{
	enum { PORTS = 300 };
	struct rhltable table = { { 0 } };
	static struct port all[PORTS];
	struct rhashtable_iter iter;
	struct port *port;
	uint32_t key, none = 9, seen = 0;
	char met[PORTS] = { 0 };

	CHECK(rhltable_insert(&table, &all[0].list, ports) == -EINVAL);
	CHECK(rhltable_lookup(&table, &none, ports) == NULL);
	REQUIRE(rhltable_init(&table, &ports) == 0);
	for (uint32_t i = 0; i < PORTS; i++) {
		all[i].key = i % 3;
		all[i].number = i;
		key = i % 3;
		CHECK_AT(rhltable_insert_key(&table, &key, &all[i].list, ports) == 0, i);
		has(&table, key, i, i % 3);
	}
	CHECK(rhltable_lookup(&table, &none, ports) == NULL);
	CHECK(rhashtable_nelems(&table.ht) == PORTS);
	/* Each comes once, also in a walk that pauses. */
	for (int pause = 1; pause <= PORTS; pause += 37) {
		rhltable_walk_enter(&table, &iter);
		rhashtable_walk_start(&iter);
		memset(met, 0, sizeof met);
		for (seen = 0; (port = rhashtable_walk_next(&iter)); seen++) {
			CHECK(!met[port->number]);
			met[port->number] = 1;
			if (seen % pause == 0) {
				rhashtable_walk_stop(&iter);
				rhashtable_walk_start(&iter);
			}
		}
		CHECK_AT(seen == PORTS, seen);
		rhashtable_walk_stop(&iter);
		rhashtable_walk_exit(&iter);
	}
	/* The newest, the oldest, and all of a key in a loop over them. */
	CHECK(rhltable_remove(&table, &all[PORTS - 3].list, ports) == 0);
	CHECK(rhltable_remove(&table, &all[PORTS - 3].list, ports) == -ENOENT);
	CHECK(rhltable_remove(&table, &all[0].list, ports) == 0);
	has(&table, 0, PORTS - 6, 3);
	key = 1;
	int side = rhltable_read_lock(&table);
	struct rhlist_head *pos, *list = rhltable_lookup(&table, &key, ports);
	seen = 0;
	rhl_for_each_rcu(pos, list) {
		CHECK(rhltable_remove(&table, pos, ports) == 0);
		seen++;
	}
	rhltable_read_unlock(&table, side);
	CHECK_AT(seen == PORTS / 3, seen);
	CHECK(rhltable_lookup(&table, &key, ports) == NULL);
	has(&table, 2, PORTS - 1, 2);
	rhltable_destroy(&table);
	CHECK(!table.ht.table);
}

static struct rhashtable shared;
static unsigned done;

static void *writer(void *first)
{
	for (int round = 0; round < 2; round++) {
		struct entry *own[ENTRIES / THREADS];
		unsigned count = 0;
		for (uint32_t key = (uint32_t)(uintptr_t)first; key < ENTRIES; key += THREADS) {
			own[count] = make(key, key);
			CHECK_AT(rhashtable_insert_fast(&shared, &own[count++]->node, params) == 0, key);
		}
		for (unsigned i = 0; i < count; i += 3) {
			struct entry *next = make(own[i]->key, own[i]->key);
			CHECK_AT(rhashtable_replace_fast(&shared, &own[i]->node, &next->node, params) == 0, i);
			own[i] = next;
		}
		for (unsigned i = 0; i < count; i++)
			CHECK_AT(rhashtable_remove_fast(&shared, &own[i]->node, params) == 0, i);
	}
	return NULL;
}

static void *reader(void *nothing)
{
	uint32_t key = 0;
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
		int side = rhashtable_read_lock(&shared);
		for (int i = 0; i < 100; i++, key = (key + 7) % (ENTRIES + 10)) {
			struct entry *entry = rhashtable_lookup_fast(&shared, &key, params);
			CHECK(!entry || (entry->alive == 1 && entry->key == key && entry->value == key));
			/* Those that stay. */
			CHECK_AT(entry || key < ENTRIES, key);
		}
		rhashtable_read_unlock(&shared, side);
		CHECK(walked(&shared, 1000) >= 10);
	}
	return nothing;
}

static void storm(void)
{
	kmem_group_t group = new_group("tables");
	int64_t token = kmem_group_enter(group);
	pthread_t writers[THREADS], readers[2];
	unsigned left = 0;
	REQUIRE(rhashtable_init(&shared, &params) == 0);
	CHECK(held_by(group) > 0);
	uint64_t empty = held_by(group);
	for (uint32_t key = ENTRIES; key < ENTRIES + 10; key++)
		CHECK(rhashtable_insert_fast(&shared, &make(key, key)->node, params) == 0);
	CHECK(held_by(group) > empty);
	kmem_group_leave(token);
	for (int i = 0; i < 2; i++)
		REQUIRE(pthread_create(&readers[i], NULL, reader, NULL) == 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		REQUIRE(pthread_create(&writers[i], NULL, writer, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(writers[i], NULL);
	__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		pthread_join(readers[i], NULL);
	CHECK(rhashtable_nelems(&shared) == 10);
	rhashtable_free_and_destroy(&shared, release_with, &left);
	/* Every object went to one of both. */
	CHECK_AT(left == 10, left);
	CHECK_AT(freed == 2 * (ENTRIES + (ENTRIES / THREADS + 2) / 3 * THREADS), freed);
	CHECK_AT(held_by(group) == 0, held_by(group));
}

static void without_memory(void)
{
	kmem_group_t group = new_group("small");
	int64_t token = kmem_group_enter(group);
	struct rhashtable table;
	struct entry *entry;
	uint32_t key = 0;
	unsigned left = 0;
	REQUIRE(rhashtable_init(&table, &params) == 0);
	kmem_group_leave(token);
	kmem_group_set(group, KMEM_GROUP_MAX, 100000);
	for (;; key++) {
		entry = make(key, key);
		token = kmem_group_enter(group);
		int error = rhashtable_insert_fast(&table, &entry->node, params);
		kmem_group_leave(token);
		if (error) {
			CHECK(error == -ENOMEM);
			break;
		}
	}
	CHECK(key > 100 && freed == 0);
	free(entry);
	for (uint32_t known = 0; known < key; known++)
		CHECK_AT(rhashtable_lookup_fast(&table, &known, params), known);
	rhashtable_free_and_destroy(&table, release_with, &left);
	CHECK(left == key && held_by(group) == 0);
}

int main(void)
{
	rules();
	functions();
	lists();
	without_memory();
	storm();
	return RESULT();
}
