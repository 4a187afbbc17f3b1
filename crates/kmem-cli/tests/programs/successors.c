/* Starts itself anew, as often as its argument tells, with memory each time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int left = argc > 1 ? atoi(argv[1]) : 0;
    char next[16];
    for (int i = 0; i < 100; i++) {
        char *piece = malloc(64 << 10);
        if (!piece)
            return 1;
        memset(piece, 1, 64 << 10);
    }
    if (left == 0)
        return 0;
    snprintf(next, sizeof next, "%d", left - 1);
    execl(argv[0], argv[0], next, (char *)NULL);
    return 2;
}
