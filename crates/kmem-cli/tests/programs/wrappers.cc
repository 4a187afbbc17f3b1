/* Memory that comes through templates of the C++ library. It is all kept. */
#include <map>
#include <string>
#include <vector>

#define NOINLINE __attribute__((noinline))

NOINLINE static std::vector<std::string> *lines()
{
	auto *all = new std::vector<std::string>;
	for (int i = 0; i < 500; i++)
		all->push_back(std::string(100, 'a'));
	return all;
}

NOINLINE static std::map<int, int> *index()
{
	auto *all = new std::map<int, int>;
	for (int i = 0; i < 700; i++)
		(*all)[i] = i;
	return all;
}

void *volatile kept;

int main()
{
	kept = lines();
	kept = index();
	return 0;
}
