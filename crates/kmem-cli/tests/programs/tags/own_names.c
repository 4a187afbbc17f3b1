/* A program whose own functions have names of kernel functions. */
#include <stdio.h>
#include <stdlib.h>

typedef struct {
	int objects;
} gfp_t;

void *kmalloc(gfp_t *pool, size_t size)
{
	pool->objects++;
	return malloc(size);
}

void kfree(gfp_t *pool, void *at)
{
	pool->objects--;
	free(at);
}

int split_page(int page)
{
	return page + 1;
}

int main(void)
{
	gfp_t pool = { 0 };
	void *at = kmalloc(&pool, 100);
	printf("%d %d\n", pool.objects, split_page(1));
	kfree(&pool, at);
	return pool.objects;
}
