/* Memory by functions of SQLite, and what a table and statements take. */

#include <sqlite3.h>
#include <stddef.h>

static void *kept[3][1000];

__attribute__((noipa)) static void by_malloc(void **to)
{
	for (int i = 0; i < 1000; i++)
		to[i] = i % 2 ? sqlite3_malloc(500) : sqlite3_realloc(sqlite3_malloc(10), 500);
}

__attribute__((noipa)) static void by_print(void **to)
{
	for (int i = 0; i < 900; i++)
		to[i] = sqlite3_mprintf("%0300d", i);
}

__attribute__((noipa)) static void by_statement(sqlite3 *db, void **to)
{
	for (int i = 0; i < 500; i++) {
		sqlite3_stmt *statement = NULL;

		sqlite3_prepare_v2(db, "SELECT a, b FROM t WHERE a > ? ORDER BY b", -1, &statement, NULL);
		to[i] = statement;
	}
}

int main(void)
{
	sqlite3 *db = NULL;

	by_malloc(kept[0]);
	by_print(kept[1]);
	sqlite3_open(":memory:", &db);
	sqlite3_exec(db,
		     "CREATE TABLE t (a, b);"
		     "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
		     "INSERT INTO t SELECT i, 'text ' || i FROM n;",
		     NULL, NULL, NULL);
	by_statement(db, kept[2]);
	return 0;
}
