// Frees that tell a size: `told_sizes FORM SIZE TOLD` allocates SIZE bytes and tells TOLD.
#include "misuse.h"
#include <dlfcn.h>
#include <new>

static void *announced(void *block)
{
	REQUIRE(block != nullptr);
	announce(block);
	return opaque(block);
}

static const auto ALIGNED = std::align_val_t(256);

int main(int argc, char **argv)
{
	REQUIRE(argc > 3);
	size_t size = strtoul(argv[2], nullptr, 0), told = strtoul(argv[3], nullptr, 0);
	auto sized = reinterpret_cast<void (*)(void *, size_t)>(dlsym(RTLD_DEFAULT, "free_sized"));
	auto aligned_sized = reinterpret_cast<void (*)(void *, size_t, size_t)>(
		dlsym(RTLD_DEFAULT, "free_aligned_sized"));
	REQUIRE(sized && aligned_sized);
	if (is(argv[1], "delete"))
		::operator delete(announced(::operator new(size)), told);
	else if (is(argv[1], "delete[]"))
		::operator delete[](announced(::operator new[](size)), told);
	else if (is(argv[1], "aligned delete"))
		::operator delete(announced(::operator new(size, ALIGNED)), told, ALIGNED);
	else if (is(argv[1], "aligned delete[]"))
		::operator delete[](announced(::operator new[](size, ALIGNED)), told, ALIGNED);
	else if (is(argv[1], "free_sized"))
		sized(announced(malloc(size)), told);
	else if (is(argv[1], "free_sized after realloc"))
		sized(announced(realloc(malloc(size), told)), told);
	else if (is(argv[1], "delete twice")) {
		void *block = announced(::operator new(size));
		::operator delete(block);
		::operator delete(block, told);
	} else if (is(argv[1], "free_sized twice")) {
		void *block = announced(malloc(size));
		free(block);
		sized(block, told);
	} else if (is(argv[1], "free_aligned_sized"))
		aligned_sized(announced(aligned_alloc(256, size)), 256, told);
	else
		return NO_SUCH_CASE;
	return RESULT();
}
