// The same in C++17: the tenant and its scope are objects, and a refusal is std::bad_alloc.
//
//	c++ -std=c++17 tenant.cpp -o tenant $(pkg-config --cflags --libs kmem)
#include <iostream>
#include <kmem/group.h>
#include <new>
#include <string>

int main()
{
	kmem::group tenant("tenant");

	if (!tenant || tenant.set(KMEM_GROUP_MAX, 64 << 20) < 0)
		return 1;
	try {
		kmem::group_scope scope(tenant);
		std::string large(100 << 20, 'x');
		std::cout << "granted\n";
	} catch (const std::bad_alloc &) {
		std::cout << "refused\n";
	}
}
