/* Messages between threads, as hackbench sends them between sockets. In each group, every sender
 * sends messages to every receiver of its group. A sender allocates a message and writes its
 * address to the receiver's pipe; the receiver adds up the bytes and frees it. So the program does
 * for its messages what a kernel does for those of hackbench. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUPS = 2, SENDERS = 10, RECEIVERS = 10, ROUNDS = 1500, LEAST = 100, SIZES = 16 };

struct message {
	size_t size;
	unsigned char bytes[];
};

struct group {
	int pipes[RECEIVERS][2];
};

struct end {
	struct group *group;
	int number;
	uint64_t sum;
};

static void must(int right, const char *what)
{
	if (!right) {
		perror(what);
		exit(1);
	}
}

static void *send_all(void *of)
{
	struct end *end = of;
	for (int round = 0; round < ROUNDS; round++)
		for (int to = 0; to < RECEIVERS; to++) {
			size_t size = LEAST + (size_t)(round % SIZES) * 40;
			struct message *message = malloc(sizeof *message + size);
			must(message != NULL, "malloc");
			message->size = size;
			memset(message->bytes, end->number + to, size);
			must(write(end->group->pipes[to][1], &message, sizeof message) ==
				     sizeof message,
			     "write");
		}
	return NULL;
}

static void *receive_all(void *of)
{
	struct end *end = of;
	for (int i = 0; i < SENDERS * ROUNDS; i++) {
		struct message *message;
		must(read(end->group->pipes[end->number][0], &message, sizeof message) ==
			     sizeof message,
		     "read");
		for (size_t at = 0; at < message->size; at++)
			end->sum += message->bytes[at];
		free(message);
	}
	return NULL;
}

int main(void)
{
	static struct group groups[GROUPS];
	static struct end senders[GROUPS][SENDERS], receivers[GROUPS][RECEIVERS];
	static pthread_t threads[GROUPS][SENDERS + RECEIVERS];
	for (int g = 0; g < GROUPS; g++) {
		for (int i = 0; i < RECEIVERS; i++) {
			must(pipe(groups[g].pipes[i]) == 0, "pipe");
			receivers[g][i] = (struct end){ &groups[g], i, 0 };
			must(!pthread_create(&threads[g][i], NULL, receive_all, &receivers[g][i]),
			     "pthread_create");
		}
		for (int i = 0; i < SENDERS; i++) {
			senders[g][i] = (struct end){ &groups[g], i, 0 };
			must(!pthread_create(&threads[g][RECEIVERS + i], NULL, send_all,
					     &senders[g][i]),
			     "pthread_create");
		}
	}
	uint64_t sum = 0;
	for (int g = 0; g < GROUPS; g++)
		for (int i = 0; i < SENDERS + RECEIVERS; i++) {
			pthread_join(threads[g][i], NULL);
			if (i < RECEIVERS)
				sum += receivers[g][i].sum;
		}
	printf("%llu\n", (unsigned long long)sum);
	return 0;
}
