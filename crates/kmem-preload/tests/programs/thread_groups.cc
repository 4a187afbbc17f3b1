// A thread that others named, which only knows operator new.
#include "group_check.h"
#include <future>
#include <thread>

int main()
{
	if (!runs_on_kmem())
		return 0;
	std::promise<void> named;
	std::thread thread([&] {
		named.get_future().wait();
		int *at = new int[100];
		CHECK(kmem_group_of(at) == kmem_group_find("worker"));
		delete[] at;
	});
	CHECK(!pthread_setname_np(thread.native_handle(), "worker"));
	named.set_value();
	thread.join();
	return RESULT();
}
