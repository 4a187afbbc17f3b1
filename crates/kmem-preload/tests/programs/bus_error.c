/* The library counts in a black box that is cut off, and a bus error happens elsewhere: LIBRARY BOX
 * MODE. The program has an action for SIGBUS before it loads the library. */
#include "check.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static sigjmp_buf back;
static int faults, sent;
static char *elsewhere;

static void on_signal(int signal)
{
	CHECK(signal == SIGBUS);
	sigset_t blocked;
	CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
	CHECK(sigismember(&blocked, SIGUSR1) == 1);
	faults++;
	siglongjmp(back, 1);
}

static void __attribute__((noinline)) touch(char *at)
{
	*(volatile char *)at = 1;
}

static void on_signal_with_info(int signal, siginfo_t *info, void *context)
{
	CHECK(signal == SIGBUS && context != NULL);
	if (info->si_code <= 0) {
		CHECK(info->si_pid == getpid());
		sent++;
		return;
	}
	CHECK(info->si_addr == elsewhere);
	/* The handler can tell where the fault was. */
	void *frames[20];
	int count = backtrace(frames, 20), found = 0;
	for (int i = 0; i < count; i++)
		found += (uintptr_t)frames[i] - (uintptr_t)touch < 8;
	CHECK(found == 1);
	faults++;
	siglongjmp(back, 1);
}

/* Returns, so that the instruction faults again. */
static void on_signal_once(int signal)
{
	dprintf(1, "once\n");
}

/* Maps a page of an empty file. */
static char *page_behind_the_end(void)
{
	int fd = memfd_create("empty", MFD_CLOEXEC);
	REQUIRE(fd >= 0);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	REQUIRE(page != MAP_FAILED);
	close(fd);
	return page;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 3);
	const char *mode = argv[3];
	struct sigaction action = { .sa_handler = SIG_DFL };
	if (!strcmp(mode, "handler")) {
		action.sa_handler = on_signal;
		sigaddset(&action.sa_mask, SIGUSR1);
	} else if (!strcmp(mode, "handler-with-info")) {
		action.sa_sigaction = on_signal_with_info;
		action.sa_flags = SA_SIGINFO;
	} else if (!strcmp(mode, "handler-once")) {
		action.sa_handler = on_signal_once;
		action.sa_flags = SA_RESETHAND;
	} else if (!strcmp(mode, "ignored")) {
		action.sa_handler = SIG_IGN;
	}
	REQUIRE(sigaction(SIGBUS, &action, NULL) == 0);
	elsewhere = page_behind_the_end();

	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		dprintf(2, "%s\n", dlerror());
	REQUIRE(library != NULL);
	void *(*their_malloc)(size_t) = (void *(*)(size_t))dlsym(library, "malloc");
	void (*their_free)(void *) = (void (*)(void *))dlsym(library, "free");
	REQUIRE(their_malloc && their_free);
	their_free(their_malloc(100));

	/* The box is lost in the middle, and at its begin. */
	REQUIRE(truncate(argv[2], 8 << 20) == 0);
	errno = 77;
	their_free(their_malloc(100));
	CHECK(errno == 77);
	REQUIRE(truncate(argv[2], 0) == 0);
	their_free(their_malloc(100));
	pid_t child = fork();
	if (child == 0) {
		their_free(their_malloc(100));
		_exit(0);
	}
	int status;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(faults == 0 && sent == 0);
	dprintf(1, "survived\n");

	if (!strcmp(mode, "handler-with-info") || !strcmp(mode, "ignored") || !strcmp(mode, "sent"))
		raise(SIGBUS);
	for (int round = 0; round < 3; round++)
		if (!sigsetjmp(back, 1))
			touch(elsewhere);
	CHECK(faults == 3);
	CHECK(sent == !strcmp(mode, "handler-with-info"));
	their_free(their_malloc(100));
	return RESULT();
}
