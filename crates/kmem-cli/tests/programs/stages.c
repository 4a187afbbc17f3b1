/* A small server in stages, for reports. Each byte on standard input starts the next stage, and a
 * line answers it. In a stage, orders come and pages are drawn for them, or most is freed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define ORDERS 4000

static char *orders[16][ORDERS], *pages[16][ORDERS / 4], *cache[16];
static int stage;

NOINLINE static char *parse_order(int i)
{
	char *p = malloc(100 + i % 7 * 50);
	memset(p, 1, 100);
	return p;
}

NOINLINE static void read_orders(void)
{
	for (int i = 0; i < ORDERS; i++)
		orders[stage][i] = parse_order(i);
}

NOINLINE static char *draw_page(int i)
{
	char *p = malloc(3000 + i % 3 * 700);
	memset(p, 1, 3000);
	return p;
}

NOINLINE static void draw_pages(void)
{
	for (int i = 0; i < ORDERS / 4; i++)
		pages[stage][i] = draw_page(i);
}

NOINLINE static void fill_cache(void)
{
	cache[stage] = malloc(400000);
	memset(cache[stage], 1, 400000);
}

NOINLINE static void handle_request(void)
{
	read_orders();
	draw_pages();
	fill_cache();
	stage++;
}

NOINLINE static void end_session(void)
{
	stage--;
	free(cache[stage]);
	for (int i = 0; i < ORDERS; i++)
		free(orders[stage][i]);
	for (int i = 0; i < ORDERS / 4; i += 2)
		free(pages[stage][i]);
}

int main(void)
{
	char c;
	handle_request();
	do {
		if (write(1, "ready\n", 6) != 6)
			return 1;
		if (read(0, &c, 1) != 1)
			return 0;
		if (c == 'a')
			handle_request();
		if (c == 'f')
			end_session();
	} while (c != 'q');
	return 0;
}
