// Exceptions, threads and the containers of the C++ library together.
#include "check.h"
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

static std::mutex lock;
static std::deque<std::unique_ptr<std::string>> handed_over;

static std::string thrower(int depth)
{
	std::string local(static_cast<size_t>(depth * 13 + 1), 'x');
	if (depth == 0)
		throw std::runtime_error("bottom " + std::string(200, 'y'));
	try {
		return thrower(depth - 1) + local;
	} catch (const std::runtime_error &error) {
		if (depth % 3 == 0)
			std::throw_with_nested(std::logic_error(error.what() + local));
		throw;
	}
}

static long work(unsigned seed)
{
	uint64_t state = seed * 7919 + 1;
	std::map<std::string, std::vector<int>> tree;
	std::unordered_map<int, std::shared_ptr<std::string>> table;
	std::list<std::set<long>> sets;
	long sum = 0;
	for (int i = 0; i < 3000; i++) {
		int key = static_cast<int>(next_random(&state) % 500);
		std::ostringstream name;
		name << "key number " << key << " with a tail that does not fit the small buffer";
		tree[name.str()].push_back(i);
		table[key] = std::make_shared<std::string>(name.str());
		if (i % 50 == 0) {
			sets.emplace_back();
			for (int j = 0; j < 30; j++)
				sets.back().insert(static_cast<long>(next_random(&state)));
		}
		if (i % 7 == 0 && !tree.empty())
			tree.erase(tree.begin());
		if (i % 20 == 0) {
			try {
				sum += static_cast<long>(thrower(i % 11).size());
			} catch (const std::exception &) {
				sum++;
			}
		}
		if (i % 5 == 0) {
			std::lock_guard<std::mutex> guard(lock);
			handed_over.push_back(std::make_unique<std::string>(name.str()));
			if (handed_over.size() > 100)
				handed_over.pop_front();
		}
	}
	for (const auto &entry : table)
		CHECK(entry.second->rfind("key number " + std::to_string(entry.first) + " ", 0) == 0);
	return sum;
}

int main()
{
	std::vector<std::future<long>> results;
	for (unsigned i = 0; i < 6; i++)
		results.push_back(std::async(std::launch::async, work, i));
	for (auto &result : results)
		CHECK(result.get() == 150);
	std::exception_ptr kept;
	std::thread([&] {
		try {
			thrower(5);
		} catch (...) {
			kept = std::current_exception();
		}
	}).join();
	bool caught = false;
	try {
		std::rethrow_exception(kept);
	} catch (const std::exception &error) {
		caught = std::string(error.what()).find("bottom") != std::string::npos;
	}
	CHECK(caught);
	handed_over.clear();
	puts("containers");
	return RESULT();
}
