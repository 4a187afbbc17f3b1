/* Memory of the nodes of a machine. Argument: the number of nodes; CPU n is of node n. */
#define _GNU_SOURCE
#include <kmem.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static int nodes, failed;

static void is(int node, void *at, const char *what)
{
	if (!at || page_to_nid(at) != node) {
		printf("%s: %p of node %d, not %d\n", what, at, at ? page_to_nid(at) : -1, node);
		failed = 1;
	}
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		exit(2);
}

int main(int argc, char **argv)
{
	enum { MANY = 10000 };
	static void *held[MANY];
	struct kmem_cache *cache = kmem_cache_create("things", 200, 0, NULL);

	nodes = atoi(argv[1]);
	for (int round = 0; round < 4; round++) {
		int cpu = round % 2, here = cpu % nodes, there = (1 - cpu) % nodes;

		/* More than the array of the CPU may still hold of the other node. */
		run_on(cpu);
		for (int i = 0; i < MANY; i++)
			held[i] = malloc(1 + i % 3000);
		is(here, held[MANY - 1], "malloc");
		/* The other CPU frees them. */
		run_on(1 - cpu);
		for (int i = 0; i < MANY; i++)
			free(held[i]);
		for (int node = -1; node <= nodes; node++) {
			int wanted = node < 0 || node == nodes ? there : node;
			void *object = kmalloc_node(100, __GFP_THISNODE | __GFP_ZERO, node);
			void *run = kmalloc_node(100000, __GFP_THISNODE, node);
			void *thing = kmem_cache_alloc_node(cache, __GFP_THISNODE, node);
			void *page = alloc_pages_node(node, __GFP_THISNODE, 0);
			void *huge = alloc_pages_node(node, __GFP_THISNODE, 9);

			is(wanted, object, "kmalloc_node");
			is(wanted, run, "a long kmalloc_node");
			is(wanted, thing, "kmem_cache_alloc_node");
			is(wanted, page, "alloc_pages_node");
			is(wanted, huge, "a huge page");
			/* Bytes of a node stay there, or move to the one that is named. */
			for (size_t bytes = 100; bytes <= 100000; bytes *= 1000) {
				void *at = kmalloc_node(bytes, __GFP_THISNODE, here), *before;

				at = krealloc_node_align(at, bytes, 1, __GFP_THISNODE, node);
				is(node < 0 || node == nodes ? here : node, at, "krealloc");
				before = at;
				at = krealloc_node_align(at, 9 * bytes, 64, __GFP_THISNODE, node);
				/* Pages that grow where they are stay on their node if none is named. */
				if (node < 0 || node == nodes)
					is(at == before ? here : there, at, "krealloc of more");
				else
					is(node, at, "krealloc of more");
				if ((size_t)at % 64)
					failed = 1;
				kfree(at);
			}
			kfree(object);
			kfree(run);
			kmem_cache_free(cache, thing);
			__free_pages(page, 0);
			__free_pages(huge, 9);
		}
	}
	if (page_to_nid(&nodes) != NUMA_NO_NODE)
		failed = 1;
	kmem_cache_destroy(cache);
	return failed;
}
