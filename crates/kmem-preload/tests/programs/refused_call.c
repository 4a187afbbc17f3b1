/* Works where one system call is refused, and checks that the books balance.
 *
 *     refused_call CALL ERRNO WHEN
 *
 * WHEN is `start`: the program starts itself anew behind the filter. Or it is `later`: it enters
 * the filter when it has worked before. kmem sees neither. */
#include "seccomp.h"
#include <kmem/group.h>
#include <pthread.h>
#include <sys/wait.h>

static const struct {
	const char *name;
	int number;
} calls[] = {
	{ "rseq", SYS_rseq },
	{ "membarrier", SYS_membarrier },
	{ "madvise", SYS_madvise },
	{ "process_vm_readv", SYS_process_vm_readv },
};

enum { THREADS = 4, BLOCKS = 2000 };
static void *blocks[THREADS][BLOCKS];

static size_t size_of(int block)
{
	return block % 50 ? (size_t)block % 1500 : 200000;
}

static void *fill_row(void *row)
{
	for (int i = 0; i < BLOCKS; i++) {
		REQUIRE((((void **)row)[i] = malloc(size_of(i))) != NULL);
		fill(((void **)row)[i], size_of(i), i);
	}
	return NULL;
}

static void *empty_row(void *row)
{
	for (int i = 0; i < BLOCKS; i++) {
		CHECK_AT(holds(((void **)row)[i], size_of(i), i), i);
		free(((void **)row)[i]);
	}
	return NULL;
}

static pthread_barrier_t all_run;
static void *(*work_of_row)(void *);

static void *thread(void *row)
{
	/* Each of these threads has a stack of its own then. The C library keeps as many. */
	pthread_barrier_wait(&all_run);
	return work_of_row(row);
}

static void on_threads(void *(*work)(void *), int shift)
{
	work_of_row = work;
	pthread_barrier_init(&all_run, NULL, THREADS);
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_create(&threads[i], NULL, thread, blocks[(i + shift) % THREADS]) == 0);
	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_join(threads[i], NULL) == 0);
}

/* Each thread frees what another one allocated. A forked child works in between. */
static void churn(void)
{
	on_threads(fill_row, 0);
	pid_t child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		check_failures = 0;
		on_threads(empty_row, 1);
		on_threads(fill_row, 2);
		_exit(RESULT());
	}
	int status;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_AT(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
	on_threads(empty_row, 1);
	malloc_trim(0);
}

static size_t live_bytes(void)
{
	struct mallinfo2 now = mallinfo2();
	return now.uordblks + now.hblkhd;
}

/* Groups, whose charges and deletion stop the CPUs. */
static void charge_a_group(void)
{
	struct kmem_group_stat stat = KMEM_GROUP_STAT_INIT;
	kmem_group_t group = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
	REQUIRE(group > 0);
	int64_t token = kmem_group_enter(group);
	fill_row(blocks[0]);
	REQUIRE(kmem_group_stat(group, &stat) == 0);
	CHECK_AT(stat.current > 1000 * 1000, stat.current);
	kmem_group_leave(token);
	empty_row(blocks[0]);
	CHECK(kmem_group_delete(group) == 0);
}

static void work(void)
{
	/* Some memory stays: tables of the C library for threads, and of their groups. */
	churn();
	charge_a_group();
	size_t before = live_bytes();
	for (int i = 0; i < 3; i++) {
		churn();
		charge_a_group();
		CHECK_AT(live_bytes() == before, live_bytes() - before);
	}
}

int main(int argc, char **argv)
{
	REQUIRE(argc == 4);
	size_t nth = 0;
	while (strcmp(calls[nth].name, argv[1]))
		REQUIRE(++nth < sizeof calls / sizeof *calls);
	int number = calls[nth].number, error = atoi(argv[2]);
	filter_begin();
	filter_call(number, SECCOMP_RET_ERRNO | error);
	filter_others(SECCOMP_RET_ALLOW);
	if (strcmp(argv[3], "start") == 0) {
		filter_enter_unseen();
		execl(argv[0], argv[0], argv[1], argv[2], "inside", NULL);
		REQUIRE(!"exec");
	}
	if (strcmp(argv[3], "later") == 0) {
		churn();
		filter_enter_unseen();
	}
	REQUIRE(syscall(number, 0, 0, 0, 0, 0, 0) == -1);
	CHECK_AT(errno == error, errno);
	work();
	return RESULT();
}
