/* Allocates on a thread below a filter that traps each system call. The thread enters it unseen by
 * the library, when it has allocated by all its chains of callers before. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* A system call that no library sees. */
static long unseen(long call, long a, long b, long c)
{
	long result;
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

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

static void *thread(void *argument)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
	};
	struct sock_fprog prog = { sizeof code / sizeof *code, code };

	allocate();
	unseen(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0);
	REQUIRE(unseen(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&prog) == 0);
	allocate();
	/* No exit of a thread is without system calls. */
	unseen(SYS_exit_group, 0, 0, 0);
	return argument;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	pthread_t other;

	REQUIRE(sigaction(SIGSYS, &action, NULL) == 0);
	REQUIRE(pthread_create(&other, NULL, thread, NULL) == 0);
	pthread_join(other, NULL);
	return 1;
}
