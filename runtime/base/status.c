#include "runtime/base/status.h"

#include <stdarg.h>
#include <stdio.h>

fl_status fl_err_set(fl_err *e, fl_status code, int sys, const char *file, int line,
                     const char *fmt, ...)
{
    if (!e || e->code != FL_OK) return code;
    e->code = code;
    e->sys = sys;
    e->file = file;
    e->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    for (char *p = e->msg; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return code;
}

const char *fl_status_name(fl_status s)
{
    switch (s) {
    case FL_OK: return "ok";
    case FL_E_ARG: return "invalid argument";
    case FL_E_NOMEM: return "out of memory";
    case FL_E_IO: return "i/o error";
    case FL_E_FORMAT: return "bad format";
    case FL_E_UNSUPPORTED: return "unsupported";
    case FL_E_DEVICE: return "device error";
    case FL_E_BUSY: return "busy";
    case FL_E_CANCELED: return "canceled";
    case FL_E_NAN: return "not a number";
    case FL_E_STALLED: return "stalled";
    }
    return "unknown";
}
