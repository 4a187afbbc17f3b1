/* Does what each byte on standard input says, and answers with a line. */
#include <kmem/group.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1 << 20)
#define NOINLINE __attribute__((noinline))

NOINLINE static char *eat(size_t bytes) {
    char *p = malloc(bytes); /* eaten */
    memset(p, 1, bytes);
    return p;
}

/* Has a group that holds more than its high for a moment. */
NOINLINE static void exceed(void) {
    static kmem_group_t tenant;
    if (!tenant) {
        tenant = kmem_group_create(KMEM_GROUP_ROOT, "tenant");
        kmem_group_set(tenant, KMEM_GROUP_HIGH, MIB);
    }
    int64_t token = kmem_group_enter(tenant);
    free(eat(2 * MIB));
    kmem_group_leave(token);
}

int main(void) {
    char *volatile held = NULL;
    char c = 'a';
    do {
        if (c == 'a')
            held = eat(MIB);
        if (c == 'h')
            exceed();
        while (c == 'g')
            held = eat(MIB);
        if (write(1, "ready\n", 6) != 6)
            return 1;
    } while (read(0, &c, 1) == 1);
    return held == NULL;
}
