// A program with a malloc of its own, as browsers have. It has the four functions that glibc asks
// for, and one operator new without an operator delete. All memory that the C library or another
// function hands out as the program's comes from these functions, and goes back to them.
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <new>
#include <string>

struct alignas(16) Block {
	uint64_t mark;
	size_t size;
};

static const uint64_t MARK = 0x6d616c6c6f6321u;
alignas(16) static char memory[64 << 20];
static size_t used;
static long live;

extern "C" void *malloc(size_t size)
{
	size_t bytes = sizeof(Block) + ((size + 15) & ~size_t(15));
	size_t from = __atomic_fetch_add(&used, bytes, __ATOMIC_RELAXED);
	if (from + bytes > sizeof memory) {
		errno = ENOMEM;
		return nullptr;
	}
	Block *block = reinterpret_cast<Block *>(memory + from);
	block->mark = MARK;
	block->size = size;
	__atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
	return block + 1;
}

extern "C" void free(void *at)
{
	if (!at)
		return;
	Block *block = static_cast<Block *>(at) - 1;
	REQUIRE(static_cast<char *>(at) > memory && static_cast<char *>(at) < memory + sizeof memory);
	REQUIRE(block->mark == MARK);
	block->mark = 0;
	__atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
}

extern "C" void *calloc(size_t count, size_t size)
{
	void *at = malloc(count * size);
	if (at)
		memset(at, 0, count * size);
	return at;
}

extern "C" void *realloc(void *at, size_t size)
{
	void *moved = malloc(size);
	if (at && moved) {
		size_t before = (static_cast<Block *>(at) - 1)->size;
		memcpy(moved, at, before < size ? before : size);
		free(at);
	}
	return moved;
}

void *operator new(size_t size)
{
	return malloc(size);
}

static bool is_own(void *at)
{
	return at > memory && at < memory + sizeof memory;
}

/* Takes what a function of the C library allocated, and gives it to free. */
static void goes_back(void *at)
{
	CHECK(is_own(at));
	free(at);
}

int main()
{
	goes_back(strdup("text"));
	goes_back(strndup("text", 2));
	goes_back(getcwd(nullptr, 0));
	goes_back(realpath("/proc/self/exe", nullptr));
	char *text = nullptr;
	CHECK(asprintf(&text, "%d", 12345) == 5);
	goes_back(text);
	size_t length = 0;
	FILE *stream = open_memstream(&text, &length);
	fprintf(stream, "%01000d", 1);
	fclose(stream);
	goes_back(text);
	stream = fopen("/proc/self/maps", "r");
	text = nullptr, length = 0;
	CHECK(getline(&text, &length, stream) > 0);
	goes_back(text);
	text = nullptr, length = 0;
	CHECK(getdelim(&text, &length, 0, stream) > 0);
	goes_back(text);
	fclose(stream);
	struct dirent **names;
	int count = scandir("/", &names, nullptr, alphasort);
	CHECK(count > 0);
	while (count-- > 0)
		goes_back(names[count]);
	goes_back(names);

	int *numbers = static_cast<int *>(reallocarray(nullptr, 10, sizeof(int)));
	CHECK(is_own(numbers));
	numbers[9] = 9;
	numbers = static_cast<int *>(reallocarray(numbers, 1000, sizeof(int)));
	CHECK(is_own(numbers) && numbers[9] == 9);
	errno = 0;
	CHECK(reallocarray(numbers, SIZE_MAX / 2, 4) == nullptr && errno == ENOMEM);
	goes_back(numbers);

	/* The compiler calls the sized form, which the program does not have. */
	long before = live;
	delete static_cast<int *>(opaque(new int(1)));
	delete[] static_cast<char *>(opaque(new char[100]));
	::operator delete(opaque(::operator new(10)), size_t(10));
	::operator delete(opaque(::operator new(10, std::nothrow)), std::nothrow);
	{
		std::string string(1000, 'x');
		CHECK(is_own(&string[0]));
	}
	CHECK(live == before);
	const std::align_val_t page = std::align_val_t(4096);
	if (runs_on_kmem()) {
		/* The C library has no aligned memory that this program's free knows. */
		::operator delete(opaque(::operator new(10, page)), page);
		::operator delete(opaque(::operator new(10, page)), 10, page);
		void *sized = malloc(10);
		CHECK(malloc_usable_size(sized) == 0);
		auto free_sized = reinterpret_cast<void (*)(void *, size_t)>(dlsym(RTLD_DEFAULT, "free_sized"));
		free_sized(sized, 10);
		auto free_aligned = reinterpret_cast<void (*)(void *, size_t, size_t)>(
			dlsym(RTLD_DEFAULT, "free_aligned_sized"));
		free_aligned(malloc(10), 16, 10);
		CHECK(live == before);
		/* Memory of kmem keeps going back to kmem. */
		void *aligned = aligned_alloc(64, 100);
		CHECK(malloc_usable_size(aligned) >= 100);
		::operator delete(aligned);
	}
	return RESULT();
}
