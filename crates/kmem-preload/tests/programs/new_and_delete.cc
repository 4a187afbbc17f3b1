// Every form of operator new and operator delete.
#include "check.h"
#include <new>

static const size_t sizes[] = { 0, 1, 8, 16, 33, 64, 100, 1000, 5000, 30000, 200000, 3000000 };
static const std::align_val_t alignments[] = { std::align_val_t(1), std::align_val_t(8),
	std::align_val_t(32), std::align_val_t(64), std::align_val_t(4096), std::align_val_t(65536),
	std::align_val_t(4 << 20) };

static void *used(void *block, size_t size, size_t alignment)
{
	REQUIRE(block != nullptr);
	CHECK_AT(is_aligned(block, alignment), alignment);
	memset(block, 0x44, size);
	return opaque(block);
}

struct alignas(256) Wide {
	char bytes[300];
	Wide() { memset(bytes, 1, sizeof bytes); }
	~Wide() { CHECK(is_aligned(this, 256)); }
};

int main()
{
	for (size_t size : sizes) {
		size_t natural = size < 16 ? 8 : 16;
		::operator delete(used(::operator new(size), size, natural));
		::operator delete[](used(::operator new[](size), size, natural));
		::operator delete(used(::operator new(size), size, natural), size);
		::operator delete[](used(::operator new[](size), size, natural), size);
		::operator delete(used(::operator new(size, std::nothrow), size, natural), std::nothrow);
		::operator delete[](used(::operator new[](size, std::nothrow), size, natural), std::nothrow);
		for (std::align_val_t alignment : alignments) {
			size_t bytes = static_cast<size_t>(alignment);
			::operator delete(used(::operator new(size, alignment), size, bytes), alignment);
			::operator delete[](used(::operator new[](size, alignment), size, bytes), alignment);
			::operator delete(used(::operator new(size, alignment), size, bytes), size, alignment);
			::operator delete[](used(::operator new[](size, alignment), size, bytes), size, alignment);
			::operator delete(used(::operator new(size, alignment, std::nothrow), size, bytes),
					  alignment, std::nothrow);
			::operator delete[](used(::operator new[](size, alignment, std::nothrow), size, bytes),
					    alignment, std::nothrow);
		}
	}
	::operator delete(nullptr);
	::operator delete[](nullptr);
	::operator delete(nullptr, size_t(8));
	::operator delete(nullptr, std::nothrow);
	::operator delete(nullptr, std::align_val_t(64));
	::operator delete[](nullptr, size_t(8), std::align_val_t(64));

	void *first = opaque(::operator new(0)), *second = opaque(::operator new(0));
	CHECK(first != second);
	::operator delete(first);
	::operator delete(second);

	errno = 1234;
	::operator delete(opaque(::operator new(100)));
	CHECK(errno == 1234);

	for (int i = 0; i < 100; i++) {
		delete static_cast<Wide *>(opaque(new Wide));
		delete[] static_cast<Wide *>(opaque(new Wide[7]));
	}
	return RESULT();
}
