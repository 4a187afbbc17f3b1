/* From some moment on, a seccomp filter makes system calls fail, and the program goes on. Memory
 * may run out; nothing may break, die or hang.
 * Arguments: ERROR CALL... ERROR is a name such as ENOMEM. CALL is one of mmap, munmap, mprotect,
 * madvise, mremap, or the word "others" for all but the few calls that a steady state needs. */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { SLOTS = 400 };
static char *blocks[SLOTS];
static size_t sizes[SLOTS];
static long refused;

static size_t random_size(uint64_t *state)
{
	uint64_t pick = next_random(state);
	switch (pick % 20) {
	case 0:
		return pick / 32 % (6 * MIB);
	case 1:
	case 2:
		return pick / 32 % 300000;
	case 3:
	case 4:
	case 5:
		return pick / 32 % 20000;
	default:
		return pick / 32 % 1000;
	}
}

static size_t marked(size_t size)
{
	return size < 512 ? size : 512;
}

static void replace(int slot, char *fresh, size_t size)
{
	if (!fresh) {
		CHECK_AT(errno == ENOMEM, size);
		refused++;
		return;
	}
	if (blocks[slot])
		CHECK(holds(blocks[slot], marked(sizes[slot]), (unsigned)slot));
	errno = 77;
	free(blocks[slot]);
	CHECK(errno == 77);
	blocks[slot] = fresh;
	sizes[slot] = size;
	fill(fresh, marked(size), (unsigned)slot);
	fresh[size ? size - 1 : 0] = size > 512 ? 1 : fresh[size ? size - 1 : 0];
}

static void work(uint64_t *state, long operations)
{
	for (long i = 0; i < operations; i++) {
		int slot = (int)(next_random(state) % SLOTS);
		size_t size = random_size(state) + 1;
		char *fresh;
		switch (next_random(state) % 8) {
		case 0:
			errno = 0;
			fresh = calloc(1, size);
			if (fresh)
				CHECK_AT(all_zero(fresh, size), size);
			replace(slot, fresh, size);
			break;
		case 1:
			errno = 0;
			replace(slot, memalign((size_t)16 << (next_random(state) % 10), size), size);
			break;
		case 2:
			errno = 0;
			fresh = realloc(blocks[slot], size);
			if (!fresh) {
				CHECK_AT(errno == ENOMEM, size);
				refused++;
				break;
			}
			size_t kept = marked(sizes[slot] < size ? sizes[slot] : size);
			CHECK(holds(fresh, kept, (unsigned)slot) || !blocks[slot]);
			blocks[slot] = fresh;
			sizes[slot] = size;
			fill(fresh, marked(size), (unsigned)slot);
			break;
		case 3:
			if (blocks[slot])
				CHECK(holds(blocks[slot], marked(sizes[slot]), (unsigned)slot));
			free(blocks[slot]);
			blocks[slot] = NULL;
			sizes[slot] = 0;
			break;
		default:
			errno = 0;
			replace(slot, malloc(size), size);
		}
		if (i % 5000 == 0)
			malloc_trim(0);
	}
}

static unsigned number_of(const char *name)
{
	static const struct {
		const char *name;
		unsigned number;
	} known[] = {
		{ "mmap", SYS_mmap }, { "munmap", SYS_munmap }, { "mprotect", SYS_mprotect },
		{ "madvise", SYS_madvise }, { "mremap", SYS_mremap },
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, name))
			return known[i].number;
	REQUIRE(!"a known system call");
	return 0;
}

static unsigned error_of(const char *name)
{
	if (!strcmp(name, "ENOMEM"))
		return ENOMEM;
	if (!strcmp(name, "EINVAL"))
		return EINVAL;
	return !strcmp(name, "EPERM") ? EPERM : ENOSYS;
}

static void install(struct sock_filter *code, unsigned short length)
{
	struct sock_fprog program = { length, code };
	REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void fail_from_now_on(unsigned error, int count, char **names)
{
	struct sock_filter code[64];
	unsigned short length = 0;
	code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						      offsetof(struct seccomp_data, nr));
	if (count == 1 && !strcmp(names[0], "others")) {
		static const unsigned allowed[] = { SYS_read, SYS_write, SYS_exit_group, SYS_exit,
			SYS_mmap, SYS_munmap, SYS_madvise, SYS_rt_sigreturn };
		for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
			code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
			code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
		}
		code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
	} else {
		for (int i = 0; i < count; i++) {
			code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
								      number_of(names[i]), 0, 1);
			code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
		}
		code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	install(code, length);
}

/* Memory can be had without mprotect. */
static void require_growth(void)
{
	enum { BLOCKS = 1500 };
	static char *large[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		REQUIRE((large[i] = malloc(MIB)) != NULL);
		fill(large[i], 512, (unsigned)i);
		large[i][MIB - 1] = 1;
	}
	for (int i = 0; i < BLOCKS; i++) {
		CHECK_AT(holds(large[i], 512, (unsigned)i), i);
		free(large[i]);
	}
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 2);
	uint64_t state = 42;
	work(&state, 30000);
	fail_from_now_on(error_of(argv[1]), argc - 2, argv + 2);
	if (argc == 3 && !strcmp(argv[2], "mprotect"))
		require_growth();
	work(&state, 60000);
	for (int slot = 0; slot < SLOTS; slot++) {
		free(blocks[slot]);
		blocks[slot] = NULL;
		sizes[slot] = 0;
	}
	refused = 0;
	work(&state, 30000);
	/* Freed memory can be allocated again: small blocks at least. */
	for (int slot = 0; slot < SLOTS; slot++) {
		free(blocks[slot]);
		REQUIRE((blocks[slot] = malloc(500)) != NULL);
	}
	return RESULT();
}
