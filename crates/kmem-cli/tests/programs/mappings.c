/* Maps memory in every way, touches some of it, prints ready and waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define OWN __attribute__((noinline))

static void need(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(2);
	}
}

static void touch(char *at, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		at[i * PAGE] = 1;
}

static char *checked(void *at)
{
	need(at != MAP_FAILED, "mmap");
	return at;
}

/* Neighbours, which the kernel merges to one mapping. */
OWN static char *space(size_t pages)
{
	return checked(mmap(NULL, pages * PAGE, PROT_NONE, ANON, -1, 0)); /* reserve */
}

OWN static void left(char *at)
{
	touch(checked(mmap(at, 40 * PAGE, RW, ANON | MAP_FIXED, -1, 0)), 30); /* left */
}

OWN static void right(char *at)
{
	touch(checked(mmap(at, 20 * PAGE, RW, ANON | MAP_FIXED, -1, 0)), 7); /* right */
}

/* Loses pages at its start, in the middle and at its end. */
OWN static void holes(void)
{
	char *at = checked(mmap(NULL, 100 * PAGE, RW, ANON, -1, 0)); /* holes */
	touch(at, 100);
	need(!munmap(at, 10 * PAGE), "munmap");
	need(!munmap(at + 40 * PAGE, 5 * PAGE), "munmap");
	need(!munmap(at + 80 * PAGE, 20 * PAGE), "munmap");
}

OWN static char *small(void)
{
	return checked(mmap(NULL, 8 * PAGE, RW, ANON, -1, 0)); /* small */
}

OWN static void grow(char *at)
{
	char *new = checked(mremap(at, 8 * PAGE, 64 * PAGE, MREMAP_MAYMOVE)); /* grow */
	touch(new, 50);
}

/* Fails, and must not take the name of the old mapping. */
OWN static void cannot_grow(char *at)
{
	need(mremap(at, PAGE, 1ul << 60, 0) == MAP_FAILED, "mremap that must fail");
	need(munmap(at + 1, PAGE) == -1, "munmap that must fail");
}

OWN static char *kept(void)
{
	char *at = checked(mmap(NULL, 11 * PAGE, RW, ANON, -1, 0)); /* kept */
	touch(at, 11);
	return at;
}

OWN static void shared(void)
{
	touch(checked(mmap(NULL, 12 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0)), 9); /* shared */
}

OWN static void segment(void)
{
	int id = shmget(IPC_PRIVATE, 16 * PAGE, IPC_CREAT | 0600);
	need(id >= 0, "shmget");
	char *at = shmat(id, NULL, 0); /* segment */
	need(at != (char *)-1, "shmat");
	touch(at, 5);
	need(!shmctl(id, IPC_RMID, NULL), "shmctl");
	char *gone = shmat(id, NULL, 0);
	need(gone != (char *)-1 && !shmdt(gone), "shmdt");
}

OWN static void file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	need(fd >= 0 && !ftruncate(fd, 24 * PAGE), path);
	touch(checked(mmap(NULL, 24 * PAGE, RW, MAP_PRIVATE, fd, 0)), 6);
	close(fd);
}

OWN static void data_segment(void)
{
	char *at = sbrk(30 * PAGE); /* data_segment */
	need(at != (char *)-1, "sbrk");
	touch(at, 30);
	need(sbrk(-10 * (long)PAGE) != (char *)-1, "sbrk");
}

OWN static void freed(void)
{
	char *at = checked(mmap(NULL, 50 * PAGE, RW, ANON, -1, 0));
	touch(at, 50);
	need(!munmap(at, 50 * PAGE), "munmap");
	/* A call that kmem does not see gets these addresses. */
	long again = syscall(SYS_mmap, at, 50 * PAGE, PROT_READ, ANON | MAP_FIXED, -1, 0);
	need(again == (long)at, "mmap");
}

static pthread_barrier_t started;

static void *thread(void *unused)
{
	char on_stack[64 * PAGE];
	touch(on_stack, 64);
	__asm__ volatile("" : : "r"(on_stack) : "memory");
	pthread_barrier_wait(&started);
	pause();
	return unused;
}

int main(int argc, char **argv)
{
	char *at = space(1000);
	left(at + 100 * PAGE);
	right(at + 140 * PAGE);
	holes();
	grow(small());
	cannot_grow(kept());
	shared();
	segment();
	file(argv[argc - 1]);
	data_segment();
	freed();
	pthread_barrier_init(&started, NULL, 4);
	for (int i = 0; i < 3; i++) {
		pthread_t new;
		need(!pthread_create(&new, NULL, thread, NULL), "pthread_create");
	}
	pthread_barrier_wait(&started);
	int child = fork();
	if (!child) {
		/* A child has the table of its parent, and mappings of its own. */
		left(at + 200 * PAGE);
		printf("%d\n", getpid());
		puts("ready");
		fflush(stdout);
		getchar();
		return 0;
	}
	getchar();
	return 0;
}
