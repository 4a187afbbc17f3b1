/* Work under a debugger that steps through the program, one instruction after the other. The kernel
 * aborts every restartable section then.
 *
 *     stepping          a parent steps through a child by ptrace, and demands progress
 *     stepping alone    only the work, for a debugger
 */
#include "check.h"
#include <dlfcn.h>
#include <kmem/group.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* Instructions that one operation may take. */
enum { MOST_STEPS = 100000 };

/* Operations so far, in memory that both processes see. */
volatile unsigned *operations;
volatile int done;

static void *(*alloc_percpu)(size_t size, size_t align, unsigned flags);
static void (*free_percpu)(void *);
static void (*add_percpu)(void *, uint64_t);
static uint64_t (*sum_percpu)(void *);

static void next(void)
{
	++*operations;
}

static void use(size_t size)
{
	char *block = malloc(size);
	REQUIRE(block != NULL);
	next();
	block[size - 1] = 1;
	block = realloc(block, size + size / 4);
	REQUIRE(block != NULL && block[size - 1] == 1);
	next();
	free(block);
	next();
}

static void work(kmem_group_t group, void *counter)
{
	use(24);
	use(700);
	/* No more than it takes for pages: a copy of a byte may be a step. */
	use(6000);
	use(33000);
	free(opaque(calloc(1, 500)));
	free(opaque(aligned_alloc(64, 640)));
	next();
	if (group > 0) {
		int64_t token = kmem_group_enter(group);
		use(24);
		use(700);
		kmem_group_leave(token);
		next();
	}
	if (counter) {
		uint64_t before = sum_percpu(counter);
		next();
		for (int i = 0; i < 3; i++) {
			add_percpu(counter, 5);
			next();
		}
		CHECK(sum_percpu(counter) == before + 15);
	}
}

/* Work for gdb, which takes longer for a step. */
static void few(void)
{
	use(24);
	use(700);
	done = 1;
}

/* Steps until the child ends. Returns its status. */
static int step_through(pid_t child)
{
	int status;
	unsigned last = 0;
	long steps = 0;
	for (;;) {
		REQUIRE(waitpid(child, &status, 0) == child);
		if (WIFEXITED(status) || WIFSIGNALED(status))
			return status;
		if (*operations != last)
			last = *operations, steps = 0;
		if (++steps > MOST_STEPS) {
			dprintf(2, "no progress after operation %u\n", last);
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return status;
		}
		ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
	}
}

int main(int argc, char **argv)
{
	operations = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(operations != MAP_FAILED);
	alloc_percpu = dlsym(RTLD_DEFAULT, "kmem_alloc_percpu_noprof");
	free_percpu = dlsym(RTLD_DEFAULT, "kmem_free_percpu");
	add_percpu = dlsym(RTLD_DEFAULT, "kmem_this_cpu_add_8");
	sum_percpu = dlsym(RTLD_DEFAULT, "kmem_percpu_sum_8");
	pid_t child = argc > 1 ? 0 : fork();
	REQUIRE(child >= 0);
	if (child)
		return step_through(child) ? 1 : 0;
	/* The first time is not stepped through. */
	kmem_group_t group = kmem_group_create ? kmem_group_create(KMEM_GROUP_ROOT, "tenant") : 0;
	void *counter = alloc_percpu ? alloc_percpu(8, 8, 0) : NULL;
	work(group, counter);
	if (argc > 1) {
		few();
		_exit(RESULT());
	}
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	work(group, counter);
	_exit(RESULT());
}
