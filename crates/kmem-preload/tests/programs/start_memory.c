/* The private memory of a program that does little: all mappings that it may write to. Systems with
 * strict overcommit and limits of data count it, whether it was touched or not. */
#include "check.h"

int main(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	REQUIRE(maps);
	size_t sum = 0;
	char line[512];
	while (fgets(line, sizeof line, maps)) {
		size_t from, to;
		char access[8];
		if (sscanf(line, "%zx-%zx %7s", &from, &to, access) == 3 &&
		    access[1] == 'w' && access[3] == 'p')
			sum += to - from;
	}
	fclose(maps);
	CHECK_AT(sum <= 8 * MIB, sum);
	return RESULT();
}
