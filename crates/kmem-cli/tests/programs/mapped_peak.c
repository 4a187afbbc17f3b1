/* Maps memory, touches it and unmaps it again. The argument says how it ends. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define OWN __attribute__((noinline))
#define ANON MAP_PRIVATE | MAP_ANONYMOUS
#define MMAP(bytes) mmap(NULL, bytes, PROT_READ | PROT_WRITE, ANON, -1, 0)

static char *checked(void *at)
{
	if (at == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return at;
}

/* By its name a function that takes memory for its caller. */
OWN char *xmalloc_pages(size_t bytes)
{
	char *at = MMAP(bytes);
	asm volatile("" : : "r"(at) : "memory");
	return at;
}

OWN static char *through_wrapper(void)
{
	char *at = checked(xmalloc_pages(24 * MIB)); /* wrapper */
	memset(at, 1, 24 * MIB);
	return at;
}

OWN static void large(void)
{
	char *at = checked(MMAP(64 * MIB)); /* large */
	memset(at, 1, 64 * MIB);
	munmap(at, 64 * MIB);
}

/* Memory that a child inherits. */
OWN static char *inherited(void)
{
	char *at = checked(MMAP(16 * MIB)); /* inherited */
	memset(at, 1, 16 * MIB);
	return at;
}

/* Grows by one mapping after the other. */
OWN static void arenas(void)
{
	for (int i = 0; i < 64; i++)
		memset(checked(MMAP(MIB)), 1, MIB); /* arenas */
}

/* Unmaps memory by a system call, and maps more at its address. */
OWN static void twice(void)
{
	char *at = checked(MMAP(32 * MIB));
	memset(at, 1, 32 * MIB);
	syscall(SYS_munmap, at, 32 * MIB);
	at = checked(mmap(at, 32 * MIB, PROT_READ | PROT_WRITE, ANON, -1, 0)); /* twice */
	memset(at, 1, 32 * MIB);
}

/* Maps a file, and more of it. */
OWN static void file(void)
{
	FILE *of = tmpfile();
	char *at;

	if (!of || ftruncate(fileno(of), 32 * MIB))
		exit(2);
	at = checked(mmap(NULL, 16 * MIB, PROT_READ, MAP_SHARED, fileno(of), 0));
	at = checked(mremap(at, 16 * MIB, 32 * MIB, MREMAP_MAYMOVE));
	for (size_t i = 0; i < 32 * MIB; i += 4096)
		if (at[i])
			exit(2);
}

static void wait_for_input(void)
{
	puts("ready");
	fflush(stdout);
	getchar();
}

int main(int argc, char **argv)
{
	const char *end = argc > 1 ? argv[1] : "";
	char *kept;
	pid_t child;

	if (!strcmp(end, "fork")) {
		kept = inherited();
		child = fork();
		if (!child) {
			arenas();
			kill(getpid(), SIGKILL);
		}
		waitpid(child, NULL, 0);
		munmap(kept, 16 * MIB);
		return 0;
	}
	if (!strcmp(end, "twice")) {
		twice();
		return 0;
	}
	if (!strcmp(end, "hold")) {
		twice();
		wait_for_input();
		return 0;
	}
	if (!strcmp(end, "file")) {
		file();
		arenas();
		return 0;
	}
	if (!strcmp(end, "wrapper")) {
		kept = through_wrapper();
		munmap(kept, 24 * MIB);
		return 0;
	}
	large();
	if (!strcmp(end, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(end, "wait"))
		wait_for_input();
	return 0;
}
