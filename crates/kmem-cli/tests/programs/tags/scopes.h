/* Places that several sources share: the compiler makes one function of them. */
#include "expect.h"
#include "kmem.h"

extern void *held[100];
extern int holds;

inline void inlined()
{
	kmem::scope in(KMEM_TAG_NAMED("inline")); /* at inline */
	held[holds++] = malloc(100);
}

template <class T> void templated()
{
	kmem::scope in(KMEM_TAG_NAMED("template")); /* at template */
	held[holds++] = new T;
}

struct Member {
	void member()
	{
		kmem::scope in(KMEM_TAG()); /* at member */
		held[holds++] = malloc(100);
	}
};

void other();
