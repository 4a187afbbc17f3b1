// A lambda is told of what `new` is refused, and then std::bad_alloc is thrown.
#include "group_check.h"
#include <kmem/refusal.h>
#include <new>
#include <string>

int main()
{
	if (!runs_on_kmem())
		return 0;
	std::string told;
	auto note = [](void *data, const struct kmem_refusal *refusal) {
		// The root pays for the text.
		*static_cast<std::string *>(data) =
			"a text too long to be held in place: " + std::to_string(refusal->bytes);
	};
	CHECK(kmem_on_refusal(note, &told) == 0);
	bool thrown = false;
	{
		kmem::group tenant("tenant");
		tenant.set(KMEM_GROUP_MAX, 1 << 20);
		kmem::group_scope scope(tenant);
		try {
			std::string large(2 << 20, 'x');
		} catch (const std::bad_alloc &) {
			thrown = true;
		}
		CHECK(tenant.stat().current == 0);
	}
	CHECK(thrown && told.rfind("a text too long to be held in place: 2097", 0) == 0);
	CHECK(kmem_on_refusal(nullptr, nullptr) == 0);
	return RESULT();
}
