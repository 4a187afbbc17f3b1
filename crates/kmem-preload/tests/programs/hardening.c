/* Writes after a free in a forked child, writes that are found at the exit, and frees objects to
 * caches of other objects. Other writes are in misuse/writes.c. */
#include "misuse.h"
#include <kmem.h>

static void *wait_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	if (is(argv[1], "behind_at_exit")) {
		char *text = malloc(20);
		announce(text);
		strcpy(text, "twenty characters...");
	} else if (is(argv[1], "behind_at_exit_of_one_thread")) {
		pthread_t thread;
		REQUIRE(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
		strcpy(malloc(20), "twenty characters...");
	} else if (is(argv[1], "after_free_at_exit")) {
		char *block = malloc(40);
		announce(block);
		free(block);
		block[4] = 'x';
	} else if (is(argv[1], "after_free_in_child")) {
		char *block = malloc(40), *other = malloc(40);
		free(other);
		if (fork() == 0) {
			announce(block);
			free(block);
			block[4] = 'x';
			for (int i = 0; i < 10000; i++)
				free(malloc(40));
			_exit(UNNOTICED);
		}
		int status = 0;
		REQUIRE(wait(&status) > 0);
		if (WIFSIGNALED(status))
			abort();
		return UNNOTICED;
	} else if (is(argv[1], "wrong_cache")) {
		struct kmem_cache *inode = kmem_cache_create("inode", 64, 0, NULL);
		struct kmem_cache *dentry = kmem_cache_create("dentry", 64, 0, NULL);
		void *object = kmem_cache_alloc(dentry, GFP_KERNEL);
		announce(object);
		kmem_cache_free(inode, object);
	} else if (is(argv[1], "wrong_pool")) {
		struct kmem_cache *inode = kmem_cache_create("inode", 64, 0, NULL);
		struct kmem_cache *dentry = kmem_cache_create("dentry", 64, 0, NULL);
		mempool_t *pool = mempool_create_slab_pool(2, inode);
		void *object = kmem_cache_alloc(dentry, GFP_KERNEL);
		announce(object);
		mempool_free(object, pool);
	} else {
		return NO_SUCH_CASE;
	}
	return UNNOTICED;
}
