/* Says hello, from memory that it allocates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	char *text = malloc(6);
	if (!text)
		return 1;
	puts(strcpy(text, "hello"));
	free(text);
	return 0;
}
