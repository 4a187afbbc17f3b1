#include "scopes.h"
#include <string>
#include <thread>
#include <vector>

void *held[100];
int holds;

struct Hundred {
	char bytes[100];
};

static void *work(size_t bytes)
{
	return malloc(bytes);
}

static void nested()
{
	kmem::scope outer(KMEM_TAG_NAMED("outer")); /* at outer */
	held[holds++] = work(100);
	{
		kmem::scope inner(KMEM_TAG_NAMED("inner")); /* at inner */
		held[holds++] = new Hundred;
		try {
			kmem::scope thrown(KMEM_TAG_NAMED("thrown")); /* at thrown */
			held[holds++] = work(100);
			/* The exception itself is billed to the scope until it is destroyed. */
			throw 1;
		} catch (int) {
		}
		held[holds++] = work(100);
	}
	held[holds++] = work(100);
}

static void in_thread()
{
	kmem::scope in(KMEM_TAG_NAMED("thread")); /* at thread */
	held[holds++] = work(100);
}

int main()
{
	nested();
	inlined();
	other();
	templated<Hundred>();
	Member().member();
	std::thread one(in_thread), two;
	one.join();
	two = std::thread([] {
		kmem::scope in(KMEM_TAG_NAMED("lambda")); /* at lambda */
		held[holds++] = work(100);
	});
	two.join();
	std::string *text;
	{
		kmem::scope in(KMEM_TAG_NAMED("string")); /* at string */
		text = new std::string(1000, 'x');
		held[holds++] = text;
	}
	MUST(holds == 13);
	expect("outer", "outer", 224, 2);
	expect("inner", "inner", 224, 2);
	expect("thrown", "thrown", 112, 1);
	expect("inline", "inline", 224, 2);
	expect("member", "member", 224, 2);
	expect("thread", "thread", 112, 1);
	expect("lambda", "lambda", 112, 1);
	expect("string", "string", ksize(text) + ksize(text->data()), 2);
	expect("template", "template", 112, 1);
	check();

	/* Freed at another place than allocated. */
	kmem::scope away(KMEM_TAG_NAMED("away"));
	for (int i = 0; i < 12; i++)
		free(held[i]);
	expect("string", "string", ksize(text) + ksize(text->data()), 2);
	check();
	delete text;
	return 0;
}
