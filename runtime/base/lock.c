#include "runtime/base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"

struct fl_lock {
    char *name;
    int fd;
};

/* Whether the name still leads to what is open: its holder removes it. */
static bool is_named(const fl_lock *l)
{
    struct stat open_one, named;
    return fstat(l->fd, &open_one) == 0 && stat(l->name, &named) == 0 &&
           open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

static void drop(fl_lock *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

static fl_status take(fl_lock *l, const char *path, fl_err *err)
{
    do {
        drop(l);
        l->fd = open(l->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (l->fd < 0)
            return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be created: %s", l->name,
                           strerror(errno));
        if (flock(l->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            return FL_FAIL(err, FL_E_BUSY, 0,
                           "%s: another run is using it; wait for its end or name another file",
                           path);
    } while (!is_named(l));
    return FL_OK;
}

fl_status fl_lock_take(fl_lock **out, const char *path, fl_err *err)
{
    char *target = NULL;
    *out = NULL;
    FL_TRY(fl_file_target(path, &target, err));
    fl_lock *l = malloc(sizeof *l);
    if (l) *l = (fl_lock){.fd = -1};
    if (!l || asprintf(&l->name, "%s.lock", target) < 0) {
        free(target);
        free(l);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its lock", path);
    }
    free(target);
    const fl_status st = take(l, path, err);
    if (st != FL_OK) {
        drop(l);
        free(l->name);
        free(l);
        return st;
    }
    fl_file_guard(l->name);
    *out = l;
    return FL_OK;
}

void fl_lock_release(fl_lock **lock)
{
    fl_lock *l = *lock;
    if (!l) return;
    fl_file_unguard(l->name);
    unlink(l->name); /* first: who opens the name from now on makes a new file */
    drop(l);
    free(l->name);
    free(l);
    *lock = NULL;
}
