/* ISO C and nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	char *at = malloc(10);
	int *numbers = calloc(10, sizeof(int));
	if (!at || !numbers)
		return 1;
	numbers = realloc(numbers, 20 * sizeof(int));
	strcpy(at, "strict");
	puts(at);
	free(numbers);
	free(at);
	return 0;
}
