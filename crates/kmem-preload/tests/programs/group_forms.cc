// Every way to allocate charges the group of the thread, to the byte, and a free anywhere credits
// it. Above `max` each way fails as it does when there is no memory, and leaves nothing behind.
#include "group_check.h"
#include <kmem.h>
#include <new>
#include <pthread.h>
#include <vector>

extern "C" {
void *kmem_malloc_tag(size_t size, const kmem_alloc_tag *tag);
void *kmem_calloc_tag(size_t count, size_t size, const kmem_alloc_tag *tag);
void *kmem_realloc_tag(void *at, size_t size, const kmem_alloc_tag *tag);
void *kmem_memalign_tag(size_t align, size_t size, const kmem_alloc_tag *tag);
void *reallocarray(void *at, size_t count, size_t size);
}

static const std::align_val_t page = std::align_val_t(4096);
static struct kmem_cache *cache;
/* Zeroes: an empty string. */
static char source[4 << 20];

static void *posix(size_t size)
{
	void *at = nullptr;
	return posix_memalign(&at, 64, size) ? nullptr : at;
}

struct form {
	const char *name;
	void *(*allocate)(size_t size);
	void (*free)(void *at);
	bool throws;
};

static void cache_free(void *at)
{
	kmem_cache_free(cache, at);
}

#define FORM(call) { #call, [](size_t size) -> void * { return call; }, free, false }
#define KERNEL(call) \
	{ #call, [](size_t size) -> void * { return call; }, [](void *at) { kfree(at); }, false }
#define CACHE(call) { #call, [](size_t) -> void * { return call; }, cache_free, false }
#define NEW(call, gone) \
	{ #call, [](size_t size) -> void * { return call; }, [](void *at) { gone; }, true }
#define NOTHROW(call, gone) \
	{ #call, [](size_t size) -> void * { return call; }, [](void *at) { gone; }, false }

static const form forms[] = {
	FORM(malloc(size)),
	FORM(calloc(size, 1)),
	FORM(realloc(nullptr, size)),
	FORM(reallocarray(nullptr, 1, size)),
	FORM(memalign(64, size)),
	FORM(aligned_alloc(64, size)),
	FORM(posix(size)),
	FORM(valloc(size)),
	FORM(pvalloc(size)),
	FORM(kmem_malloc_tag(size, KMEM_TAG())),
	FORM(kmem_calloc_tag(1, size, KMEM_TAG())),
	FORM(kmem_realloc_tag(nullptr, size, KMEM_TAG())),
	FORM(kmem_memalign_tag(256, size, KMEM_TAG())),
	KERNEL(kmalloc(size, GFP_KERNEL)),
	KERNEL(kmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)),
	KERNEL(kzalloc(size, __GFP_ACCOUNT)),
	KERNEL(kcalloc(size, 1, GFP_KERNEL)),
	KERNEL(krealloc(nullptr, size, GFP_KERNEL)),
	KERNEL(kmalloc_noprof(size, GFP_KERNEL)),
	KERNEL(alloc_pages_exact(size, GFP_KERNEL)),
	KERNEL(alloc_pages(GFP_KERNEL, 4)),
	KERNEL((void *)get_zeroed_page(GFP_KERNEL)),
	KERNEL((void *)__get_free_pages(GFP_KERNEL, 4)),
	KERNEL(kvmalloc(size, GFP_KERNEL)),
	KERNEL(kvcalloc(size, 1, GFP_KERNEL)),
	KERNEL(kvrealloc(nullptr, size, GFP_KERNEL)),
	KERNEL(krealloc_array(nullptr, size, 1, GFP_KERNEL)),
	KERNEL(kmemdup(source, size, GFP_KERNEL)),
	KERNEL(kstrndup(source, size - 1, GFP_KERNEL)),
	KERNEL(const_cast<char *>(kstrdup_const(source, GFP_KERNEL))),
	KERNEL(__vmalloc(size, GFP_KERNEL)),
	KERNEL(vcalloc(size, 1)),
	CACHE(kmem_cache_alloc(cache, GFP_KERNEL)),
	CACHE(kmem_cache_zalloc(cache, GFP_KERNEL | SLAB_ACCOUNT)),
	NEW(::operator new(size), ::operator delete(at)),
	NEW(::operator new[](size), ::operator delete[](at)),
	NEW(::operator new(size, page), ::operator delete(at, page)),
	NEW(::operator new[](size, page), ::operator delete[](at, page)),
	NOTHROW(::operator new(size, std::nothrow), ::operator delete(at)),
	NOTHROW(::operator new[](size, std::nothrow), ::operator delete[](at)),
	NOTHROW(::operator new(size, page, std::nothrow), ::operator delete(at, page)),
	NOTHROW(::operator new[](size, page, std::nothrow), ::operator delete[](at, page)),
};

static const form *freed_form;
static void *freed;

static void *frees_in_a_group_of_its_own(void *)
{
	kmem::group_scope scope(kmem_group_find("other"));
	CHECK(bool(scope));
	freed_form->free(freed);
	return nullptr;
}

static void free_elsewhere(const form *form, void *at)
{
	pthread_t thread;
	freed_form = form;
	freed = at;
	REQUIRE(!pthread_create(&thread, nullptr, frees_in_a_group_of_its_own, nullptr));
	pthread_join(thread, nullptr);
}

static void charged(const kmem::group &group, const form &form, size_t size)
{
	void *at;
	uint64_t before = group.stat().current;
	{
		kmem::group_scope scope(group);
		at = opaque(form.allocate(size));
	}
	if (!at || kmem_group_of(at) != group.id() || group.stat().current != before + cost(at)) {
		dprintf(2, "FAILED %s of %zu\n", form.name, size);
		check_failures++;
	}
	free_elsewhere(&form, at);
	CHECK_AT(group.stat().current == before, size);
}

static void refused(const kmem::group &group, const form &form, size_t size)
{
	bool thrown = false;
	void *at = nullptr;
	{
		kmem::group_scope scope(group);
		try {
			at = opaque(form.allocate(size));
		} catch (const std::bad_alloc &) {
			thrown = true;
		}
	}
	if (at || thrown != form.throws || group.stat().current != 0) {
		dprintf(2, "FAILED %s of %zu above max: %p, thrown %d\n", form.name, size, at, thrown);
		check_failures++;
	}
}

/* All or nothing, as each says. */
static void bulk(const kmem::group &group)
{
	enum { COUNT = 300 };
	void *all[COUNT];
	kmem::group_scope scope(group);
	CHECK(kmalloc_bulk(100, GFP_KERNEL, COUNT, all) == COUNT);
	CHECK(group.stat().current == COUNT * cost(all[0]));
	kfree_bulk(COUNT, all);
	CHECK(kmem_cache_alloc_bulk(cache, GFP_KERNEL, COUNT, all) == COUNT);
	CHECK(group.stat().current == COUNT * cost(all[0]));
	kmem_cache_free_bulk(cache, COUNT, all);
	memset(all, 0, sizeof all);
	CHECK(alloc_pages_bulk(GFP_KERNEL, COUNT, all) == COUNT && group.stat().current == COUNT * 4100);
	kfree_bulk(COUNT, all);
	CHECK(group.stat().current == 0);

	/* The limit is in the middle of them. */
	group.set(KMEM_GROUP_MAX, 100 * 116);
	memset(all, 0xEE, sizeof all);
	CHECK(kmalloc_bulk(100, GFP_KERNEL, COUNT, all) == 0 && group.stat().current == 0);
	CHECK(kmem_cache_alloc_bulk(cache, GFP_KERNEL, COUNT, all) == 0 && group.stat().current == 0);
	CHECK(kmalloc_bulk(100, GFP_KERNEL, 100, all) == 100 && group.stat().current == 100 * 116);
	kfree_bulk(100, all);
	group.set(KMEM_GROUP_MAX, 10 * 4100 + 4000);
	memset(all, 0, sizeof all);
	CHECK(alloc_pages_bulk(GFP_KERNEL, COUNT, all) == 10 && group.stat().current == 10 * 4100);
	for (int i = 0; i < COUNT; i++)
		CHECK_AT((i < 10) == (all[i] != nullptr), i);
	kfree_bulk(10, all);
	group.set(KMEM_GROUP_MAX, KMEM_GROUP_NO_LIMIT);
	CHECK(group.stat().current == 0);
}

/* A request that must not fail goes above the limit, and the group says so; one that only tries
 * harder does not. */
static void nofail(const kmem::group &group)
{
	kmem::group_scope scope(group);
	const gfp_t retry = GFP_KERNEL | __GFP_NOWARN | __GFP_RETRY_MAYFAIL;
	const gfp_t must = GFP_KERNEL | __GFP_NOWARN | __GFP_NOFAIL;

	group.set(KMEM_GROUP_MAX, 10);
	CHECK(!kmalloc(100, retry) && !alloc_pages(retry, 0) && !alloc_pages(retry, 3));
	CHECK(!kmem_cache_alloc(cache, retry) && !vmalloc_aligned(100000, 4096, retry));
	CHECK(!group.stat().over_limit && group.stat().current == 0);
	void *object = kmem_cache_alloc(cache, must);
	void *all[] = { kmalloc(100, must), kzalloc(100, must | GFP_NOWAIT), krealloc(nullptr, 5000, must),
			alloc_pages(must, 0), alloc_pages(must, 3),
			(void *)get_zeroed_page(must) };
	void *area = vmalloc_aligned(100000, 4096, must);
	CHECK(object && area && group.stat().over_limit);
	kmem_cache_free(cache, object);
	vfree(area);
	for (void *at : all) {
		CHECK(at);
		kfree(at);
	}
	group.set(KMEM_GROUP_MAX, KMEM_GROUP_NO_LIMIT);
	CHECK(group.stat().current == 0);
}

static void unaccounted(const kmem::group &group)
{
	kmem::group_scope scope(group);
	void *bulk[2], *pages[2] = {};
	CHECK(kmalloc_bulk(100, __GFP_UNACCOUNTED, 2, bulk) == 2);
	CHECK(alloc_pages_bulk(__GFP_UNACCOUNTED, 2, pages) == 2);
	void *all[] = { kmalloc(100, __GFP_UNACCOUNTED),
			kzalloc(100, __GFP_UNACCOUNTED | __GFP_NOWARN),
			kcalloc(10, 10, __GFP_UNACCOUNTED),
			krealloc(nullptr, 100, __GFP_UNACCOUNTED),
			kstrdup("text", __GFP_UNACCOUNTED),
			alloc_pages(__GFP_UNACCOUNTED, 2),
			alloc_pages_exact(100000, __GFP_UNACCOUNTED),
			bulk[0], bulk[1], pages[0], pages[1] };
	for (void *at : all) {
		CHECK(kmem_group_of(at) == KMEM_GROUP_ROOT);
		/* Who does not pay goes on not to pay. */
		if (at == all[0])
			at = krealloc(at, 5000, GFP_KERNEL);
		CHECK(group.stat().current == 0);
		kfree(at);
	}
	void *object = kmem_cache_alloc(cache, __GFP_UNACCOUNTED);
	CHECK(kmem_group_of(object) == KMEM_GROUP_ROOT && group.stat().current == 0);
	kmem_cache_free(cache, object);
}

static void resized(const kmem::group &group, const kmem::group &other)
{
	void *at;
	{
		kmem::group_scope scope(group);
		at = malloc(100);
	}
	kmem::group_scope scope(other);
	for (size_t size : { 90, 1000, 50000, 3000000, 5000000, 200, 24 }) {
		at = size % 3 ? realloc(at, size) : krealloc(at, size, GFP_KERNEL);
		CHECK_AT(kmem_group_of(at) == group.id() && group.stat().current == cost(at), size);
		CHECK(other.stat().current == 0);
	}
	group.set(KMEM_GROUP_MAX, 5000);
	CHECK(realloc(at, 1 << 20) == nullptr && krealloc(at, 1 << 20, GFP_KERNEL) == nullptr);
	CHECK(kmem_group_of(at) == group.id() && group.stat().current == cost(at));
	group.set(KMEM_GROUP_MAX, KMEM_GROUP_NO_LIMIT);
	// With the flag the thread's group pays.
	for (size_t size : { 30, 24, 1000, 50000, 3000000, 5000000, 200, 24 }) {
		at = size % 3 ? krealloc(at, size, __GFP_RECHARGE)
			      : kvrealloc(at, size, GFP_KERNEL | __GFP_RECHARGE);
		CHECK_AT(kmem_group_of(at) == other.id() && other.stat().current == cost(at), size);
		CHECK(group.stat().current == 0);
	}
	kmem::group_scope inner(group);
	group.set(KMEM_GROUP_MAX, 10);
	for (size_t size : { 24, 20, 4000, 1 << 20 })
		CHECK(krealloc(at, size, __GFP_RECHARGE | __GFP_NOWARN) == nullptr);
	CHECK(kmem_group_of(at) == other.id() && other.stat().current == cost(at));
	group.set(KMEM_GROUP_MAX, KMEM_GROUP_NO_LIMIT);
	at = krealloc(at, 5000, __GFP_RECHARGE | __GFP_UNACCOUNTED);
	CHECK(kmem_group_of(at) == KMEM_GROUP_ROOT && other.stat().current == 0);
	free(at);
}

static void owners()
{
	kmem_group_t number;
	{
		kmem::group first("first");
		CHECK(first && first.error() == 0);
		kmem::group twice("first"), bad("a/b");
		CHECK(!twice && twice.error() == EEXIST && bad.error() == EINVAL);
		{
			kmem::group below("below", first.id());
			CHECK(kmem_group_parent(below.id()) == first.id());
		}
		kmem::group_scope none(bad);
		CHECK(!none && kmem_group_current() == KMEM_GROUP_ROOT);
		number = first.id();
		kmem::group moved(static_cast<kmem::group &&>(first));
		CHECK(!first && moved.id() == number && kmem_group_find("first") == number);
		CHECK(first.stat().max == 0 && first.set(KMEM_GROUP_MAX, 1) < 0);
	}
	CHECK(kmem_group_find("first") == -ESRCH);
	{
		kmem::group group("switched");
		kmem::group_pin pin(group), none(number);
		CHECK(pin && pin.id() == group.id() && !none && none.error() == ESRCH);
		{
			kmem::group_switch there(pin), nowhere(none);
			CHECK(there && !nowhere && kmem_group_current() == group.id());
			kmem::group_switch again(pin);
			CHECK(again);
		}
		CHECK(kmem_group_current() == KMEM_GROUP_ROOT);
	}
	CHECK(kmem_group_dying() == 0);
	std::vector<int> *kept;
	{
		kmem::group group("thrown");
		try {
			kmem::group_scope scope(group);
			kept = new std::vector<int>(1000);
			CHECK(group.stat().current == cost(kept) + cost(kept->data()));
			throw 1;
		} catch (int) {
			CHECK(kmem_group_current() == KMEM_GROUP_ROOT);
		}
	}
	CHECK(kmem_group_dying() == 1 && kmem_group_of(kept) == KMEM_GROUP_ROOT);
	delete kept;
	CHECK(kmem_group_dying() == 0);
}

int main()
{
	if (!runs_on_kmem())
		return 0;
	cache = kmem_cache_create("objects", 200, 0, nullptr);
	kmem::group group("payer"), other("other");
	REQUIRE(group && other);
	for (const form &form : forms)
		for (size_t size : { 1, 100, 3000, 33000, 70000, 3000000 })
			charged(group, form, size);
	bulk(group);
	nofail(group);
	unaccounted(group);
	resized(group, other);
	CHECK(group.stat().current == 0 && other.stat().current == 0);
	group.set(KMEM_GROUP_MAX, 0);
	for (const form &form : forms)
		for (size_t size : { 1, 3000, 70000 })
			refused(group, form, size);
	group.set(KMEM_GROUP_MAX, KMEM_GROUP_NO_LIMIT);
	for (const form &form : forms)
		charged(group, form, 100);
	owners();
	kmem_cache_destroy(cache);
	return RESULT();
}
