/* Areas of whole pages. */
#include "expect.h"
#include "kmem.h"
#include <stdint.h>
#include <string.h>

#define PAGE ((size_t)4096)

int main(void)
{
	void *pages[2];
	char *plain = vmalloc(3 * PAGE - 1); /* at plain */
	char *zeroed = vzalloc(5 * PAGE); /* at zeroed */
	char *huge = vmalloc_huge(3 << 20, GFP_KERNEL); /* at huge */
	char *aligned = vmalloc_aligned(PAGE, 16 * PAGE, GFP_KERNEL); /* at aligned */
	char *either = kvmalloc(100 * PAGE, GFP_KERNEL); /* at either */
	char *grown = vrealloc(memset(vmalloc(PAGE), 7, PAGE), 80 * PAGE, __GFP_ZERO); /* at grown */
	MUST(plain && is_zero(zeroed, 5 * PAGE));
	MUST((uintptr_t)huge % (2 << 20) == 0 && (uintptr_t)aligned % (16 * PAGE) == 0);
	MUST(grown[PAGE - 1] == 7 && is_zero(grown + PAGE, 79 * PAGE));
	memset(plain, 1, 3 * PAGE);
	MUST(ksize(plain) == 3 * PAGE && is_vmalloc_addr(plain + 5000) && !is_vmalloc_addr(&plain));
	MUST(vmalloc_tag(0, GFP_KERNEL | __GFP_NOWARN, NULL) == NULL);
	MUST(vmalloc_tag(SIZE_MAX, __GFP_NOWARN, NULL) == NULL);
	for (int i = 0; i < 2; i++)
		pages[i] = vmap_alloc_page(GFP_KERNEL | __GFP_ZERO); /* at page */
	char *map = vmap(pages, 2);
	void *wrong[] = { plain };
	MUST(map && !vmap(wrong, 1) && is_zero(map, 2 * PAGE));
	((char *)pages[1])[5] = 9;
	MUST(map[PAGE + 5] == 9);
	EXPECT("plain", 3 * PAGE, 1);
	expect("zeroed", "main", 5 * PAGE, 1);
	EXPECT("huge", 3 << 20, 1);
	EXPECT("aligned", PAGE, 1);
	EXPECT("either", 100 * PAGE, 1);
	EXPECT("grown", 80 * PAGE, 1);
	EXPECT("page", 2 * PAGE, 2);
	check();
	kmem_vmallocinfo(2);
	vunmap(map);
	vfree(plain);
	vfree(NULL);
	kfree(zeroed);
	vfree(huge);
	vfree(aligned);
	kvfree(either);
	MUST(!vrealloc(grown, 0, GFP_KERNEL));
	__free_page(pages[0]);
	__free_page(pages[1]);
	check();
	return 0;
}
