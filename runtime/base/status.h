#ifndef FL_BASE_STATUS_H
#define FL_BASE_STATUS_H

#include <stddef.h>
#include <stdint.h>

/* Every function that can fail because of the outside world (files, memory, kernel, device,
 * user input) returns fl_status. FL_OK is zero, failures are negative. Values are stable: they
 * appear in logs and JSON. Broken promises between our own functions are asserts instead. */
typedef enum fl_status {
    FL_OK = 0,
    FL_E_ARG = -1,         /* a value given by the user is outside its range, or the model's */
    FL_E_NOMEM = -2,       /* allocation failed or a budget is exhausted */
    FL_E_IO = -3,          /* open/read/write failed; fl_err.sys holds errno */
    FL_E_FORMAT = -4,      /* a file is not what it claims to be */
    FL_E_UNSUPPORTED = -5, /* valid, but this build or machine cannot do it */
    FL_E_DEVICE = -6,      /* fl_err.sys holds the device's own error code */
    FL_E_BUSY = -7,        /* try again; not an error to log */
    FL_E_CANCELED = -8,    /* the caller asked to stop */
    FL_E_NAN = -9,         /* NaN or infinity in a computation */
    FL_E_STALLED = -10     /* nothing moved for the time that is allowed; it may move again */
} fl_status;

/* The first cause of a failure. Zero-initialise; later failures do not overwrite it. */
typedef struct fl_err {
    fl_status code;
    int sys;          /* errno or device code; 0 if none */
    const char *file; /* __FILE__ of the first failure */
    int line;
    char msg[512]; /* one line: object, place, expected, found, hint; no trailing newline */
} fl_err;

#define FL_CHECKED __attribute__((warn_unused_result))

/* Records a failure (first one wins) and returns its code. `e` may be NULL. Control characters
 * in the formatted text are replaced, so a message is always one printable line. */
__attribute__((format(printf, 6, 7), cold)) fl_status
fl_err_set(fl_err *e, fl_status code, int sys, const char *file, int line, const char *fmt, ...);

/* Short name of a status, for JSON and logs. */
const char *fl_status_name(fl_status s);

/* Record a failure where it happens and give its code. */
#define FL_FAIL(e, code, sys, ...) fl_err_set((e), (code), (sys), __FILE__, __LINE__, __VA_ARGS__)
/* Forward a failure unchanged. Use only where nothing needs releasing. */
#define FL_TRY(expr)                      \
    do {                                  \
        fl_status fl_s_ = (expr);         \
        if (fl_s_ != FL_OK) return fl_s_; \
    } while (0)
/* Forward a failure through the function's one `out:` label; needs a local `fl_status st`. */
#define FL_GO(expr)                \
    do {                           \
        st = (expr);               \
        if (st != FL_OK) goto out; \
    } while (0)

#endif
