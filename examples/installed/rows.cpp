// Rows of a table in containers of C++17. A group pays for all of them, and refuses what is beyond
// its limit. The rest of the program is not limited.
//
//	c++ -std=c++17 rows.cpp -o rows $(pkg-config --cflags --libs kmem)
#include <iostream>
#include <kmem/memory_resource.h>
#include <string>
#include <vector>

int main()
{
	kmem::group table("table");

	if (!table || table.set(KMEM_GROUP_MAX, 64 << 20) < 0)
		return 1;
	kmem::memory_resource memory(table);
	std::pmr::vector<std::pmr::string> rows(&memory);
	std::string row(100 << 10, 'x');
	try {
		while (rows.size() < 1000)
			rows.emplace_back(row);
		std::cout << "granted\n";
	} catch (const std::bad_alloc &) {
		std::cerr << rows.size() << " rows in 64 MiB\n";
		std::cout << "refused\n";
	}
}
