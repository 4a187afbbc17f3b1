/* Hosts of modules: what loads, unloads and lists the modules that are written with kmem_module.h.
 *
 *	cc -rdynamic -Iinclude host.c -Wl,--no-as-needed -lkmem_modules     (and -lkmem, if modules allocate)
 *
 *	int fd = open("plugin.ko", O_RDONLY | O_CLOEXEC);
 *	if (kmem_finit_module(fd, "size=5", 0) < 0)
 *		kmem_module_error(text, sizeof(text)), puts(text);
 *	int (*work)(void) = (int (*)(void))kmem_symbol_get("work");
 *	.. work() ..
 *	kmem_symbol_put("work");
 *	kmem_delete_module("plugin", 0);
 *
 * There is one loader in a process. Functions may be called by any thread, also out of a module's init and exit; not by
 * signal handlers. Each returns a negative error number if it cannot do what it is asked, and then nothing has changed. Numbers
 * are those of the kernel's system calls of these names (and EFAULT for a null pointer, ENOMEM, EINTR, EDEADLK for what would
 * wait for itself, ENOSYS: libkmem_modules.so is not there). errno may change.
 *
 * A module finds what it needs among the exports of modules, and then in the dynamic symbols of the process: of the host, those
 * that -rdynamic exports. kmalloc and its like are in libkmem.so. */
#ifndef KMEM_MODULE_HOST_H
#define KMEM_MODULE_HOST_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- The loader ---------------------------------------------------------------------------------------------------- */

struct kmem_module_config {
	/* Of this structure: KMEM_MODULE_CONFIG_INIT says it. In the rest, 0 is for what is usual. */
	uint64_t size;
	/* Directories for kmem_request_module, with ':' between them. */
	const char *search_path;
	/* Most bytes of a module's memory, and of a compressed file's contents (64 MiB). */
	uint64_t most_bytes;
	/* Requests of kmem_request_module that are served at a time; the others wait (50). */
	uint32_t most_requests;
	/* KMEM_MODULE_REFUSE_LIVE, or 0. */
	uint32_t flags;
};
#define KMEM_MODULE_CONFIG_INIT { sizeof(struct kmem_module_config), 0, 0, 0, 0 }
/* A module is not unloaded while what it allocated is in use: see kmem_delete_module. */
#define KMEM_MODULE_REFUSE_LIVE 1u

/* Before any other function. EBUSY: the loader has begun. */
int kmem_module_configure(const struct kmem_module_config *config) __attribute__((weak));

/* -- Loading and unloading ----------------------------------------------------------------------------------------- */

/* Flags of kmem_finit_module: takes symbols of other versions, a module of another ABI, a file packed with gzip, xz or zstd. */
#define KMEM_MODULE_INIT_IGNORE_MODVERSIONS 1u
#define KMEM_MODULE_INIT_IGNORE_VERMAGIC 2u
#define KMEM_MODULE_INIT_COMPRESSED_FILE 4u

/* Loads the module in a file that is open for reading. EEXIST: it is there, which cost no memory to find out; ENOEXEC: it is
 * no module; ENOENT: a symbol or a parameter is unknown; what init returned. `args` are "name=value ..", or null. */
int kmem_finit_module(int fd, const char *args, unsigned int flags) __attribute__((weak));
/* The same of bytes in memory, which are not needed any more after that. */
int kmem_init_module(const void *image, size_t len, const char *args) __attribute__((weak));
/* Loads a module by its name or an alias, after what it depends on, from the search path. It is no error that it is there. */
int kmem_request_module(const char *name) __attribute__((weak));
/* Unloads a module, when nobody holds it any more. `flags`: O_NONBLOCK: does not wait for that; O_TRUNC: also one that has no
 * exit. ENOENT: there is none; EAGAIN: modules use it, or it is held and not to be waited for; EBUSY: it is being loaded or
 * unloaded, or has an init and no exit.
 *
 * What it allocated and did not free in its exit keeps its name in the books, and a warning tells the sites. Or, with
 * KMEM_MODULE_REFUSE_LIVE: EBUSY, and the module stays mapped until that is freed and it is unloaded once more, without
 * a second exit. O_TRUNC unloads it nevertheless. */
int kmem_delete_module(const char *name, unsigned int flags) __attribute__((weak));

/* The address of what a live module exports under this name, and holds the module; null: nobody does. */
void *kmem_symbol_get(const char *name) __attribute__((weak));
/* Lets go of it. */
int kmem_symbol_put(const char *name) __attribute__((weak));

/* -- What there is ------------------------------------------------------------------------------------------------- */

/* Counters: the kernel's (/sys/kernel/debug/modules/stats), in its order. */
struct kmem_module_stat {
	/* As of kmem_module_config: KMEM_MODULE_STAT_INIT. */
	uint64_t size;
	/* Loads, and requests that failed: on reading, on decompressing, before the module had memory, after that. */
	uint64_t loaded, failed_kreads, failed_decompress, failed_becoming, failed_loads;
	/* Bytes of all modules ever loaded; of their code; that requests took which failed, as above. */
	uint64_t total_bytes, total_text_bytes;
	uint64_t kread_bytes, decompress_bytes, becoming_bytes, load_bytes;
	/* The sum of the last four. */
	uint64_t wasted_bytes;
	/* What the loader holds for modules and requests; the most it held. */
	uint64_t held_bytes, held_peak_bytes;
};
#define KMEM_MODULE_STAT_INIT { sizeof(struct kmem_module_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
int kmem_module_stat(struct kmem_module_stat *stat) __attribute__((weak));

/* Texts, with a zero byte, cut off where there is no room; their whole length. The statistics as the kernel prints them; the modules
 * as in /proc/modules; why the last function of this thread failed, in words ("" if none did). */
int kmem_module_stat_text(char *text, size_t room) __attribute__((weak));
int kmem_module_list_text(char *text, size_t room) __attribute__((weak));
int kmem_module_error(char *text, size_t room) __attribute__((weak));

#define KMEM_MODULE_OR_(function, call) (function ? (call) : -ENOSYS)
#define kmem_module_configure(config) KMEM_MODULE_OR_(kmem_module_configure, kmem_module_configure(config))
#define kmem_finit_module(fd, args, flags) KMEM_MODULE_OR_(kmem_finit_module, kmem_finit_module(fd, args, flags))
#define kmem_init_module(image, len, args) KMEM_MODULE_OR_(kmem_init_module, kmem_init_module(image, len, args))
#define kmem_request_module(name) KMEM_MODULE_OR_(kmem_request_module, kmem_request_module(name))
#define kmem_delete_module(name, flags) KMEM_MODULE_OR_(kmem_delete_module, kmem_delete_module(name, flags))
#define kmem_symbol_get(name) (kmem_symbol_get ? kmem_symbol_get(name) : (void *)0)
#define kmem_symbol_put(name) KMEM_MODULE_OR_(kmem_symbol_put, kmem_symbol_put(name))
#define kmem_module_stat(stat) KMEM_MODULE_OR_(kmem_module_stat, kmem_module_stat(stat))
#define kmem_module_stat_text(text, room) KMEM_MODULE_OR_(kmem_module_stat_text, kmem_module_stat_text(text, room))
#define kmem_module_list_text(text, room) KMEM_MODULE_OR_(kmem_module_list_text, kmem_module_list_text(text, room))
#define kmem_module_error(text, room) KMEM_MODULE_OR_(kmem_module_error, kmem_module_error(text, room))

#ifdef __cplusplus
}
#endif

#endif /* KMEM_MODULE_HOST_H */
