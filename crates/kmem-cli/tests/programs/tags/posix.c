/* Wants the POSIX form of strerror_r, by -D_POSIX_C_SOURCE=200809L on the command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	char text[100];
	int error = strerror_r(2, text, sizeof(text));
	char *copy = strdup(text);
	puts(error || !copy ? "none" : copy);
	free(copy);
	return 0;
}
