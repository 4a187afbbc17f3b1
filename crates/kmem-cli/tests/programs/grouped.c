/* A group with a limit, which refuses one request. It prints ready, and waits. */
#include <kmem/group.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    kmem_group_t tenant = kmem_group_create(KMEM_GROUP_ROOT, "a\"b");
    kmem_group_set(tenant, KMEM_GROUP_MAX, 1 << 20);
    int64_t token = kmem_group_enter(tenant);
    void *volatile held = malloc(100000);
    void *volatile refused = malloc(4 << 20);
    kmem_group_leave(token);
    if (held == NULL || refused != NULL)
        abort();
    puts("ready");
    fflush(stdout);
    char c;
    return read(0, &c, 1) < 0;
}
