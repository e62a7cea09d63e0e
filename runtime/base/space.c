#include "runtime/base/space.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "runtime/base/options.h"

fl_status fl_space_check(const char *file, uint64_t bytes, const char *what, fl_err *err)
{
    struct statvfs v;
    char need[32], have[32];
    char *copy = strdup(file);
    if (!copy) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", what);
    const char *dir = dirname(copy);
    fl_status st = FL_OK;
    if (statvfs(dir, &v) != 0) {
        st = FL_FAIL(err, FL_E_IO, errno, "%s: cannot look at the folder %s: %s", what, dir,
                     strerror(errno));
    } else if ((uint64_t)v.f_bavail * v.f_frsize < bytes) {
        st = FL_FAIL(err, FL_E_IO, ENOSPC,
                     "%s: needs %s on disk, %s has %s free; make room or choose another place",
                     what, fl_size_format(need, bytes), dir,
                     fl_size_format(have, (uint64_t)v.f_bavail * v.f_frsize));
    }
    free(copy);
    return st;
}
