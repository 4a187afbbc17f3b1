/* A signal handler forks, whatever the interrupted code was doing; the child allocates: FORKS
 * [resume]. With `resume`, the child first goes on with the interrupted code. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

static volatile int forks, failed_children, armed, resumes, left;

static void handler(int number)
{
	int saved = errno;
	(void)number;
	pid_t pid = fork();
	if (pid == 0) {
		alarm(HUNG);
		if (resumes) {
			left = 300;
			errno = saved;
			return;
		}
		for (int i = 1; i < 300; i++) {
			char *block = malloc((size_t)i * 40);
			if (!block)
				_exit(2);
			memset(block, 1, (size_t)i * 40);
			free(block);
		}
		_exit(0);
	}
	int status = 1;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status)
		failed_children++;
	forks++;
	armed = 0;
	errno = saved;
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	int wanted = atoi(argv[1]);
	resumes = argc > 2;
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	sigaction(SIGALRM, &action, NULL);
	uint64_t state = 1;
	void *blocks[100] = { NULL };
	while (forks < wanted) {
		if (left && --left == 0)
			_exit(0);
		if (!armed) {
			/* Once each time, so that a slow machine makes progress here. */
			struct itimerval soon = { { 0, 0 }, { 0, (long)(20 + next_random(&state) % 500) } };
			armed = 1;
			setitimer(ITIMER_REAL, &soon, NULL);
		}
		int slot = (int)(next_random(&state) % 100);
		free(blocks[slot]);
		blocks[slot] = malloc(next_random(&state) % 3000);
	}
	CHECK(failed_children == 0);
	return RESULT();
}
