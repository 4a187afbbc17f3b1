/* Work in a sandbox that ends the process at a system call that is not on its list.
 *
 *     sandbox FILTER HOW
 *
 * HOW is `prctl` or `seccomp`, by which the program enters the sandbox itself. With `exec` it
 * installs the filter unseen, and starts itself anew inside. The lists are those of the programs
 * that they are named after, as far as they concern an allocator. `malloc` has only what glibc's
 * malloc and the end of the program need. */
#include "seccomp.h"
#include <dlfcn.h>
#include <kmem/group.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MALLOC SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_futex
#define END SYS_exit_group, SYS_write
/* A thread of glibc 2.36; clone3 fails with ENOSYS where it is denied. */
#define THREADS SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask, \
	SYS_rt_sigaction, SYS_exit
/* The start of a dynamically linked program. */
#define START SYS_execve, SYS_access, SYS_openat, SYS_pread64, SYS_close, SYS_fstat, \
	SYS_newfstatat, SYS_arch_prctl, SYS_set_tid_address, SYS_set_robust_list, SYS_rseq, \
	SYS_prlimit64, SYS_getrandom
/* systemd: @default, and of @system-service what is near to memory, processes and files. */
#define SYSTEMD_DEFAULT SYS_clock_gettime, SYS_clock_nanosleep, SYS_futex, SYS_getegid, \
	SYS_geteuid, SYS_getgid, SYS_getpid, SYS_getuid, SYS_gettid, SYS_membarrier, SYS_prlimit64, \
	SYS_rseq, SYS_rt_sigreturn, SYS_sched_yield, SYS_set_robust_list, SYS_set_tid_address
#define SYSTEMD_SERVICE SYSTEMD_DEFAULT, SYS_ftruncate, SYS_fallocate, SYS_readlinkat, SYS_ppoll, \
	SYS_memfd_create, SYS_process_vm_readv, SYS_socket, SYS_connect, SYS_setsockopt, SYS_sendto, \
	SYS_kill, SYS_tgkill, SYS_prctl, SYS_getcpu, SYS_sched_getaffinity, SYS_sysinfo, SYS_uname, \
	SYS_mbind

struct filter {
	const char *name;
	int threads;
	int allowed[96];
	/* Refused with an errno instead of a signal. */
	int refused[16];
};

static const struct filter filters[] = {
	{ "malloc", 0, { MALLOC, END }, { -1 } },
	{ "threads", 1, { MALLOC, END, THREADS }, { -1 } },
	/* OpenSSH 9.2, before the user is known. */
	{ "sshd", 0, { MALLOC, END, SYS_clock_gettime, SYS_close, SYS_exit, SYS_geteuid, SYS_getpgid,
		SYS_getpid, SYS_getrandom, SYS_gettimeofday, SYS_getuid, SYS_nanosleep,
		SYS_clock_nanosleep, SYS_poll, SYS_pselect6, SYS_rt_sigprocmask,
		SYS_select, SYS_shutdown, SYS_time },
	  { SYS_lstat, SYS_fstat, SYS_open, SYS_openat, SYS_newfstatat, SYS_stat, -1 } },
	/* Chromium's baseline policy. */
	{ "chromium", 1, { MALLOC, END, SYS_clone, SYS_rseq, SYS_rt_sigprocmask, SYS_exit, SYS_uname,
		SYS_clock_gettime, SYS_sched_yield, SYS_getpid, SYS_gettid, SYS_getuid, SYS_geteuid,
		SYS_getrandom, SYS_memfd_create, SYS_mincore, SYS_close, SYS_ppoll, SYS_poll,
		SYS_tgkill, SYS_fstat, SYS_nanosleep, SYS_rt_sigreturn, SYS_rt_sigaction },
	  { SYS_clone3, SYS_set_robust_list, SYS_openat, SYS_open, SYS_readlinkat, SYS_seccomp,
	    SYS_fork, SYS_vfork, SYS_getcwd, -1 } },
	/* Firefox' content processes; files go to a broker, by a signal. */
	{ "firefox", 1, { MALLOC, END, THREADS, SYS_clock_gettime, SYS_clock_nanosleep, SYS_sched_yield,
		SYS_getpid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getrandom,
		SYS_memfd_create, SYS_ftruncate, SYS_close, SYS_ppoll, SYS_poll, SYS_tgkill,
		SYS_fstat, SYS_rt_sigreturn, SYS_rt_sigaction, SYS_prlimit64, SYS_prctl },
	  { SYS_openat, SYS_open, SYS_readlinkat, SYS_uname, -1 } },
	{ "system-service", 1, { MALLOC, END, THREADS, START, SYSTEMD_SERVICE }, { -1 } },
	/* SystemCallFilter=@default @basic-io @file-system and what a thread needs. */
	{ "systemd-strict", 1, { MALLOC, END, THREADS, START, SYSTEMD_DEFAULT }, { -1 } },
	/* Flatpak's for bubblewrap: some calls are refused, the others allowed. */
	{ "bubblewrap", 1, { -1 }, { SYS_mbind, SYS_move_pages, SYS_get_mempolicy, SYS_set_mempolicy,
		SYS_migrate_pages, SYS_keyctl, SYS_add_key, SYS_ptrace, SYS_perf_event_open,
		SYS_personality, SYS_unshare, SYS_mount, SYS_clone3, -1 } },
};

static void translate(const struct filter *filter)
{
	filter_begin();
	for (const int *call = filter->refused; *call >= 0; call++) {
		/* glibc tries clone3 first, and clone if there is none. */
		int error = *call == SYS_clone3 ? ENOSYS : EPERM;
		filter_call(*call, SECCOMP_RET_ERRNO | error);
	}
	if (filter->allowed[0] < 0) {
		filter_others(SECCOMP_RET_ALLOW);
		return;
	}
	for (int i = 0; i < 96 && (i == 0 || filter->allowed[i]); i++)
		filter_call(filter->allowed[i], SECCOMP_RET_ALLOW);
	/* Its number, 0, ends a list. All these programs may read. */
	filter_call(SYS_read, SECCOMP_RET_ALLOW);
	filter_others(SECCOMP_RET_KILL_PROCESS);
}

/* The program waits for the decay without a system call. */
static void pass_time(double seconds)
{
	double end = seconds_now() + seconds;
	while (seconds_now() < end)
		free(opaque(malloc(300000)));
}

static void churn(unsigned seed)
{
	enum { COUNT = 3000 };
	static __thread void *blocks[COUNT];
	uint64_t state = seed + 1;
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < COUNT; i++) {
			size_t size = next_random(&state) % (i % 50 ? 2000 : 200000);
			REQUIRE((blocks[i] = malloc(size)) != NULL);
			memset(blocks[i], 1, size);
		}
		for (int i = 0; i < COUNT; i += 2)
			REQUIRE((blocks[i] = realloc(blocks[i], 1 + next_random(&state) % 5000)) != NULL);
		for (int i = 0; i < COUNT; i++)
			free(blocks[i]);
	}
}

static void *thread(void *argument)
{
	churn(*(unsigned *)argument);
	return NULL;
}

/* Functions of kmem.h, which the program finds before it enters the sandbox. */
static void *(*alloc_percpu)(size_t size, size_t align, unsigned flags);
static void (*free_percpu)(void *);
static void *(*vmalloc)(size_t size, unsigned flags);
static void *(*vmap_page)(unsigned flags);

static void find_functions(void)
{
	alloc_percpu = dlsym(RTLD_DEFAULT, "kmem_alloc_percpu_noprof");
	free_percpu = dlsym(RTLD_DEFAULT, "kmem_free_percpu");
	vmalloc = dlsym(RTLD_DEFAULT, "kmem_vmalloc_noprof");
	vmap_page = dlsym(RTLD_DEFAULT, "kmem_vmap_alloc_page_noprof");
}

/* Groups, per-CPU objects and areas. Without books there are no groups. */
static void use_interfaces(void)
{
	if (!runs_on_kmem())
		return;
	kmem_group_t group = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
	if (group > 0) {
		int64_t token = kmem_group_enter(group);
		churn(5);
		kmem_group_leave(token);
		CHECK(kmem_group_delete(group) == 0);
	}
	void *object = alloc_percpu(64, 16, 0);
	CHECK(object != NULL);
	free_percpu(object);
	free(opaque(vmalloc(100000, 0)));
	/* Pages for a second mapping need a file in memory. */
	const unsigned quietly = 2;
	free(opaque(vmap_page(quietly)));
}

static void work(int threads)
{
	churn(0);
	use_interfaces();
	/* Growth, moves of large blocks, and all that goes back to the system. */
	char *large = malloc(MIB);
	for (size_t size = 2 * MIB; size <= 64 * MIB; size *= 2) {
		REQUIRE((large = realloc(large, size)) != NULL);
		memset(large + size / 2, 1, size / 2);
	}
	free(large);
	free(opaque(aligned_alloc(1 << 20, 3 << 20)));
	char *zeroes = calloc(1, 8 * MIB);
	CHECK(all_zero(zeroes, 8 * MIB));
	free(zeroes);
	pass_time(0.1);
	churn(1);
	malloc_trim(0);
	CHECK(malloc(PTRDIFF_MAX) == NULL);
	if (threads) {
		pthread_t ids[3];
		unsigned seeds[3] = { 2, 3, 4 };
		for (int i = 0; i < 3; i++)
			REQUIRE(pthread_create(&ids[i], NULL, thread, &seeds[i]) == 0);
		for (int i = 0; i < 3; i++)
			pthread_join(ids[i], NULL);
	}
	malloc_trim(0);
}

int main(int argc, char **argv)
{
	REQUIRE(argc >= 3);
	const struct filter *filter = filters;
	while (strcmp(filter->name, argv[1]))
		REQUIRE(++filter < filters + sizeof filters / sizeof *filters);
	translate(filter);
	int inside = strcmp(argv[2], "inside") == 0;
	find_functions();
	if (argc > 3) {
		/* The child enters the sandbox before it allocates. */
		pid_t child = fork();
		REQUIRE(child >= 0);
		if (child) {
			int status;
			REQUIRE(waitpid(child, &status, 0) == child);
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
		}
	}
	if (!inside) {
		REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		/* A filter that the kernel refuses changes nothing. */
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
	}
	if (strcmp(argv[2], "prctl") == 0) {
		REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter_prog, 0, 0) == 0);
	} else if (strcmp(argv[2], "seccomp") == 0) {
		REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter_prog) == 0);
	} else if (!inside) {
		filter_enter_unseen();
		execl(argv[0], argv[0], argv[1], "inside", NULL);
		REQUIRE(!"exec");
	}
	work(filter->threads);
	_exit(RESULT());
}
