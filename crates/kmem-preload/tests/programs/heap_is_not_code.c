/* Heap memory cannot be executed: SIGSEGV. */
#include "misuse.h"

int main(void)
{
	unsigned char *block = malloc(64);
	REQUIRE(block != NULL);
	announce(block);
#if defined(__x86_64__)
	block[0] = 0xc3;
#else
	memcpy(block, "\xc0\x03\x5f\xd6", 4);
#endif
	((void (*)(void))(uintptr_t)opaque(block))();
	return UNNOTICED;
}
