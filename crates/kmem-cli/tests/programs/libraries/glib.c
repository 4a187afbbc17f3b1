/* Memory by glib's own functions. */

#include <glib.h>

static void *kept[4][1000];

__attribute__((noipa)) static void by_malloc(void **to)
{
	for (int i = 0; i < 1000; i++)
		to[i] = i % 2 ? g_malloc(100) : g_malloc0(100);
}

__attribute__((noipa)) static void by_realloc(void **to)
{
	for (int i = 0; i < 900; i++)
		to[i] = g_realloc(g_try_malloc(10), 500);
}

__attribute__((noipa)) static void by_copy(void **to)
{
	for (int i = 0; i < 800; i++)
		to[i] = i % 2 ? g_strdup("a text") : g_strconcat("a ", "text", NULL);
}

__attribute__((noipa)) static void by_print(void **to)
{
	for (int i = 0; i < 700; i++)
		to[i] = g_strdup_printf("%0200d", i);
}

int main(void)
{
	by_malloc(kept[0]);
	by_realloc(kept[1]);
	by_copy(kept[2]);
	by_print(kept[3]);
	return 0;
}
