#include "rhashtable_absent.c"
