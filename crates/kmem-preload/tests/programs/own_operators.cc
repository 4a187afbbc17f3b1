// A program that replaces only operator new(size_t) and operator delete(void*). By the standard,
// all forms without an alignment go through these two.
#include "check.h"
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

static const uint64_t MARK = 0x6f776e206d61726bu;
static long live, calls, refuse;

void *operator new(size_t size)
{
	if (refuse)
		throw std::bad_alloc();
	calls++;
	live++;
	uint64_t *block = static_cast<uint64_t *>(malloc(size + 16));
	block[0] = MARK;
	return block + 2;
}

void operator delete(void *at) noexcept
{
	if (!at)
		return;
	uint64_t *block = static_cast<uint64_t *>(at) - 2;
	REQUIRE(block[0] == MARK);
	block[0] = 0;
	live--;
	free(block);
}

#define GOES_THROUGH(allocate, release) \
	do { \
		long before = calls; \
		void *at = opaque(allocate); \
		REQUIRE(at != nullptr); \
		CHECK(calls == before + 1 && live == 1); \
		release; \
		CHECK(live == 0); \
	} while (0)

struct Node {
	char bytes[40];
	virtual ~Node() {}
};

int main()
{
	for (size_t size : { size_t(1), size_t(100), size_t(5000), size_t(300000) }) {
		GOES_THROUGH(::operator new(size), ::operator delete(at));
		GOES_THROUGH(::operator new(size), ::operator delete(at, size));
		GOES_THROUGH(::operator new(size), ::operator delete(at, std::nothrow));
		GOES_THROUGH(::operator new(size, std::nothrow), ::operator delete(at));
		GOES_THROUGH(::operator new[](size), ::operator delete[](at));
		GOES_THROUGH(::operator new[](size), ::operator delete[](at, size));
		GOES_THROUGH(::operator new[](size), ::operator delete[](at, std::nothrow));
		GOES_THROUGH(::operator new[](size, std::nothrow), ::operator delete[](at));
	}
	GOES_THROUGH(new Node, delete static_cast<Node *>(at));
	GOES_THROUGH(new Node[3], delete[] static_cast<Node *>(at));

	refuse = 1;
	CHECK(opaque(::operator new(10, std::nothrow)) == nullptr);
	CHECK(opaque(::operator new[](10, std::nothrow)) == nullptr);
	bool thrown = false;
	try {
		opaque(::operator new[](10));
	} catch (const std::bad_alloc &) {
		thrown = true;
	}
	CHECK(thrown);
	refuse = 0;

	// Forms with an alignment are not replaced; they still fit together.
	long before = calls;
	const std::align_val_t page = std::align_val_t(4096);
	::operator delete(opaque(::operator new(100, page)), page);
	::operator delete[](opaque(::operator new[](100, page)), 100, page);
	::operator delete(opaque(::operator new(100, page, std::nothrow)), page, std::nothrow);
	CHECK(calls == before && live == 0);

	{
		std::map<int, std::string> map;
		std::vector<std::unique_ptr<Node>> nodes;
		for (int i = 0; i < 1000; i++) {
			map[i] = std::string(static_cast<size_t>(i), 'x');
			nodes.push_back(std::make_unique<Node>());
		}
		CHECK(live > 2000);
	}
	CHECK(live == 0);
	return RESULT();
}
