/* A memory resource of C++17 whose memory a group pays for (std::pmr::memory_resource).
 *
 *	kmem::group tenant("tenant");
 *	kmem::memory_resource memory(tenant);
 *	std::pmr::vector<std::pmr::string> rows(&memory);
 *
 * The group pays for what such a container allocates, whatever group its thread works for, and
 * until it is freed. A request that the group refuses throws std::bad_alloc. The group must live as
 * long as the resource; if it is deleted before, the resource throws std::bad_alloc, too.
 *
 * Without libkmem.so the resource allocates as operator new does, and no group pays. */
#ifndef KMEM_MEMORY_RESOURCE_H
#define KMEM_MEMORY_RESOURCE_H

#include <cstddef>
#include <memory_resource>
#include <new>

#include <kmem/group.h>

namespace kmem
{
class memory_resource : public std::pmr::memory_resource {
public:
	explicit memory_resource(kmem_group_t group) noexcept : group_(group)
	{
	}
	explicit memory_resource(const group &group) noexcept : memory_resource(group.id())
	{
	}

	/* The number of the group that pays. */
	kmem_group_t group_id() const noexcept
	{
		return group_;
	}

private:
	void *do_allocate(std::size_t bytes, std::size_t alignment) override
	{
		group_scope scope(group_);
		/* There is no such function without the library, and no such group once it is deleted. */
		if (!scope && kmem_group_current() > 0)
			throw std::bad_alloc();
		if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__)
			return ::operator new(bytes);
		return ::operator new(bytes, std::align_val_t(alignment));
	}

	void do_deallocate(void *at, std::size_t bytes, std::size_t alignment) override
	{
		if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__)
			::operator delete(at, bytes);
		else
			::operator delete(at, bytes, std::align_val_t(alignment));
	}

	/* Equal resources have one group: a container that gets the memory of another one pays as
	 * that one did. */
	bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
	{
		const memory_resource *same = dynamic_cast<const memory_resource *>(&other);
		return same && same->group_ == group_;
	}

	kmem_group_t group_;
};
} // namespace kmem

#endif /* KMEM_MEMORY_RESOURCE_H */
