// The first process of a machine that runs the programs listed in /commands, one after the other,
// and then stops. A line begins with variables of the environment, NAME=VALUE.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(char *line)
{
	char *words[32];
	int count = 0;
	for (char *word = strtok(line, " "); word && count < 31; word = strtok(NULL, " ")) {
		if (count == 0 && strchr(word, '='))
			putenv(word);
		else
			words[count++] = word;
	}
	words[count] = NULL;
	execv(words[0], words);
	perror(words[0]);
	return 127;
}

int main(void)
{
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 0777);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	FILE *commands = fopen("/commands", "r");
	char line[1024];
	while (commands && fgets(line, sizeof(line), commands)) {
		line[strcspn(line, "\n")] = '\0';
		printf("== %s\n", line);
		fflush(stdout);
		int status = 0;
		pid_t child = fork();
		if (child == 0)
			_exit(run(line));
		waitpid(child, &status, 0);
		printf("== ended with %d\n",
		       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		fflush(stdout);
	}
	reboot(RB_POWER_OFF);
	return 1;
}
