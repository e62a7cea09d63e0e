#ifndef FL_TESTS_SUPPORT_REFUSE_H
#define FL_TESTS_SUPPORT_REFUSE_H

#include <stdbool.h>
#include <stdint.h>

/* One system call that the kernel is to refuse (seccomp): call number `nr` fails with `error` when
 * (argument[arg] & mask) == value; arg -1 = always. Lasts until the process ends. */
typedef struct fl_refusal {
    int nr;
    int arg;
    uint32_t mask, value;
    int error;
} fl_refusal;

void fl_refuse(const fl_refusal *r);

/* Runs fn(arg) in a child process and waits. fn returns true when all is as expected; a child that
 * crashes or hangs (30 s, unless fn sets another alarm) counts as false. */
bool fl_in_child(bool (*fn)(void *arg), void *arg);

#endif
