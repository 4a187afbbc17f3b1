/* Calls malloc from a frame of FRAME bytes: 24 or 72. Both have the same code but for that size. */
#include <stddef.h>
#include <stdlib.h>

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

void *call(size_t size);
__asm__(".text\n"
        ".globl call\n"
        ".type call, @function\n"
        "call:\n"
        "    .cfi_startproc\n"
        "    sub $" NUMBER(FRAME) ", %rsp\n"
        "    .cfi_adjust_cfa_offset " NUMBER(FRAME) "\n"
        "    call malloc@PLT\n"
        "    add $" NUMBER(FRAME) ", %rsp\n"
        "    .cfi_adjust_cfa_offset -" NUMBER(FRAME) "\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size call, . - call\n");
