/* The loader of modules for hosts in C: loads, unloads and lists modules written with
 * kmem_module.h.
 *
 *	cc -rdynamic -Iinclude host.c -Wl,--no-as-needed -lkmem_modules    (and -lkmem for kmem.h)
 *
 *	int fd = open("plugin.ko", O_RDONLY | O_CLOEXEC);
 *	if (kmem_finit_module(fd, "size=5", 0) < 0)
 *		kmem_module_error(text, sizeof(text)), puts(text);
 *	int (*work)(void) = (int (*)(void))kmem_symbol_get("work");
 *	.. work() ..
 *	kmem_symbol_put("work");
 *	kmem_delete_module("plugin", 0);
 *
 * A process has one loader. Any thread may call the functions, in a module's init and exit, too;
 * signal handlers must not. Each returns a negative error number on failure, and then has changed
 * nothing unless it says so. errno may change. The numbers are those of the kernel's system calls
 * of these names. Every function can also return:
 *
 *	EFAULT	a pointer is null
 *	ENOMEM	there is no memory
 *	EINTR	a signal arrived while the function waited
 *	EDEADLK	the function would wait for its own thread
 *	ENOSYS	libkmem_modules.so is not loaded
 *
 * The symbols of a module are resolved among the exports of other modules, then among the dynamic
 * symbols of the process. Those of the host are the ones that -rdynamic exports. kmalloc and the
 * other functions of kmem.h are in libkmem.so. With it, the memory of a module is in the books, and
 * the group of the thread that loads the module pays for it. */
#ifndef KMEM_MODULE_HOST_H
#define KMEM_MODULE_HOST_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- The loader -------------------------------------------------------------------------------- */

/* Settings of the loader. 0 in any field but `size` means the default. */
struct kmem_module_config {
	/* Size of the structure, set by the caller with KMEM_MODULE_CONFIG_INIT. */
	uint64_t size;
	/* Directories for kmem_request_module, separated by ':'. Default: none. */
	const char *search_path;
	/* Most bytes of a module's memory, and of a compressed file's contents. Default: 64 MiB. */
	uint64_t most_bytes;
	/* Most calls of kmem_request_module served at once; further ones wait. Default: 50. */
	uint32_t most_requests;
	/* KMEM_MODULE_REFUSE_LIVE and KMEM_MODULE_PERF_MAP, or 0. */
	uint32_t flags;
	/* File of trusted certificates, in PEM or DER. With it, only modules are loaded that one of
	 * their keys has signed, as the kernel's sign-file signs them. Default: signatures are not
	 * verified. It is read once. */
	const char *certificates;
	/* Function of the host that verifies signatures, instead of `certificates`. It gets the bytes
	 * of a module, those of its signature (PKCS#7, in DER), and `verify_data`. It returns 0 if the
	 * signature is right, else a negative error number, which is that of the load. Modules without
	 * a signature are refused before. Any thread may call it, several at once. */
	int (*verify)(const void *module, size_t len, const void *signature, size_t signature_len,
		      void *verify_data);
	void *verify_data;
};
#define KMEM_MODULE_CONFIG_INIT { sizeof(struct kmem_module_config), 0, 0, 0, 0, 0, 0, 0 }
/* Do not unload a module while its allocations are live: see kmem_delete_module. */
#define KMEM_MODULE_REFUSE_LIVE 1u
/* Write the names of modules' functions to /tmp/perf-PID.map, for perf. */
#define KMEM_MODULE_PERF_MAP 2u

/* Makes the loader with these settings, and returns 0. EBUSY: another function was called before.
 * EINVAL: unknown flags, a size of no version, or both `certificates` and `verify`. EBADMSG: the
 * file has no certificates. Reading it can fail with other errors. */
int kmem_module_configure(const struct kmem_module_config *config) __attribute__((weak));

/* -- Loading and unloading --------------------------------------------------------------------- */

/* Flags of kmem_finit_module: accept symbols of other versions; accept a module of another ABI; the
 * file is compressed with gzip, xz or zstd. */
#define KMEM_MODULE_INIT_IGNORE_MODVERSIONS 1u
#define KMEM_MODULE_INIT_IGNORE_VERMAGIC 2u
#define KMEM_MODULE_INIT_COMPRESSED_FILE 4u

/* Loads the module in a file that is open for reading only, runs its init, and returns 0. `args` is
 * "name=value ..", or null. EEXIST: the module is loaded, found out without allocating; ENOEXEC:
 * the file is no module; ENOENT: a symbol is unknown; EKEYREJECTED, EBADMSG:
 * signatures are verified, and the module has none that is right. An error of init is returned. A
 * parameter that the module does not have is ignored with a warning on standard error. */
int kmem_finit_module(int fd, const char *args, unsigned int flags) __attribute__((weak));
/* Loads the module in `len` bytes at `image`, as kmem_finit_module does. The bytes may be freed
 * afterwards. */
int kmem_init_module(const void *image, size_t len, const char *args) __attribute__((weak));
/* Finds a module by its name or an alias in the search path, and loads it after the modules that it
 * depends on. Returns 0, even if it is loaded already. */
int kmem_request_module(const char *name) __attribute__((weak));
/* Waits until no thread holds a module, runs its exit, unloads it, and returns 0. With O_NONBLOCK
 * in `flags` it does not wait. With O_TRUNC it also unloads a module that has an init and no exit.
 * ENOENT: there is no such module; EAGAIN: other modules use it, or it is held and O_NONBLOCK is
 * set; EBUSY: it is being loaded or unloaded, or has an init and no exit.
 *
 * Allocations that are live after exit keep the module's name in the books, and a warning lists
 * their call sites. With KMEM_MODULE_REFUSE_LIVE the result is EBUSY instead, and the module stays
 * mapped. Another call unloads it once they are freed, and does not run exit again. O_TRUNC unloads
 * it at once. */
int kmem_delete_module(const char *name, unsigned int flags) __attribute__((weak));

/* Returns the address of a symbol that a live module exports, and holds the module. Null: none
 * does. */
void *kmem_symbol_get(const char *name) __attribute__((weak));
/* Releases the module of a symbol once, and returns 0. ENOENT: no module exports it. */
int kmem_symbol_put(const char *name) __attribute__((weak));

/* Copies the present value of a parameter of a live module to `room` bytes at `text`, as
 * /sys/module/MODULE/parameters/NAME has it, without a newline. It is cut off if it is longer.
 * Returns its whole length. ENOENT: there is no such module, or it has no such parameter that can
 * be read. A parameter with permissions 0 cannot, nor one whose variable is __initdata. */
int kmem_module_parameter(const char *module, const char *name, char *text, size_t room)
	__attribute__((weak));

/* -- Statistics -------------------------------------------------------------------------------- */

/* Counters of the loader, in the order of the kernel's (/sys/kernel/debug/modules/stats). */
struct kmem_module_stat {
	/* Size of the structure, set by the caller with KMEM_MODULE_STAT_INIT. */
	uint64_t size;
	/* Number of loads; of requests that failed to read, to decompress, before the module had
	 * memory, and afterwards. */
	uint64_t loaded, failed_kreads, failed_decompress, failed_becoming, failed_loads;
	/* Bytes of all modules loaded so far, and of their code. */
	uint64_t total_bytes, total_text_bytes;
	/* Bytes taken by failed requests, by the same four kinds. */
	uint64_t kread_bytes, decompress_bytes, becoming_bytes, load_bytes;
	/* The sum of these four. */
	uint64_t wasted_bytes;
	/* Bytes that the loader holds for modules and requests, and the most so far. */
	uint64_t held_bytes, held_peak_bytes;
};
#define KMEM_MODULE_STAT_INIT                                                                      \
	{ sizeof(struct kmem_module_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* Fills `stat` in and returns 0. EINVAL: `size` is that of no version. */
int kmem_module_stat(struct kmem_module_stat *stat) __attribute__((weak));

/* Copy a text with its zero byte to `room` bytes at `text`, cut off if it is longer, and return its
 * whole length. The first copies the statistics as the kernel prints them. The second copies the
 * modules in the layout of /proc/modules. The third copies the reason why a function last failed on
 * this thread, or "". */
int kmem_module_stat_text(char *text, size_t room) __attribute__((weak));
int kmem_module_list_text(char *text, size_t room) __attribute__((weak));
int kmem_module_error(char *text, size_t room) __attribute__((weak));

#define KMEM_MODULE_OR_(function, call) (function ? (call) : -ENOSYS)
#define kmem_module_configure(config)                                                              \
	KMEM_MODULE_OR_(kmem_module_configure, kmem_module_configure(config))
#define kmem_finit_module(fd, args, flags)                                                         \
	KMEM_MODULE_OR_(kmem_finit_module, kmem_finit_module(fd, args, flags))
#define kmem_init_module(image, len, args)                                                         \
	KMEM_MODULE_OR_(kmem_init_module, kmem_init_module(image, len, args))
#define kmem_request_module(name) KMEM_MODULE_OR_(kmem_request_module, kmem_request_module(name))
#define kmem_delete_module(name, flags)                                                            \
	KMEM_MODULE_OR_(kmem_delete_module, kmem_delete_module(name, flags))
#define kmem_symbol_get(name) (kmem_symbol_get ? kmem_symbol_get(name) : (void *)0)
#define kmem_symbol_put(name) KMEM_MODULE_OR_(kmem_symbol_put, kmem_symbol_put(name))
#define kmem_module_parameter(module, name, text, room)                                            \
	KMEM_MODULE_OR_(kmem_module_parameter, kmem_module_parameter(module, name, text, room))
#define kmem_module_stat(stat) KMEM_MODULE_OR_(kmem_module_stat, kmem_module_stat(stat))
#define kmem_module_stat_text(text, room)                                                          \
	KMEM_MODULE_OR_(kmem_module_stat_text, kmem_module_stat_text(text, room))
#define kmem_module_list_text(text, room)                                                          \
	KMEM_MODULE_OR_(kmem_module_list_text, kmem_module_list_text(text, room))
#define kmem_module_error(text, room)                                                              \
	KMEM_MODULE_OR_(kmem_module_error, kmem_module_error(text, room))

#ifdef __cplusplus
}
#endif

#endif /* KMEM_MODULE_HOST_H */
