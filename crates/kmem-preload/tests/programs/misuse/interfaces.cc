// Blocks that another member of the family takes back than gave them. Wrong sizes of sized forms.
// Owners of C++ that own too much. The argument is the CASE.
#include "heap.h"
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace {

template <class T> T *hide(T *pointer)
{
	announce(pointer);
	return static_cast<T *>(opaque((void *)pointer));
}

int went_on(size_t size)
{
	go_on(size);
	return passed(UNNOTICED);
}

const std::align_val_t PAGE{ 4096 };

int malloc_delete() { return ::operator delete(hide(malloc(100))), went_on(100); }
int malloc_delete_array() { return ::operator delete[](hide(malloc(100))), went_on(100); }
int calloc_delete() { return ::operator delete(hide(calloc(100, 1))), went_on(100); }
int new_free() { return free(hide(::operator new(100))), went_on(100); }
int new_array_free() { return free(hide(::operator new[](100))), went_on(100); }
int new_delete_array() { return ::operator delete[](hide(::operator new(100))), went_on(100); }
int new_array_delete() { return ::operator delete(hide(::operator new[](100))), went_on(100); }
int new_realloc() { return free(realloc(hide(::operator new(100)), 200)), went_on(200); }
int aligned_new_free() { return free(hide(::operator new(100, PAGE))), went_on(100); }
void *aligned_new() { return hide(::operator new(100, PAGE)); }
int aligned_new_delete() { return ::operator delete(aligned_new()), went_on(100); }
void *plain_new() { return hide(::operator new(100)); }
int new_aligned_delete() { return ::operator delete(plain_new(), PAGE), went_on(100); }
int memalign_delete() { return ::operator delete(hide(memalign(4096, 100))), went_on(100); }
void *plain_malloc() { return hide(malloc(100)); }
int malloc_sized_delete() { return ::operator delete(plain_malloc(), 100), went_on(100); }

int wrong_alignment()
{
	::operator delete(hide(::operator new(100, PAGE)), std::align_val_t(64));
	return went_on(100);
}

// Sizes of sized forms.
int sized(size_t real, size_t said)
{
	::operator delete(hide(::operator new(real)), said);
	go_on(said);
	return went_on(real);
}

int sized_smaller() { return sized(100, 24); }
int sized_larger() { return sized(100, 3000); }
int sized_large_as_small() { return sized(MIB, 64); }
int sized_small_as_large() { return sized(64, MIB); }
int sized_large_as_larger() { return sized(MIB, 4 * MIB); }
int sized_by_one() { return sized(100, 113); }
int sized_of_class() { return sized(100, 101); }

int sized_array()
{
	::operator delete[](hide(::operator new[](100)), size_t(3000));
	return went_on(100);
}

int sized_aligned()
{
	::operator delete(hide(::operator new(100, PAGE)), size_t(100000), PAGE);
	return went_on(100);
}

// The destructor of a base that is not virtual: the compiler passes the size of the base.
struct Base {
	int number = 0;
};
struct Derived : Base {
	char more[500] = {};
};

int delete_by_base()
{
	Base *volatile base = hide(static_cast<Base *>(new Derived));
	delete base;
	go_on(sizeof(Base));
	return went_on(sizeof(Derived));
}

// The second base is inside of the object.
struct Second {
	long number = 2;
};
struct Both : Derived, Second {};

int delete_by_second_base()
{
	Second *volatile second = hide(static_cast<Second *>(new Both));
	delete second;
	return went_on(sizeof(Both));
}

// An array of objects with a destructor: the pointer is behind the count.
struct Owner {
	char *text = nullptr;
	~Owner() { text = nullptr; }
};

int delete_array_as_one()
{
	Owner *volatile owners = hide(new Owner[10]);
	delete owners;
	return went_on(88);
}

int free_array_of_owners()
{
	free(hide(new Owner[10]));
	return went_on(88);
}

typedef void (*FreeSized)(void *, size_t);
typedef void (*FreeAlignedSized)(void *, size_t, size_t);

template <class T> T function(const char *name)
{
	T found = reinterpret_cast<T>(dlsym(RTLD_DEFAULT, name));
	if (!found)
		passed(NO_SUCH_CASE);
	return found;
}

int free_sized(size_t real, size_t said)
{
	FreeSized free_it = function<FreeSized>("free_sized");
	free_it(hide(malloc(real)), said);
	go_on(said);
	return went_on(real);
}

int free_sized_smaller() { return free_sized(100, 24); }
int free_sized_larger() { return free_sized(100, 3000); }
int free_sized_of_class() { return free_sized(100, 99); }
int free_sized_large() { return free_sized(MIB, 64); }

int free_sized_of_aligned()
{
	FreeSized free_it = function<FreeSized>("free_sized");
	free_it(hide(aligned_alloc(4096, 4096)), 4096);
	return went_on(4096);
}

int free_aligned_sized_alignment()
{
	FreeAlignedSized free_it = function<FreeAlignedSized>("free_aligned_sized");
	free_it(hide(aligned_alloc(64, 128)), 4096, 128);
	return went_on(128);
}

int free_aligned_sized_size()
{
	FreeAlignedSized free_it = function<FreeAlignedSized>("free_aligned_sized");
	free_it(hide(aligned_alloc(64, 128)), 64, 8192);
	return went_on(128);
}

// Owners.
int delete_twice()
{
	int *volatile number = hide(new int);
	delete number;
	delete number;
	return went_on(4);
}

int delete_array_twice()
{
	char *volatile text = hide(new char[5000]);
	delete[] text;
	delete[] text;
	return went_on(5000);
}

int two_owners()
{
	long *number = hide(new long[10]);
	{
		std::unique_ptr<long[]> one(number), two(number);
	}
	return went_on(80);
}

int delete_inside()
{
	::operator delete(hide(static_cast<char *>(::operator new(100)) + 16));
	return went_on(100);
}

int delete_local()
{
	long number[16] = {};
	::operator delete(hide(number));
	return went_on(128);
}

int element_behind_vector()
{
	std::vector<long> numbers(8, 1);
	announce(numbers.data());
	unsigned char *bytes = reinterpret_cast<unsigned char *>(&numbers[0]);
	int slack = is_slack(bytes, 64, sizeof(long));
	overwrite(bytes + 64, sizeof(long));
	numbers.~vector();
	go_on(64);
	return passed(slack ? HARMLESS : UNNOTICED);
}

int reference_after_growth()
{
	std::vector<long> numbers(8, 1);
	long *first = &numbers[0];
	announce(first);
	numbers.reserve(1000);
	*static_cast<volatile long *>(first) = 2;
	return went_on(64);
}

int text_after_destructor()
{
	std::string *text = new std::string(64, 'x');
	const char *volatile bytes = text->c_str();
	announce(bytes);
	delete text;
	size_t left = 0;
	for (size_t i = 0; i < 64; i++)
		left += bytes[i] == 'x';
	return passed(left ? UNNOTICED : HARMLESS);
}

// Counts that overflow.
int fails(void *block)
{
	int refused = block == nullptr;
	go_on(64);
	return passed(refused ? REFUSED : UNNOTICED);
}

template <class Make> int throws(Make make)
{
	try {
		return fails(make());
	} catch (const std::bad_alloc &) {
		return fails(nullptr);
	}
}

volatile size_t wraps = SIZE_MAX / 16 + 2, half = (size_t)PTRDIFF_MAX + 1;

int new_array_wraps() { return throws([] { return new Both[wraps]; }); }
int new_array_half() { return throws([] { return new char[half]; }); }
int new_most() { return throws([] { return ::operator new(SIZE_MAX); }); }
int new_nothrow_most() { return fails(::operator new(SIZE_MAX, std::nothrow)); }
int new_nothrow_half() { return fails(new (std::nothrow) char[half]); }
int new_aligned_most() { return throws([] { return ::operator new(SIZE_MAX - 4095, PAGE); }); }

int new_odd_alignment()
{
	return throws([] { return ::operator new(100, std::align_val_t(24)); });
}

const struct {
	const char *name;
	int (*run)();
} CASES[] = {
#define CASE(name) { #name, name }
	CASE(malloc_delete),
	CASE(malloc_delete_array),
	CASE(calloc_delete),
	CASE(new_free),
	CASE(new_array_free),
	CASE(new_delete_array),
	CASE(new_array_delete),
	CASE(new_realloc),
	CASE(aligned_new_free),
	CASE(aligned_new_delete),
	CASE(new_aligned_delete),
	CASE(memalign_delete),
	CASE(malloc_sized_delete),
	CASE(wrong_alignment),
	CASE(sized_smaller),
	CASE(sized_larger),
	CASE(sized_large_as_small),
	CASE(sized_small_as_large),
	CASE(sized_large_as_larger),
	CASE(sized_by_one),
	CASE(sized_of_class),
	CASE(sized_array),
	CASE(sized_aligned),
	CASE(delete_by_base),
	CASE(delete_by_second_base),
	CASE(delete_array_as_one),
	CASE(free_array_of_owners),
	CASE(free_sized_smaller),
	CASE(free_sized_larger),
	CASE(free_sized_of_class),
	CASE(free_sized_large),
	CASE(free_sized_of_aligned),
	CASE(free_aligned_sized_alignment),
	CASE(free_aligned_sized_size),
	CASE(delete_twice),
	CASE(delete_array_twice),
	CASE(two_owners),
	CASE(delete_inside),
	CASE(delete_local),
	CASE(element_behind_vector),
	CASE(reference_after_growth),
	CASE(text_after_destructor),
	CASE(new_array_wraps),
	CASE(new_array_half),
	CASE(new_most),
	CASE(new_nothrow_most),
	CASE(new_nothrow_half),
	CASE(new_aligned_most),
	CASE(new_odd_alignment),
};

} // namespace

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	for (const auto &one : CASES)
		if (is(argv[1], one.name))
			return one.run();
	return passed(NO_SUCH_CASE);
}
