// A program that replaces the plain and the aligned forms of array new and delete, and aligned
// single ones. Sized and nothrow forms go through these; single forms without an alignment do not.
#include "check.h"
#include <new>

static long arrays, aligned_arrays, aligned;

void *operator new[](size_t size)
{
	arrays++;
	return malloc(size);
}

void operator delete[](void *at) noexcept
{
	arrays--;
	free(at);
}

void *operator new[](size_t size, std::align_val_t)
{
	aligned_arrays++;
	return malloc(size);
}

void operator delete[](void *at, std::align_val_t) noexcept
{
	aligned_arrays--;
	free(at);
}

void *operator new(size_t size, std::align_val_t)
{
	aligned++;
	return malloc(size);
}

void operator delete(void *at, std::align_val_t) noexcept
{
	aligned--;
	free(at);
}

#define COUNTED(counter, allocate, release) \
	do { \
		void *at = opaque(allocate); \
		CHECK(counter == 1 && arrays + aligned_arrays + aligned == 1); \
		release; \
		CHECK(counter == 0); \
	} while (0)

int main()
{
	const size_t size = 200;
	const std::align_val_t by = std::align_val_t(16);
	COUNTED(arrays, ::operator new[](size), ::operator delete[](at));
	COUNTED(arrays, ::operator new[](size), ::operator delete[](at, size));
	COUNTED(arrays, ::operator new[](size, std::nothrow), ::operator delete[](at, std::nothrow));
	COUNTED(aligned_arrays, ::operator new[](size, by), ::operator delete[](at, by));
	COUNTED(aligned_arrays, ::operator new[](size, by), ::operator delete[](at, size, by));
	COUNTED(aligned_arrays, ::operator new[](size, by, std::nothrow),
		::operator delete[](at, by, std::nothrow));
	COUNTED(aligned, ::operator new(size, by), ::operator delete(at, by));
	COUNTED(aligned, ::operator new(size, by), ::operator delete(at, size, by));
	COUNTED(aligned, ::operator new(size, by, std::nothrow),
		::operator delete(at, by, std::nothrow));
	::operator delete(opaque(::operator new(size)), size);
	::operator delete(opaque(::operator new(size, std::nothrow)), std::nothrow);
	CHECK(arrays + aligned_arrays + aligned == 0);
	return RESULT();
}
