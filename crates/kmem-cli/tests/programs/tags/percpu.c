/* Per-CPU objects. */
#include "expect.h"
#include "kmem.h"
#include <stdint.h>
#include <string.h>

struct packets {
	uint64_t received;
	uint32_t dropped;
};

static void case_percpu(void)
{
	unsigned int cpu;
	uint64_t sum = 0;
	struct packets *packets = alloc_percpu(struct packets); /* at packets */
	uint64_t *words[100];
	for (int i = 0; i < 100; i++)
		words[i] = __alloc_percpu(100, 8); /* at words */
	void *untagged = alloc_percpu_noprof(8, 8, GFP_KERNEL);
	MUST(packets && __alloc_percpu_gfp(40000, 8, GFP_KERNEL | __GFP_NOWARN) == NULL);
	this_cpu_add(packets->received, 40);
	this_cpu_inc(packets->received);
	this_cpu_sub(packets->received, 2);
	this_cpu_add(packets->dropped, 7);
	for_each_possible_cpu(cpu)
		sum += per_cpu_ptr(packets, cpu)->received;
	MUST(sum == 39 && percpu_sum(packets->received) == 39 && percpu_sum(packets->dropped) == 7);
	MUST(nr_cpu_ids() >= 2 && per_cpu_ptr(packets, nr_cpu_ids()) == NULL);
	this_cpu_write(*words[3], 5);
	MUST(percpu_sum(*words[3]) == 5 && this_cpu_read(packets->dropped) + 7 >= 7);
	say("untagged 16 1\n");
	EXPECT("packets", 16, 1);
	EXPECT("words", 100 * 112, 100);
	check();
	free_percpu(packets);
	free_percpu(untagged);
	free_percpu(NULL);
	for (int i = 0; i < 40; i++)
		free_percpu(words[i]);
	EXPECT("words", 60 * 112, 60);
	check();
	kmem_percpu_stats(2);
}

int main(void)
{
	case_percpu();
	return 0;
}
