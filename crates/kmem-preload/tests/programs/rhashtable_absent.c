/* Hash tables without libkmem.so: nothing does harm, and all say so. Built as C and as C++. */
#include <kmem/rhashtable.h>

int main(void)
{
	struct rhashtable table = { 0 };
	struct rhashtable_params params = {};
	struct rhash_head head = { 0 };
	struct rhashtable_iter iter;
	struct rhltable lists = { { 0 } };
	struct rhlist_head list = { { 0 }, 0 }, *pos;
	int all[] = { rhashtable_init(&table, &params), rhashtable_init_noprof(&table, &params),
		      rhashtable_insert_fast(&table, &head, params),
		      rhashtable_remove_fast(&table, &head, params),
		      rhashtable_replace_fast(&table, &head, &head, params), rhashtable_nelems(&table),
		      rhashtable_read_lock(&table), rhltable_init(&lists, &params),
		      rhltable_insert(&lists, &list, params),
		      rhltable_remove(&lists, &list, params) };
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i] != -ENOSYS)
			return (int)i + 1;
	rhashtable_read_unlock(&table, -ENOSYS);
	rhashtable_walk_enter(&table, &iter);
	rhashtable_walk_start(&iter);
	if (rhashtable_walk_next(&iter) || rhashtable_lookup_fast(&table, &head, params))
		return 100;
	if (rhltable_lookup(&lists, &head, params))
		return 101;
	unsigned listed = 0;
	rhl_for_each_rcu(pos, &list)
		listed++;
	if (listed != 1)
		return 102;
	rhltable_destroy(&lists);
	rhashtable_walk_stop(&iter);
	rhashtable_walk_exit(&iter);
	rhashtable_destroy(&table);
	return 0;
}
