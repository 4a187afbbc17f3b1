#!/bin/sh
# Prints places of fields in the structures of CPython, for crates/kmem-core/src/frames/layout.rs.
#
# usage: python-layouts.sh INCLUDE...   directories with a Python.h and its folder `internal`
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat > "$dir/layout.c" <<'C'
#include <stddef.h>
#include <stdio.h>
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#if PY_VERSION_HEX < 0x03090000
#include <internal/pycore_pystate.h>
#else
#include <internal/pycore_runtime.h>
#endif
#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#endif
#define SHOW(name, type, field) printf("%s: %d, ", name, (int)offsetof(type, field))
int main(void)
{
	printf("%s: ", PY_VERSION);
#if PY_VERSION_HEX < 0x030C0000
	SHOW("current", _PyRuntimeState, gilstate.tstate_current);
#endif
	SHOW("thread_id", PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030D0000
	SHOW("frame", PyThreadState, current_frame);
	SHOW("instruction", _PyInterpreterFrame, instr_ptr);
	SHOW("code", _PyInterpreterFrame, f_executable);
#elif PY_VERSION_HEX >= 0x030B0000
	SHOW("frame", PyThreadState, cframe);
	SHOW("c_frame", _PyCFrame, current_frame);
	SHOW("instruction", _PyInterpreterFrame, prev_instr);
	SHOW("code", _PyInterpreterFrame, f_code);
#else
	SHOW("frame", PyThreadState, frame);
	SHOW("last", PyFrameObject, f_lasti);
	SHOW("code", PyFrameObject, f_code);
#endif
	SHOW("file", PyCodeObject, co_filename);
	SHOW("first_line", PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030B0000
	SHOW("function", PyCodeObject, co_qualname);
	SHOW("bytecode", PyCodeObject, co_code_adaptive);
#else
	SHOW("function", PyCodeObject, co_name);
	SHOW("bytecode", PyCodeObject, co_code);
#endif
#if PY_VERSION_HEX >= 0x030A0000
	SHOW("table", PyCodeObject, co_linetable);
#else
	SHOW("table", PyCodeObject, co_lnotab);
#endif
	printf("ascii: %zu, compact: %zu\n", sizeof(PyASCIIObject), sizeof(PyCompactUnicodeObject));
	return 0;
}
C
for include in "$@"; do
    cc -w -I"$include" -I"$include/internal" "$dir/layout.c" -o "$dir/layout"
    "$dir/layout"
done
