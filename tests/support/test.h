#ifndef FL_TESTS_SUPPORT_TEST_H
#define FL_TESTS_SUPPORT_TEST_H

/* What every test program includes: cmocka with the headers it wants, and two checks on status
 * and error line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/status.h"

/* A sanitizer makes a program many times slower and looks at paths and threads, not at values: what
 * only takes the same path again with other values is done less often there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FL_SANITIZED = 1 };
#else
enum { FL_SANITIZED = 0 };
#endif
#define FL_SANITIZED_OR(sanitized, plain) (FL_SANITIZED ? (sanitized) : (plain))

/* The call succeeds; else the test fails with the error's own line. Needs a local `fl_err err`. */
#define ASSERT_OK(call)                                                     \
    do {                                                                    \
        err = (fl_err){0};                                                  \
        const fl_status st_ = (call);                                       \
        if (st_ != FL_OK) fail_msg("%s: %s", fl_status_name(st_), err.msg); \
    } while (0)

/* The call fails with that status, and its line contains `words`. */
#define ASSERT_FAILS(call, status, words)                                                    \
    do {                                                                                     \
        err = (fl_err){0};                                                                   \
        const fl_status st_ = (call);                                                        \
        if (st_ != (status))                                                                 \
            fail_msg("expected %s, got %s: %s", fl_status_name(status), fl_status_name(st_), \
                     err.msg);                                                               \
        if (!strstr(err.msg, (words))) fail_msg("'%s' is not in: %s", (words), err.msg);     \
    } while (0)

#endif
