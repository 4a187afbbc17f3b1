/* Allocates while a word of the interpreter's memory is wrong. The caller holds the interpreter. */
#include <stdlib.h>

typedef void *make(const char *bytes, long len);
typedef void drop(void *object);

void torment(unsigned long *word, unsigned long wrong, make *make_bytes, drop *drop_object)
{
	unsigned long before = *word;

	*(volatile unsigned long *)word = wrong;
	void *object = make_bytes(NULL, 100);
	void *block = realloc(malloc(40), 4000);

	free(block);
	*(volatile unsigned long *)word = before;
	drop_object(object);
}
