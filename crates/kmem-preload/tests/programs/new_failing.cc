// operator new out of memory: the new handler is called until it gives up; then bad_alloc, or a
// null pointer.
#include "check.h"
#include <new>

static int handler_calls;
static volatile size_t impossible = PTRDIFF_MAX - 100;

static void resigns_at_third_call()
{
	if (++handler_calls == 3)
		std::set_new_handler(nullptr);
}

static void throws_at_second_call()
{
	if (++handler_calls == 2)
		throw std::bad_alloc();
}

struct Own : std::bad_alloc {
	int number = 17;
};

static void throws_own()
{
	handler_calls++;
	throw Own();
}

template <class F> static bool throws_bad_alloc(F allocate)
{
	try {
		void *block = opaque(allocate());
		CHECK(block != nullptr);
		::operator delete(block);
	} catch (const std::bad_alloc &) {
		return true;
	}
	return false;
}

int main()
{
	const std::align_val_t page = std::align_val_t(4096);

	CHECK(throws_bad_alloc([] { return ::operator new(impossible); }));
	CHECK(throws_bad_alloc([] { return ::operator new[](impossible); }));
	CHECK(throws_bad_alloc([=] { return ::operator new(impossible, page); }));
	CHECK(throws_bad_alloc([=] { return ::operator new[](impossible, page); }));
	CHECK(throws_bad_alloc([] { return ::operator new(SIZE_MAX); }));
	CHECK(opaque(::operator new(impossible, std::nothrow)) == nullptr);
	CHECK(opaque(::operator new[](impossible, std::nothrow)) == nullptr);
	CHECK(opaque(::operator new(impossible, page, std::nothrow)) == nullptr);
	CHECK(opaque(::operator new[](impossible, page, std::nothrow)) == nullptr);

	std::set_new_handler(resigns_at_third_call);
	CHECK(throws_bad_alloc([] { return ::operator new(impossible); }));
	CHECK(handler_calls == 3);
	CHECK(std::get_new_handler() == nullptr);

	handler_calls = 0;
	std::set_new_handler(resigns_at_third_call);
	CHECK(throws_bad_alloc([=] { return ::operator new[](impossible, page); }));
	CHECK(handler_calls == 3);

	handler_calls = 0;
	std::set_new_handler(resigns_at_third_call);
	CHECK(opaque(::operator new(impossible, std::nothrow)) == nullptr);
	CHECK(handler_calls == 3);

	handler_calls = 0;
	std::set_new_handler(throws_at_second_call);
	CHECK(throws_bad_alloc([] { return ::operator new(impossible); }));
	CHECK(handler_calls == 2);

	handler_calls = 0;
	CHECK(opaque(::operator new(impossible, std::nothrow)) == nullptr);
	CHECK(handler_calls == 2);

	handler_calls = 0;
	std::set_new_handler(throws_own);
	bool own = false;
	try {
		::operator delete(opaque(::operator new(impossible)));
	} catch (const Own &caught) {
		own = caught.number == 17;
	}
	CHECK(own && handler_calls == 1);
	CHECK(opaque(::operator new(impossible, page, std::nothrow)) == nullptr);
	std::set_new_handler(nullptr);

	// The allocator is as good as before.
	for (int i = 0; i < 10000; i++)
		::operator delete(opaque(::operator new(size_t(i))));
	return RESULT();
}
