/* Hash tables: memory of a table and of its elements is billed to the call that made it. */
#include "expect.h"
#include "kmem.h"

struct entry {
	int key;
	struct rhash_head node;
};
struct listed {
	int key;
	struct rhlist_head list;
};
static const struct rhashtable_params params = {
	.key_len = sizeof(int),
	.head_offset = offsetof(struct entry, node),
};
static struct entry entries[20];

/* Bytes billed for a request of this size. */
static size_t billed(size_t size)
{
	void *at = kmalloc(size, GFP_KERNEL);
	size_t bytes = ksize(at);
	kfree(at);
	return bytes;
}

/* A library's function that bills its caller. */
static int make(struct rhashtable *table)
{
	return rhashtable_init_noprof(table, &params);
}

static void fill(struct rhashtable *table, int from, int to)
{
	for (int i = from; i < to; i++) {
		entries[i].key = i;
		MUST(rhashtable_insert_fast(table, &entries[i].node, params) == 0);
	}
}

static void case_rhashtable(void)
{
	struct rhashtable one, two;
	/* A header, and hints of 64 buckets, four to a sentinel; counters for readers; an element. */
	size_t buckets = billed(64 + 64 * 8 + 16 * 16), counters = 32, element = billed(72);
	MUST(rhashtable_init(&one, &params) == 0); /* at one */
	MUST(alloc_hooks(make(&two)) == 0); /* at two */
	size_t table = ksize(one.table);
	fill(&one, 0, 5);
	fill(&two, 5, 20);
	EXPECT("one", table + buckets + counters + 5 * element, 3 + 5);
	EXPECT("two", table + buckets + counters + 15 * element, 3 + 15);
	check();
	rhashtable_destroy(&one);
	MUST(rhashtable_remove_fast(&two, &entries[7].node, params) == 0);
	rhashtable_destroy(&two);
	check();
}

static void case_rhltable(void)
{
	static const struct rhashtable_params lists = {
		.key_len = sizeof(int),
		.head_offset = offsetof(struct listed, list),
	};
	static struct listed all[10];
	struct rhltable many;
	size_t buckets = billed(64 + 64 * 8 + 16 * 16), counters = 32, element = billed(72);

	MUST(rhltable_init(&many, &lists) == 0); /* at many */
	size_t table = ksize(many.ht.table);
	for (int i = 0; i < 10; i++)
		MUST(rhltable_insert(&many, &all[i].list, lists) == 0);
	EXPECT("many", table + buckets + counters + 10 * element, 3 + 10);
	check();
	rhltable_destroy(&many);
	check();
}

int main(void)
{
	case_rhashtable();
	case_rhltable();
	return 0;
}
