/* A program that embeds Python: embedded SCRIPT. With -DPLUGIN it is a library, whose `run` another
 * program calls. */
#include <Python.h>

/* Not static: then no compiler may leave the calls out. */
void *kept[300];
static int count;

/* In the module `host`: the script calls it, and it calls malloc. */
static PyObject *keep(PyObject *self, PyObject *none)
{
	for (int i = 0; i < 100; i++)
		kept[count++] = malloc(5000);
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = { { "keep", keep, METH_NOARGS, NULL }, { NULL, NULL, 0, NULL } };
static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "host", NULL, -1, methods };

static PyObject *create(void)
{
	return PyModule_Create(&module);
}

static void __attribute__((noinline)) keep_in_c(void)
{
	for (int i = 0; i < 100; i++)
		kept[count++] = malloc(5000);
}

int run(int argc, char **argv)
{
	FILE *file = fopen(argv[1], "r");
	PyImport_AppendInittab("host", create);
	/* An interpreter that ends, and another one after it. */
	Py_Initialize();
	PyRun_SimpleString("first = [bytes(1000) for _ in range(100)]");
	Py_FinalizeEx();
	Py_Initialize();
	/* It is there, but runs no line. */
	keep_in_c();
	PyRun_SimpleString("import host\nhost.keep()");
	if (!file || PyRun_SimpleFile(file, argv[1]) != 0)
		return 1;
	Py_FinalizeEx();
	return 0;
}

#ifndef PLUGIN
int main(int argc, char **argv)
{
	return run(argc, argv);
}
#endif
