/* Functions that map memory keep the rules of their manual pages: results, errno, contents. They
 * work before the library starts, in forked children, and in many threads at one time. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

/* More mappings than the table has room for. */
#define MANY 5000

static char *before_the_start;

/* Runs before the constructors of all libraries. */
static void early(void)
{
	before_the_start = mmap(NULL, 3 * PAGE, RW, ANON, -1, 0);
}

__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = early;

static void errors(void)
{
	errno = 77;
	char *at = mmap(NULL, 4 * PAGE, RW, ANON, -1, 0);
	CHECK(at != MAP_FAILED && errno == 77);
	CHECK(mmap(NULL, 0, RW, ANON, -1, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, PAGE, RW, MAP_PRIVATE, -1, 0) == MAP_FAILED && errno == EBADF);
	CHECK(mmap(NULL, PAGE, RW, ANON, -1, 1) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(at, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
	CHECK(mmap(NULL, -PAGE, RW, ANON, -1, 0) == MAP_FAILED && errno == ENOMEM);
	CHECK(munmap(at + 1, PAGE) == -1 && errno == EINVAL);
	CHECK(munmap(at, 0) == -1 && errno == EINVAL);
	CHECK(mremap(at, PAGE, 0, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(shmat(-1, NULL, 0) == (void *)-1 && errno == EINVAL);
	CHECK(shmdt(at) == -1 && errno == EINVAL);
	CHECK(sbrk(1l << 60) == (void *)-1 && errno == ENOMEM);
	CHECK(brk((void *)-PAGE) == -1 && errno == ENOMEM);
	errno = 77;
	char *end = sbrk(0);
	CHECK(sbrk(3 * PAGE) == end && sbrk(-(long)PAGE) == end + 3 * PAGE);
	CHECK(brk(end) == 0 && sbrk(0) == end && errno == 77);
	at[0] = 5;
	char *other = mmap(NULL, 9 * PAGE, PROT_NONE, ANON, -1, 0);
	char *moved = mremap(at, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other);
	CHECK(moved == other && moved[0] == 5 && munmap(moved, 9 * PAGE) == 0 && errno == 77);
}

static void *storm(void *unused)
{
	for (int i = 0; i < 2000; i++) {
		char *at = mmap(NULL, 16 * PAGE, RW, ANON, -1, 0);
		CHECK(at != MAP_FAILED);
		at[0] = at[15 * PAGE] = 1;
		CHECK(munmap(at + 4 * PAGE, 4 * PAGE) == 0);
		CHECK(at[15 * PAGE] == 1 && munmap(at, 16 * PAGE) == 0);
	}
	return unused;
}

static void in_a_handler(int signal)
{
	(void)signal;
	storm(NULL);
}

int main(void)
{
	CHECK(before_the_start != MAP_FAILED && before_the_start[PAGE] == 0);
	errors();
	static char *many[MANY];
	for (int i = 0; i < MANY; i++) {
		many[i] = mmap(NULL, PAGE, i & 1 ? PROT_READ : PROT_NONE, ANON, -1, 0);
		CHECK_AT(many[i] != MAP_FAILED, i);
	}
	for (int i = 0; i < MANY; i++)
		CHECK_AT(munmap(many[i], PAGE) == 0, i);
	signal(SIGUSR1, in_a_handler);
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, storm, NULL) == 0);
	raise(SIGUSR1);
	pid_t child = fork();
	if (!child) {
		errors();
		storm(NULL);
		_exit(check_failures != 0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(munmap(before_the_start, 3 * PAGE) == 0);
	return check_failures != 0;
}
