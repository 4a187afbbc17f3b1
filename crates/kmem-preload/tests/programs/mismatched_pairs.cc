// Blocks that are given back by another member of the family than they came from: wrong, but never
// a crash by default.
#include "check.h"
#include <dlfcn.h>
#include <new>
#include <string>

template <class T> static T *hide(T *pointer)
{
	return static_cast<T *>(opaque(pointer));
}

int main()
{
	auto sized = reinterpret_cast<void (*)(void *, size_t)>(dlsym(RTLD_DEFAULT, "free_sized"));
	auto aligned_sized = reinterpret_cast<void (*)(void *, size_t, size_t)>(
		dlsym(RTLD_DEFAULT, "free_aligned_sized"));
	for (int round = 0; round < 1000; round++) {
		free(hide(new char));
		free(hide(new char[100]));
		::operator delete(hide(malloc(100)));
		::operator delete[](hide(malloc(100)));
		::operator delete(hide(::operator new[](100)));
		::operator delete[](hide(::operator new(100)));
		::operator delete(hide(memalign(4096, 100)));
		free(hide(::operator new(100, std::align_val_t(4096))));
		::operator delete(hide(malloc(100)), size_t(100));
		if (sized)
			sized(hide(::operator new(100)), 100);
		if (aligned_sized)
			aligned_sized(hide(malloc(100)), 48, 100);
	}
	return RESULT();
}
