/* A program with a leak, to try kmem on: it reads orders, keeps an index of customers, and forgets
 * to free what it has sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct order {
	char *customer;
	char *text;
};

static char *parse_customer(unsigned n)
{
	char name[32];
	snprintf(name, sizeof(name), "customer-%u", n % 1000);
	return strdup(name);
}

static char *render(const struct order *order, size_t size)
{
	char *text = malloc(size);
	snprintf(text, size, "dear %s, ..", order->customer);
	return text;
}

static void send_order(unsigned n)
{
	struct order *order = calloc(1, sizeof(*order));
	order->customer = parse_customer(n);
	order->text = render(order, 400 + n % 100);
	free(order->customer);
	free(order); /* but not order->text */
}

int main(void)
{
	char **index = calloc(1 << 16, sizeof(*index));
	for (unsigned n = 0; n < 20000; n++) {
		send_order(n);
		if (n % 20 == 0)
			index[n] = parse_customer(n);
	}
	return 0;
}
