/* Modules: relocatable objects, written as for the kernel, that kmem loads into a running process.
 *
 *	cc -c -fPIC -Iinclude plugin.c                 one file: plugin.o is the module
 *	ld -r -o plugin.ko a.o b.o                     several files
 *	kmem modload plugin.o                          loads and unloads it
 *
 * Names and meanings are those of Linux (include/linux/module.h, moduleparam.h, export.h,
 * percpu-defs.h). A module allocates memory with kmem.h; the books list its call sites under its
 * name. Its undefined symbols are resolved among the exports of loaded modules, then among the
 * symbols of the process.
 *
 * Not supported are thread-local variables, C++ exceptions that leave a module, and code without
 * -fPIC. */
#ifndef KMEM_MODULE_H
#define KMEM_MODULE_H

/* The loader makes the tags of a module known, so the module needs no constructor for them. */
#define KMEM_TAGS_BY_LOADER 1
#include "kmem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KMEM_PASTE__(a, b) a##b
#define KMEM_PASTE_(a, b) KMEM_PASTE__(a, b)
#define KMEM_UNIQUE_(name) KMEM_PASTE_(KMEM_PASTE_(name, __LINE__), KMEM_PASTE_(_, __COUNTER__))
#define KMEM_TEXT__(a) #a
#define KMEM_TEXT_(a) KMEM_TEXT__(a)

/* -- Information about the module -------------------------------------------------------------- */

/* Puts "key=text" into the section .modinfo. */
#define MODULE_INFO(key, text)                                                                     \
	static const char KMEM_UNIQUE_(kmem_info_)[]                                               \
		__attribute__((section(".modinfo"), used, aligned(1))) = #key "=" text

/* Version of the structures below; the loader refuses other versions. */
#define KMEM_MODULE_ABI "1"
#if defined(__x86_64__)
#define KMEM_MODULE_ARCH_ "x86_64"
#elif defined(__aarch64__)
#define KMEM_MODULE_ARCH_ "aarch64"
#endif

/* MODULE_LICENSE is required, once in a module. The module's name is KBUILD_MODNAME
 * (-DKBUILD_MODNAME=name), else that of the source file. */
#ifdef KBUILD_MODNAME
#define KMEM_MODULE_NAME_ MODULE_INFO(name, KMEM_TEXT_(KBUILD_MODNAME))
#else
#define KMEM_MODULE_NAME_ MODULE_INFO(kmem_source, __BASE_FILE__)
#endif
#define MODULE_LICENSE(text)                                                                       \
	MODULE_INFO(license, text);                                                                \
	MODULE_INFO(vermagic, "kmem " KMEM_MODULE_ABI " " KMEM_MODULE_ARCH_);                      \
	KMEM_MODULE_NAME_
#define MODULE_AUTHOR(text) MODULE_INFO(author, text)
#define MODULE_DESCRIPTION(text) MODULE_INFO(description, text)
#define MODULE_VERSION(text) MODULE_INFO(version, text)
#define MODULE_ALIAS(text) MODULE_INFO(alias, text)
/* Modules to load first, and modules to load if they exist ("pre: a b post: c"). kmem modload and
 * request_module read them. */
#define MODULE_DEPENDS(text) MODULE_INFO(depends, text)
#define MODULE_SOFTDEP(text) MODULE_INFO(softdep, text)

/* -- Life -------------------------------------------------------------------------------------- */

#define __init __attribute__((section(".init.text")))
#define __initdata __attribute__((section(".init.data")))
#define __initconst __attribute__((section(".init.rodata")))
#define __exit __attribute__((section(".exit.text"), used))
#define __ro_after_init __attribute__((section(".data..ro_after_init")))

/* The function is called when the module is loaded. It returns 0, or a negative error number, which
 * undoes the load. Init and exit must not leave by longjmp. If one does, the module and its name
 * stay as they are until the thread ends. Other threads wait for that, and requests of the thread
 * itself fail with EDEADLK. */
#define module_init(function) int init_module(void) __attribute__((alias(#function), used))
/* The function is called before the module is unloaded. A module with init and without exit is not
 * unloaded. */
#define module_exit(function) void cleanup_module(void) __attribute__((alias(#function), used))

struct module;
extern struct module __this_module;
#define THIS_MODULE (&__this_module)
/* Holds a module, which is not unloaded until module_put. False: it is being unloaded. Null always
 * succeeds. */
bool try_module_get(struct module *module) KMEM_AS_(kmem_try_module_get);
/* Releases a module once; null does nothing. */
void module_put(struct module *module) KMEM_AS_(kmem_module_put);
/* Returns how many times a module is held; -1 for null. */
int module_refcount(struct module *module) KMEM_AS_(kmem_module_refcount);
/* Loads a module by name or alias from the loader's search path. Returns 0 or a negative error
 * number. `of` is the module that asks. */
int kmem_module_request(struct module *of, const char *name);
#define request_module(name) kmem_module_request(THIS_MODULE, name)

/* -- Symbols for other modules ----------------------------------------------------------------- */

struct kmem_export {
	const void *value;
	const char *name;
	uint32_t version;
	/* 1: only for modules with a licence compatible with the GPL; 2: has a version */
	uint32_t flags;
};
#define KMEM_EXPORT_(symbol, version, flags)                                                       \
	static const struct kmem_export KMEM_PASTE_(kmem_export_, symbol)                          \
		__attribute__((section("kmem_exports"), used,                                      \
			       aligned(8))) = { (const void *)&symbol, #symbol, version, flags }
/* Exports a function or variable to other modules. */
#define EXPORT_SYMBOL(symbol) KMEM_EXPORT_(symbol, 0, 0)
#define EXPORT_SYMBOL_GPL(symbol) KMEM_EXPORT_(symbol, 0, 1)
/* Exports a symbol with a version, a 32-bit number that changes when the symbol's meaning does. A
 * module with IMPORT_SYMBOL_VERSION is not loaded if the symbol has another version. */
#define EXPORT_SYMBOL_VERSION(symbol, version) KMEM_EXPORT_(symbol, version, 2)
#define EXPORT_SYMBOL_GPL_VERSION(symbol, version) KMEM_EXPORT_(symbol, version, 3)
struct modversion_info {
	unsigned long crc;
	char name[64 - sizeof(unsigned long)];
};
#define IMPORT_SYMBOL_VERSION(symbol, version)                                                     \
	static const struct modversion_info KMEM_PASTE_(kmem_version_, symbol)                     \
		__attribute__((section("__versions"), used, aligned(8))) = { version, #symbol }

/* -- Parameters -------------------------------------------------------------------------------- */

struct kmem_param {
	const char *name;
	void *value;
	unsigned int *count; /* gets the number of values given for an array; may be null */
	uint32_t room;	     /* elements of an array, bytes of a string */
	uint16_t perm;
	uint8_t type;
	uint8_t kind; /* 0: a variable; 1: an array; 2: a string that is copied */
};
enum kmem_param_type {
	kmem_param_byte,
	kmem_param_short,
	kmem_param_ushort,
	kmem_param_int,
	kmem_param_uint,
	kmem_param_long,
	kmem_param_ulong,
	kmem_param_ullong,
	kmem_param_hexint,
	kmem_param_charp,
	kmem_param_bool,
	kmem_param_invbool,
};
#define KMEM_PARAM_(name, value, count, room, perm, type, kind)                                    \
	static const struct kmem_param KMEM_PASTE_(kmem_param_of_, name)                           \
		__attribute__((section("kmem_params"), used,                                       \
			       aligned(8))) = { #name, value, count, room, perm, type, kind }

/* Declare parameters of the types of enum kmem_param_type. Readers of a loaded module see their
 * values, unless `perm` is 0. No parameter of a loaded module can be written from outside. No macro
 * passes the type on to another, because bool is a macro itself. */
#define module_param_named(name, variable, type, perm)                                             \
	KMEM_PARAM_(name, &(variable), 0, 0, perm, kmem_param_##type, 0);                          \
	MODULE_INFO(parmtype, #name ":" #type)
#define module_param(variable, type, perm)                                                         \
	KMEM_PARAM_(variable, &(variable), 0, 0, perm, kmem_param_##type, 0);                      \
	MODULE_INFO(parmtype, #variable ":" #type)
#define module_param_array_named(name, array, type, count, perm)                                   \
	KMEM_PARAM_(name, array, count, sizeof(array) / sizeof((array)[0]), perm,                  \
		    kmem_param_##type, 1);                                                         \
	MODULE_INFO(parmtype, #name ":array of " #type)
#define module_param_array(array, type, count, perm)                                               \
	KMEM_PARAM_(array, array, count, sizeof(array) / sizeof((array)[0]), perm,                 \
		    kmem_param_##type, 1);                                                         \
	MODULE_INFO(parmtype, #array ":array of " #type)
#define module_param_string(name, string, size, perm)                                              \
	KMEM_PARAM_(name, string, 0, size, perm, kmem_param_charp, 2);                             \
	MODULE_INFO(parmtype, #name ":string")
#define MODULE_PARM_DESC(name, text) MODULE_INFO(parm, #name ":" text)

/* -- Per-CPU variables: a copy for each CPU ---------------------------------------------------- */

/* A per-CPU variable of the module, static or not, up to 32 KiB together. Its name stands for all
 * copies. It is used by this_cpu_add and the like, per_cpu and percpu_sum of kmem.h only, which
 * also take memory of alloc_percpu. Each copy begins with the value of the definition. There is one
 * for every possible CPU, and one for threads without a CPU number. percpu_sum adds up all. */
#define DEFINE_PER_CPU(type, name) __attribute__((section(".data..percpu"))) __typeof__(type) name
#define DECLARE_PER_CPU(type, name)                                                                \
	extern __attribute__((section(".data..percpu"))) __typeof__(type) name
/* The copy of a variable for a CPU. for_each_possible_cpu of kmem.h goes through all copies. */
#define per_cpu(variable, cpu) (*per_cpu_ptr(&(variable), cpu))
#define EXPORT_PER_CPU_SYMBOL(variable) EXPORT_SYMBOL(variable)
#define EXPORT_PER_CPU_SYMBOL_GPL(variable) EXPORT_SYMBOL_GPL(variable)
/* Returns the CPU that the caller runs on. The scheduler may move it to another at any time. */
unsigned int kmem_smp_processor_id(void);
#define smp_processor_id() kmem_smp_processor_id()

#ifdef __cplusplus
}
#endif

#endif /* KMEM_MODULE_H */
