/* Filters of system calls, put together rule by rule. A program enters one by a call that no
 * library sees. */
#ifndef SECCOMP_H
#define SECCOMP_H

#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static struct sock_filter filter_code[256];
static struct sock_fprog filter_prog = { 0, filter_code };

static inline void filter_add(unsigned short op, unsigned value, unsigned char yes,
			      unsigned char no)
{
	filter_code[filter_prog.len++] = (struct sock_filter){ op, yes, no, value };
}

/* Begins a filter. Its rules follow, and at last the action for all other calls. */
static inline void filter_begin(void)
{
	filter_prog.len = 0;
	filter_add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
}

/* The action for all calls that no rule is for. */
static inline void filter_others(unsigned action)
{
	filter_add(BPF_RET | BPF_K, action, 0, 0);
}

/* A rule: the action for one call. */
static inline void filter_call(int call, unsigned action)
{
	filter_add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
	filter_others(action);
}

/* A system call that no library sees. */
static inline long unseen(long call, long a, long b, long c)
{
	long result;
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

/* Enters the filter for the calling thread, and the threads that it starts from now on. */
static inline void filter_enter_unseen(void)
{
	REQUIRE(unseen(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0) == 0);
	REQUIRE(unseen(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&filter_prog) == 0);
}

#endif
