/* A host of modules: all that kmem/module.h has. host DIR: with plugin.ko, uses.ko and
 * packed/plugin.ko.gz in the directory. */
#include "kmem/module.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			char why[512] = ""; \
			kmem_module_error(why, sizeof(why)); \
			fprintf(stderr, "host.c:%d: %s: %s\n", __LINE__, #condition, why); \
			exit(1); \
		} \
	} while (0)

/* The plugin imports this from its host. */
int host_factor = 7;

static char path[4096], text[65536];

static int open_module(const char *dir, const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static const char *why(void)
{
	static __thread char words[512];
	CHECK(kmem_module_error(words, sizeof(words)) >= 0);
	return words;
}

static void *request(void *name)
{
	return (void *)(long)kmem_request_module(name);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	const char *dir = argv[1];
	struct kmem_module_config config = KMEM_MODULE_CONFIG_INIT;
	struct kmem_module_stat stat = KMEM_MODULE_STAT_INIT;

	/* Wrong arguments are refused, and nothing has begun. */
	CHECK(kmem_module_configure(NULL) == -EFAULT);
	config.size = 8;
	CHECK(kmem_module_configure(&config) == -EINVAL);
	config = (struct kmem_module_config)KMEM_MODULE_CONFIG_INIT;
	config.certificates = "/nonexistent";
	CHECK(kmem_module_configure(&config) == -ENOENT && strstr(why(), "/nonexistent"));
	config = (struct kmem_module_config)KMEM_MODULE_CONFIG_INIT;
	config.flags = 4;
	CHECK(kmem_module_configure(&config) == -EINVAL);
	config.flags = KMEM_MODULE_REFUSE_LIVE;
	config.search_path = dir;
	/* The structure as it was before it had fields for signatures. */
	config.size = 32;
	config.certificates = "/nonexistent";
	CHECK(kmem_module_configure(&config) == 0);
	CHECK(kmem_module_configure(&config) == -EBUSY && strstr(why(), "has begun"));

	int fd = open_module(dir, "plugin.ko");
	CHECK(kmem_finit_module(fd, "size=x", 0) == -EINVAL && strstr(why(), "parameter size"));
	CHECK(kmem_finit_module(fd, "\xff", 0) == -EINVAL && strstr(why(), "not UTF-8"));
	CHECK(kmem_finit_module(-1, NULL, 0) == -EBADF);
	CHECK(kmem_finit_module(fd, NULL, 64) == -EINVAL);
	CHECK(kmem_finit_module(fd, "size=100", 0) == 0);
	CHECK(kmem_finit_module(fd, NULL, 0) == -EEXIST && strstr(why(), "plugin is loaded"));

	CHECK(kmem_module_parameter("plugin", "size", text, sizeof(text)) == 3);
	CHECK(strcmp(text, "100") == 0 && kmem_module_parameter("plugin", "size", NULL, 0) == 3);
	CHECK(kmem_module_parameter("plugin", "nope", text, 8) == -ENOENT && strstr(why(), "nope"));
	CHECK(kmem_module_parameter("nothing", "size", text, 8) == -ENOENT);
	CHECK(kmem_module_parameter(NULL, "size", text, 8) == -EFAULT);
	CHECK(kmem_module_parameter("plugin", NULL, text, 8) == -EFAULT);
	CHECK(kmem_module_parameter("plugin", "size", NULL, 8) == -EFAULT);

	int (*answer)(int) = (int (*)(int))kmem_symbol_get("plugin_answer");
	CHECK(answer && answer(6) == 42);
	/* Per-CPU variables of a module, from any thread. */
	unsigned long (*calls)(void) = (unsigned long (*)(void))kmem_symbol_get("plugin_calls");
	CHECK(calls && calls() == 5 && calls() == 10);
	CHECK(kmem_symbol_put("plugin_calls") == 0);
	CHECK(kmem_delete_module("plugin", O_NONBLOCK) == -EAGAIN && strstr(why(), "held 1 times"));
	CHECK(kmem_symbol_put("plugin_answer") == 0);
	CHECK(kmem_symbol_get("absent") == NULL && strstr(why(), "\"absent\""));
	CHECK(kmem_symbol_put("absent") == -ENOENT);
	CHECK(kmem_symbol_get(NULL) == NULL);

	/* By name, by eight threads at once, with what it depends on. */
	pthread_t threads[8];
	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, request, "uses") == 0);
	for (int i = 0; i < 8; i++) {
		void *result;
		CHECK(pthread_join(threads[i], &result) == 0 && result == NULL);
	}
	CHECK(kmem_request_module("nothing") == -ENOENT && strstr(why(), "nothing"));
	CHECK(kmem_request_module(NULL) == -EFAULT);
	CHECK(kmem_delete_module("plugin", 0) == -EAGAIN && strstr(why(), "used by uses"));

	CHECK(kmem_module_list_text(text, sizeof(text)) == (int)strlen(text));
	CHECK(strstr(text, "plugin ") && strstr(text, " 1 uses, Live 0x"));
	CHECK(kmem_module_list_text(text, 4) > 4 && strlen(text) == 3);
	CHECK(kmem_module_list_text(NULL, 0) > 4);
	CHECK(kmem_module_list_text(NULL, 1) == -EFAULT);
	CHECK(kmem_module_stat_text(text, sizeof(text)) > 0);
	CHECK(strstr(text, "         Mods ever loaded\t2\n"));
	CHECK(kmem_module_stat(&stat) == 0);
	CHECK(stat.loaded == 2 && stat.failed_loads == 1);
	CHECK(stat.failed_becoming == 2 && stat.failed_kreads == 1);
	CHECK(stat.held_bytes == stat.total_bytes);
	CHECK(stat.wasted_bytes == stat.load_bytes && stat.load_bytes > 0);
	stat.size = 1;
	CHECK(kmem_module_stat(&stat) == -EINVAL);
	CHECK(kmem_module_stat(NULL) == -EFAULT);

	CHECK(kmem_delete_module("uses", 0) == 0);
	/* Exit keeps what init allocated when it is told so: the unload is refused until it is freed. */
	void **kept = kmem_symbol_get("plugin_kept");
	int *leak = kmem_symbol_get("plugin_leaks");
	void (*drop)(void *) = (void (*)(void *))kmem_symbol_get("plugin_free");
	CHECK(kept && leak && drop);
	*leak = 1;
	void *block = *kept;
	for (int i = 0; i < 3; i++)
		CHECK(kmem_symbol_put("plugin_kept") == 0);
	CHECK(kmem_delete_module("plugin", 0) == -EBUSY);
	CHECK(strstr(why(), "bytes are live: ") && strstr(why(), " start ("));
	/* Its code is there as long as it is. */
	drop(block);
	CHECK(kmem_delete_module("plugin", 0) == 0);
	CHECK(kmem_delete_module("plugin", 0) == -ENOENT);
	CHECK(kmem_delete_module(NULL, 0) == -EFAULT);

	/* From memory, and packed. */
	struct stat file;
	CHECK(fstat(fd, &file) == 0);
	void *image = malloc(file.st_size);
	CHECK(image && pread(fd, image, file.st_size, 0) == file.st_size);
	CHECK(kmem_init_module(image, file.st_size, NULL) == 0);
	CHECK(kmem_delete_module("plugin", 0) == 0);
	CHECK(kmem_init_module(image, file.st_size / 2, NULL) == -ENOEXEC);
	CHECK(kmem_init_module(NULL, 1, NULL) == -EFAULT);
	free(image);
	close(fd);
	fd = open_module(dir, "packed/plugin.ko.gz");
	CHECK(kmem_finit_module(fd, NULL, 0) == -ENOEXEC);
	CHECK(kmem_finit_module(fd, NULL, KMEM_MODULE_INIT_COMPRESSED_FILE) == 0);
	CHECK(kmem_delete_module("plugin", O_NONBLOCK) == 0);
	close(fd);
	stat.size = sizeof(stat);
	CHECK(kmem_module_stat(&stat) == 0 && stat.held_bytes == 0 && stat.loaded == 4);
	puts("done");
	return 0;
}
