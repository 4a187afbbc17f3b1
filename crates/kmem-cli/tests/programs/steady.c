/* Allocates and frees one object for each byte on standard input, and answers with a line. */
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    /* Volatile, so that the compiler keeps the calls. */
    void *volatile object;
    char c;
    do {
        object = malloc(100);
        free(object);
        if (write(1, "ready\n", 6) != 6)
            return 1;
    } while (read(0, &c, 1) == 1);
    return 0;
}
