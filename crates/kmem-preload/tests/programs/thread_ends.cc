// The program allocates and frees while its threads and the process end. It does so in destructors
// of thread-specific data that arm themselves again, of thread-local objects and of static objects,
// and in exit handlers.
#include "check.h"
#include <memory>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

static pthread_key_t keys[8];
static int rounds_seen[8];
static int thread_objects_destroyed;

template <int N> static void rearm(void *value)
{
	CHECK(holds(value, 100, N));
	free(value);
	void *next = malloc(100);
	REQUIRE(next != nullptr);
	fill(next, 100, N);
	void *large = malloc(300000);
	REQUIRE(large != nullptr);
	memset(large, 1, 300000);
	free(large);
	__atomic_fetch_add(&rounds_seen[N], 1, __ATOMIC_RELAXED);
	pthread_setspecific(keys[N], next);
}

struct ThreadObject {
	std::vector<std::unique_ptr<std::string>> strings;
	ThreadObject() { add(); }
	void add()
	{
		for (int i = 0; i < 100; i++)
			strings.push_back(std::make_unique<std::string>(static_cast<size_t>(i), 'x'));
	}
	~ThreadObject()
	{
		add();
		strings.clear();
		add();
		__atomic_fetch_add(&thread_objects_destroyed, 1, __ATOMIC_RELAXED);
	}
};

static thread_local ThreadObject thread_object;

static void *thread_body(void *)
{
	thread_object.add();
	for (int i = 0; i < 8; i++) {
		void *value = malloc(100);
		REQUIRE(value != nullptr);
		fill(value, 100, static_cast<unsigned>(i));
		pthread_setspecific(keys[i], value);
	}
	return nullptr;
}

struct StaticObject {
	std::vector<std::string> strings;
	~StaticObject()
	{
		strings.assign(1000, std::string(100, 'z'));
		if (check_failures)
			_exit(1);
	}
};
static StaticObject static_object;

static void *handler_block;

static void at_exit_first()
{
	free(handler_block);
	handler_block = malloc(5000);
	REQUIRE(handler_block != nullptr);
	memset(handler_block, 1, 5000);
}

__attribute__((destructor)) static void last_of_all()
{
	free(handler_block);
	free(opaque(malloc(64)));
	dprintf(1, "torn down\n");
}

int main()
{
	REQUIRE(pthread_key_create(&keys[0], rearm<0>) == 0);
	REQUIRE(pthread_key_create(&keys[1], rearm<1>) == 0);
	REQUIRE(pthread_key_create(&keys[2], rearm<2>) == 0);
	REQUIRE(pthread_key_create(&keys[3], rearm<3>) == 0);
	REQUIRE(pthread_key_create(&keys[4], rearm<4>) == 0);
	REQUIRE(pthread_key_create(&keys[5], rearm<5>) == 0);
	REQUIRE(pthread_key_create(&keys[6], rearm<6>) == 0);
	REQUIRE(pthread_key_create(&keys[7], rearm<7>) == 0);
	static_object.strings.assign(10, "static");
	handler_block = malloc(100);
	for (int i = 0; i < 33; i++)
		atexit(at_exit_first);
	enum { THREADS = 200 };
	for (int i = 0; i < THREADS; i += 4) {
		pthread_t threads[4];
		for (auto &thread : threads)
			REQUIRE(pthread_create(&thread, nullptr, thread_body, nullptr) == 0);
		for (auto &thread : threads)
			pthread_join(thread, nullptr);
	}
	for (int seen : rounds_seen)
		CHECK_AT(seen == THREADS * PTHREAD_DESTRUCTOR_ITERATIONS, seen);
	CHECK(thread_objects_destroyed == THREADS);
	thread_object.add();
	return RESULT();
}
