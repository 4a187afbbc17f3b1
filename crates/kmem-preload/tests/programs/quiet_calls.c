/* Allocates on a thread below a filter that traps each system call. The thread enters it unseen by
 * the library, when it has allocated by all its chains of callers before. */
#include "seccomp.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	static char text[] = "system call 000\n";
	for (int i = 14, number = info->si_syscall; number; number /= 10)
		text[i--] += number % 10;
	unseen(SYS_write, 2, (long)text, sizeof text - 1);
	unseen(SYS_exit_group, 1, 0, 0);
}

__attribute__((noinline)) static void nested(int calls)
{
	if (calls)
		nested(calls - 1);
	else
		free(opaque(malloc(64)));
	__asm__ volatile("");
}

static void allocate(void)
{
	for (int i = 0; i < 100000; i++)
		nested(i % 40);
}

/* The library maps memory at the first work on another CPU. */
static void stay_on_this_cpu(void)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	REQUIRE(sched_setaffinity(0, sizeof cpus, &cpus) == 0);
}

static void *thread(void *argument)
{
	filter_begin();
	filter_call(SYS_exit_group, SECCOMP_RET_ALLOW);
	filter_call(SYS_write, SECCOMP_RET_ALLOW);
	filter_others(SECCOMP_RET_TRAP);

	allocate();
	filter_enter_unseen();
	allocate();
	/* No exit of a thread is without system calls. */
	unseen(SYS_exit_group, 0, 0, 0);
	return argument;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	pthread_t other;

	stay_on_this_cpu();
	REQUIRE(sigaction(SIGSYS, &action, NULL) == 0);
	REQUIRE(pthread_create(&other, NULL, thread, NULL) == 0);
	pthread_join(other, NULL);
	return 1;
}
