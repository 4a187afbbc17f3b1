/* Memory by functions of libcrypto. */

#include <openssl/crypto.h>

static void *kept[3][1000];

__attribute__((noipa)) static void by_malloc(void **to)
{
	for (int i = 0; i < 1000; i++)
		to[i] = i % 2 ? OPENSSL_malloc(500) : OPENSSL_zalloc(500);
}

__attribute__((noipa)) static void by_realloc(void **to)
{
	for (int i = 0; i < 900; i++)
		to[i] = OPENSSL_realloc(OPENSSL_malloc(10), 300);
}

__attribute__((noipa)) static void by_copy(void **to)
{
	for (int i = 0; i < 800; i++)
		to[i] = i % 2 ? OPENSSL_strdup("a text") : OPENSSL_memdup("a text", 7);
}

int main(void)
{
	by_malloc(kept[0]);
	by_realloc(kept[1]);
	by_copy(kept[2]);
	return 0;
}
