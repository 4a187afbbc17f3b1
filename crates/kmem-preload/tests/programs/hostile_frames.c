/* Allocates where a walk over the callers meets what no frame is. With the argument `holes`, memory
 * goes that lay beside a thread's stack. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

enum { PAGE = 4096, STACK = 16 * PAGE };

static char *map(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(at != MAP_FAILED);
	return at;
}

/* Calls `call(size)` with this value in the register of the frame pointer. */
typedef void *Through(size_t pointer, void *(*call)(size_t), size_t size);

/* Code without a table, through which only the frame pointer could lead. */
static Through *make_code(void)
{
	static const unsigned char code[] = {
		0x55,             /* push rbp */
		0x48, 0x89, 0xfd, /* mov rbp, rdi */
		0x48, 0x89, 0xd7, /* mov rdi, rdx */
		0xff, 0xd6,       /* call rsi */
		0x5d,             /* pop rbp */
		0xc3,             /* ret */
	};
	void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
	REQUIRE(at != MAP_FAILED);
	return (Through *)memcpy(at, code, sizeof code);
}

/* Functions whose tables are wrong. They say that the caller's frame lies further up, or count it
 * from the frame pointer, which holds the first argument. */
#define LIAR(name, said)                                                                           \
	void *name(size_t, void *(*)(size_t), size_t);                                             \
	__asm__(".globl " #name "\n" #name ":\n"                                                   \
		".cfi_startproc\n"                                                                 \
		"push %rbp\n"                                                                      \
		"mov %rdi, %rbp\n"                                                                 \
		"mov %rdx, %rdi\n" said "\n"                                                       \
		"call *%rsi\n"                                                                     \
		"pop %rbp\n"                                                                       \
		"ret\n"                                                                            \
		".cfi_endproc\n")

LIAR(liar_near, ".cfi_def_cfa 7, 64");
LIAR(liar_page, ".cfi_def_cfa 7, 4096");
LIAR(liar_far, ".cfi_def_cfa 7, 1000000");
LIAR(liar_pointer, ".cfi_def_cfa 6, 16");
LIAR(liar_saved, ".cfi_def_cfa 7, 16\n.cfi_offset 6, -8000");

/* Calls `through` with `sp` as the stack, whose caller returns to nowhere. */
void *on_stack(void *sp, Through *through, size_t pointer, size_t size, void *(*call)(size_t));
__asm__(".globl on_stack\n"
	"on_stack:\n"
	".cfi_startproc\n"
	"push %rbp\n"
	"push %rbx\n"
	"mov %rsp, %rbx\n"
	"mov %rdi, %rsp\n"
	"mov %rsi, %rax\n"
	"mov %rdx, %rdi\n"
	"mov %r8, %rsi\n"
	"mov %rcx, %rdx\n"
	"call *%rax\n"
	"mov %rbx, %rsp\n"
	"pop %rbx\n"
	"pop %rbp\n"
	"ret\n"
	".cfi_endproc\n");

static Through *made;

static void *by_calloc(size_t size) { return calloc(1, size); }
static void *by_realloc(size_t size) { return realloc(malloc(1), size); }

/* Each kind of caller with each kind of frame pointer. */
static void all_kinds(char *sp)
{
	char here, *gone = map(3 * PAGE);
	munmap(gone + PAGE, PAGE);
	REQUIRE(mprotect(gone + 2 * PAGE, PAGE, PROT_NONE) == 0);
	char *top = sp ? sp : &here;
	size_t pointers[] = {
		0, 1, 7, 8, PAGE, -1, -7, -8, -16, 1ul << 47, (1ul << 47) - 8, 1ul << 63,
		(size_t)gone, (size_t)(gone + PAGE - 8), (size_t)(gone + PAGE), (size_t)(gone + 2 * PAGE),
		(size_t)top - 64, (size_t)top - 8, (size_t)top, (size_t)top + 8, (size_t)top + 4,
		(size_t)top + PAGE, (size_t)top + (1 << 20), (size_t)&made, (size_t)all_kinds,
	};
	Through *kinds[] = { made, liar_near, liar_page, liar_far, liar_pointer, liar_saved };
	void *(*calls[])(size_t) = { malloc, by_calloc, by_realloc };
	for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
		for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
			for (size_t call = 0; call < 3; call++)
				for (int again = 0; again < 3; again++) {
					void *at = sp ? on_stack(sp, kinds[kind], pointers[i], 40, calls[call]) :
							kinds[kind](pointers[i], calls[call], 40);
					CHECK(at != NULL);
					free(at);
				}
	munmap(gone, PAGE);
	munmap(gone + 2 * PAGE, PAGE);
}

/* A stack right below memory that cannot be read, and one below nothing. */
static void at_the_end_of_a_mapping(void)
{
	char *stack = map(STACK + PAGE);
	REQUIRE(mprotect(stack + STACK, PAGE, PROT_NONE) == 0);
	all_kinds(stack + STACK);
	REQUIRE(munmap(stack + STACK, PAGE) == 0);
	all_kinds(stack + STACK);
	munmap(stack, STACK);
}

static void handler(int number)
{
	(void)number;
	Through *kinds[] = { made, liar_near, liar_page, liar_far, liar_pointer, liar_saved };
	for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
		free(kinds[kind](-8, malloc, 40));
}

/* The smallest stack of a handler that an allocation has room on, at the end of a mapping. */
static void on_a_stack_for_signals(void)
{
	size_t size = ((size_t)sysconf(_SC_MINSIGSTKSZ) + 6144 + PAGE - 1) / PAGE * PAGE;
	char *stack = map(size + PAGE);
	REQUIRE(mprotect(stack + size, PAGE, PROT_NONE) == 0);
	stack_t alternate = { .ss_sp = stack, .ss_size = size };
	REQUIRE(sigaltstack(&alternate, NULL) == 0);
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	sigaction(SIGUSR1, &action, NULL);
	for (int i = 0; i < 3; i++)
		raise(SIGUSR1);
	alternate.ss_flags = SS_DISABLE;
	sigaltstack(&alternate, NULL);
	munmap(stack, size + PAGE);
}

static void *everywhere(void *unused)
{
	all_kinds(NULL);
	at_the_end_of_a_mapping();
	on_a_stack_for_signals();
	return unused;
}

/* The stacks of a thread and of its coroutine lie in one mapping, and then memory between them
 * goes. */
static char *mapping;

static void *beside_holes(void *unused)
{
	free(opaque(malloc(40)));
	char *coroutine = mapping + STACK;
	REQUIRE(mprotect(coroutine, PAGE, PROT_NONE) == 0);
	all_kinds(coroutine);
	REQUIRE(munmap(coroutine, PAGE) == 0);
	all_kinds(coroutine);
	return unused;
}

int main(int argc, char **argv)
{
	made = make_code();
	everywhere(NULL);
	pthread_t thread;
	REQUIRE(pthread_create(&thread, NULL, everywhere, NULL) == 0);
	pthread_join(thread, NULL);
	if (argc > 1 && !strcmp(argv[1], "holes")) {
		mapping = map(STACK + PAGE + 32 * STACK);
		pthread_attr_t attributes;
		pthread_attr_init(&attributes);
		pthread_attr_setstack(&attributes, mapping + STACK + PAGE, 32 * STACK);
		REQUIRE(pthread_create(&thread, &attributes, beside_holes, NULL) == 0);
		pthread_join(thread, NULL);
	}
	return RESULT();
}
