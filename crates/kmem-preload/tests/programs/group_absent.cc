#include "group_absent.c"
