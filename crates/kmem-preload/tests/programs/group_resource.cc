// A memory resource charges its group to the byte, whatever group its thread works for. Without the
// library, and with the argument "absent", it allocates as operator new does.
#include "group_check.h"
#include <kmem/memory_resource.h>
#include <string>
#include <vector>

static bool refuses(std::pmr::memory_resource &memory, size_t size, size_t alignment)
{
	try {
		memory.deallocate(memory.allocate(size, alignment), size, alignment);
	} catch (const std::bad_alloc &) {
		return true;
	}
	return false;
}

static int absent()
{
	kmem::group group("absent");
	kmem::memory_resource memory(group);
	CHECK(!group && !refuses(memory, 100, 8) && !refuses(memory, 100, 4096));
	std::pmr::vector<std::pmr::string> rows(&memory);
	rows.emplace_back(1000, 'x');
	CHECK(rows[0].size() == 1000);
	return RESULT();
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return absent();
	kmem::group payer("payer"), other("other");
	REQUIRE(payer && other);
	kmem::memory_resource memory(payer), same(payer.id()), differs(other);
	CHECK(memory == same && !(memory == differs) && memory.group_id() == payer.id());
	CHECK(!(memory == *std::pmr::new_delete_resource()));

	kmem::group_scope scope(other);
	for (size_t size : { 1, 24, 100, 5000, 100000 })
		for (size_t alignment : { 1, 8, 16, 64, 4096 }) {
			void *at = memory.allocate(size, alignment);
			REQUIRE(at && is_aligned(at, alignment));
			CHECK_AT(held_by(payer.id()) == cost(at), size);
			CHECK(kmem_group_current() == other.id());
			memory.deallocate(at, size, alignment);
			CHECK_AT(held_by(payer.id()) == 0, size);
		}
	{
		std::pmr::vector<std::pmr::string> rows(&memory);
		for (int i = 0; i < 1000; i++)
			rows.emplace_back(100, 'x');
		CHECK(held_by(payer.id()) > 1000 * 100 && held_by(other.id()) == 0);
	}
	CHECK(held_by(payer.id()) == 0);

	REQUIRE(payer.set(KMEM_GROUP_MAX, 1 << 20) == 0);
	CHECK(refuses(memory, 2 << 20, 16) && refuses(memory, 2 << 20, 4096));
	CHECK(!refuses(memory, 1000, 16) && !refuses(differs, 2 << 20, 16));
	CHECK(held_by(payer.id()) == 0 && held_by(other.id()) == 0);

	REQUIRE(kmem_group_delete(payer.release()) == 0);
	CHECK(refuses(memory, 100, 16) && refuses(memory, 100, 4096));
	return RESULT();
}
