#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"

/* ---- temporaries and signals ---- */

enum { MAX_OPEN = 32 };

/* Files that a signal must not leave behind. The handler reads them at any time. */
static _Atomic(const char *) guarded[MAX_OPEN];
static _Atomic pid_t guard_owner; /* a child has a copy of the list, the files are not its own */

static void on_signal(int sig)
{
    for (int i = 0; i < MAX_OPEN && atomic_load(&guard_owner) == getpid(); i++) {
        const char *path = atomic_load(&guarded[i]);
        if (path) unlink(path);
    }
    raise(sig); /* the action is the default one again: the process ends behind this handler */
}

/* Signals that would end the process now. One that is ignored (nohup) or handled stays so. */
static void catch_signals(void)
{
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND}, old;
    sigemptyset(&mine.sa_mask);
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
        if (sigaction(sigs[i], NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) &&
            old.sa_handler == SIG_DFL)
            sigaction(sigs[i], &mine, NULL);
}

void fl_file_guard(const char *path)
{
    atomic_store(&guard_owner, getpid());
    catch_signals();
    for (int i = 0; i < MAX_OPEN; i++) {
        const char *none = NULL;
        if (atomic_compare_exchange_strong(&guarded[i], &none, path)) return;
    }
    assert(!"more files guarded at once than MAX_OPEN");
}

void fl_file_unguard(const char *path)
{
    for (int i = 0; i < MAX_OPEN; i++) {
        const char *same = path;
        if (atomic_compare_exchange_strong(&guarded[i], &same, NULL)) return;
    }
}

/* ---- temporaries of runs that were killed ---- */

/* Removes the temporary unless somebody has it open for writing: each writer holds a lock. */
static bool remove_unlocked(const char *tmp)
{
    struct stat st;
    const int fd = open(tmp, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    const bool stale =
        fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0;
    const bool removed = stale && unlink(tmp) == 0;
    close(fd);
    return removed;
}

/* The process id in a name BASE.tmp.PID, written as this program writes it; 0 for other names. */
static pid_t writer_of(const char *name, const char *base)
{
    static const char mark[] = ".tmp.";
    const size_t n = strlen(base), k = sizeof mark - 1;
    if (strncmp(name, base, n) != 0 || strncmp(name + n, mark, k) != 0) return 0;
    const char *digits = name + n + k;
    const size_t len = strlen(digits);
    if (len < 1 || len > 10 || digits[0] == '0' || strspn(digits, "0123456789") != len) return 0;
    const long long pid = atoll(digits);
    return pid <= INT_MAX ? (pid_t)pid : 0;
}

/* Clears what killed writers of the same file left: the id names no process that lives here, and
 * nobody elsewhere (another container) holds the lock. */
static void remove_stale(const char *target)
{
    char *a = strdup(target), *b = strdup(target);
    DIR *d = a && b ? opendir(dirname(a)) : NULL;
    const char *base = b ? basename(b) : "";
    for (const struct dirent *e; d && (e = readdir(d));) {
        char *tmp = NULL;
        const pid_t pid = writer_of(e->d_name, base);
        if (pid == 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
        if (asprintf(&tmp, "%s.tmp.%ld", target, (long)pid) < 0) break;
        (void)remove_unlocked(tmp);
        free(tmp);
    }
    if (d) closedir(d);
    free(a);
    free(b);
}

/* ---- writing ---- */

enum { KICK = 8 << 20 };

struct fl_outfile {
    char *path, *tmp;
    int fd;
    bool part; /* fl_outfile_open_part */
    uint64_t at;
    uint64_t kicked; /* part: the kernel was asked to write what lies before */
    uint64_t n_buf;
    uint8_t buf[1 << 20];
};

static void outfile_free(fl_outfile *f)
{
    if (f->tmp && !f->part) fl_file_unguard(f->tmp);
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f->tmp);
    free(f);
}

fl_status fl_file_target(const char *path, char **out, fl_err *err)
{
    struct stat st;
    *out = NULL;
    if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) {
        *out = strdup(path);
    } else {
        errno = 0;
        *out = realpath(path, NULL);
        if (!*out && errno != ENOMEM)
            return FL_FAIL(
                err, FL_E_IO, errno,
                "%s: is a symbolic link that leads to no file (%s); name the file itself", path,
                strerror(errno));
    }
    if (!*out) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its name", path);
    return FL_OK;
}

/* Under a name of this process alone; one that is there already is left from an earlier process of
 * the same number, unless it is locked. */
static fl_status create_tmp(fl_outfile *f, fl_err *err)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    f->fd = open(f->tmp, flags, 0644);
    if (f->fd < 0 && errno == EEXIST) {
        (void)remove_unlocked(f->tmp);
        f->fd = open(f->tmp, flags, 0644);
    }
    if (f->fd < 0) {
        const int e = errno;
        return FL_FAIL(err, FL_E_IO, e, "%s: cannot be created: %s%s", f->tmp, strerror(e),
                       e == EEXIST ? "; another run may be writing it" : "");
    }
    fl_file_guard(f->tmp);
    (void)flock(f->fd, LOCK_EX | LOCK_NB); /* not every file system has locks */
    return FL_OK;
}

fl_status fl_outfile_check(const char *path, fl_err *err)
{
    struct stat st;
    if (!*path) return FL_FAIL(err, FL_E_ARG, 0, "an empty file name; name a file to write");
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return FL_FAIL(err, FL_E_ARG, 0, "%s: is %s; name a file to write", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    return FL_OK;
}

static fl_status outfile_new(fl_outfile **out, const char *path, fl_err *err)
{
    char *target = NULL;
    *out = NULL;
    FL_TRY(fl_outfile_check(path, err));
    FL_TRY(fl_file_target(path, &target, err));
    fl_outfile *f = malloc(sizeof *f);
    if (!f) {
        free(target);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the write buffer", path);
    }
    f->fd = -1;
    f->part = false;
    f->at = f->kicked = f->n_buf = 0;
    f->path = target;
    f->tmp = NULL;
    *out = f;
    return FL_OK;
}

fl_status fl_outfile_open(fl_outfile **out, const char *path, fl_err *err)
{
    FL_TRY(outfile_new(out, path, err));
    fl_outfile *f = *out;
    fl_status st = FL_OK;
    if (asprintf(&f->tmp, "%s.tmp.%ld", f->path, (long)getpid()) < 0) {
        f->tmp = NULL;
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its name", path);
    }
    if (st == FL_OK) {
        remove_stale(f->path);
        st = create_tmp(f, err);
    }
    if (st != FL_OK) {
        outfile_free(f);
        *out = NULL;
    }
    return st;
}

static fl_status open_part(fl_outfile *f, uint64_t at, fl_err *err)
{
    struct stat st;
    f->part = true;
    if (asprintf(&f->tmp, "%s" FL_OUTFILE_PART, f->path) < 0) {
        f->tmp = NULL;
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its name", f->path);
    }
    f->fd = open(f->tmp, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be created: %s", f->tmp, strerror(errno));
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return FL_FAIL(err, FL_E_IO, errno, "%s: another run is writing it", f->tmp);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < at)
        return FL_FAIL(err, FL_E_IO, 0, "%s: is no regular file of at least %llu bytes", f->tmp,
                       (unsigned long long)at);
    if (ftruncate(f->fd, (off_t)at) != 0)
        return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be cut to %llu bytes: %s", f->tmp,
                       (unsigned long long)at, strerror(errno));
    f->at = f->kicked = at;
    return FL_OK;
}

fl_status fl_outfile_open_part(fl_outfile **out, const char *path, uint64_t at, fl_err *err)
{
    FL_TRY(outfile_new(out, path, err));
    const fl_status st = open_part(*out, at, err);
    if (st != FL_OK) {
        outfile_free(*out);
        *out = NULL;
    }
    return st;
}

static fl_status write_all(fl_outfile *f, const uint8_t *p, uint64_t n, uint64_t at, fl_err *err)
{
    while (n) {
        const ssize_t put = pwrite(f->fd, p, n < (1u << 30) ? n : (1u << 30), (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            const int e = put < 0 ? errno : ENOSPC;
            return FL_FAIL(err, FL_E_IO, e, "%s: write at byte %llu failed: %s", f->path,
                           (unsigned long long)at, strerror(e));
        }
        p += put;
        at += (uint64_t)put;
        n -= (uint64_t)put;
    }
    /* What is long to write goes to the disk while it is made, not all at the end. */
    if (f->part && at >= f->kicked + KICK) {
        (void)sync_file_range(f->fd, (off_t)f->kicked, (off_t)(at - f->kicked),
                              SYNC_FILE_RANGE_WRITE);
        f->kicked = at;
    }
    return FL_OK;
}

fl_status fl_outfile_flush(fl_outfile *f, fl_err *err)
{
    const uint64_t n = f->n_buf;
    f->n_buf = 0;
    return write_all(f, f->buf, n, f->at - n, err);
}

fl_status fl_outfile_write(fl_outfile *f, const void *data, uint64_t n, fl_err *err)
{
    if (n >= sizeof f->buf) {
        FL_TRY(fl_outfile_flush(f, err));
        FL_TRY(write_all(f, data, n, f->at, err));
        f->at += n;
        return FL_OK;
    }
    if (n > sizeof f->buf - f->n_buf) FL_TRY(fl_outfile_flush(f, err));
    if (n) memcpy(f->buf + f->n_buf, data, n);
    f->n_buf += n;
    f->at += n;
    return FL_OK;
}

/* Up to n bytes through the write buffer, which is empty. */
static fl_status copy_piece(fl_outfile *f, int from, uint64_t offset, uint64_t n,
                            const char *from_path, uint64_t *done, fl_err *err)
{
    *done = n < sizeof f->buf ? n : sizeof f->buf;
    FL_TRY(fl_file_read_at(from, f->buf, *done, offset, from_path, err));
    return write_all(f, f->buf, *done, f->at, err);
}

/* Reasons for which the kernel declines to copy what read and write can. */
static bool copy_is_refused(int e)
{
    return e == EXDEV || e == ENOSYS || e == EOPNOTSUPP || e == EINVAL || e == EPERM ||
           e == ETXTBSY;
}

fl_status fl_outfile_copy(fl_outfile *f, int from, uint64_t offset, uint64_t n,
                          const char *from_path, fl_err *err)
{
    bool by_kernel = true;
    FL_TRY(fl_outfile_flush(f, err));
    while (n > 0) {
        uint64_t done = 0;
        if (by_kernel) {
            off_t in = (off_t)offset, out = (off_t)f->at;
            const ssize_t got =
                copy_file_range(from, &in, f->fd, &out, n < (1u << 30) ? n : (1u << 30), 0);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && !copy_is_refused(errno))
                return FL_FAIL(err, FL_E_IO, errno, "%s: copying from %s at byte %llu failed: %s",
                               f->path, from_path, (unsigned long long)offset, strerror(errno));
            by_kernel = got > 0; /* 0: the end of the file, which reading will name */
            if (by_kernel) done = (uint64_t)got;
        }
        if (!by_kernel) FL_TRY(copy_piece(f, from, offset, n, from_path, &done, err));
        offset += done;
        f->at += done;
        n -= done;
    }
    return FL_OK;
}

fl_status fl_outfile_write_at(fl_outfile *f, const void *data, uint64_t n, uint64_t offset,
                              fl_err *err)
{
    FL_TRY(fl_outfile_flush(f, err));
    return write_all(f, data, n, offset, err);
}

uint64_t fl_outfile_tell(const fl_outfile *f) { return f->at; }

const char *fl_outfile_tmp_path(const fl_outfile *f) { return f->tmp; }

/* A rename is durable only when its folder is synced too. */
static void sync_folder(const char *path)
{
    char *copy = strdup(path);
    if (!copy) return;
    const int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
    free(copy);
}

fl_status fl_outfile_sync(fl_outfile *f, fl_err *err)
{
    FL_TRY(fl_outfile_flush(f, err));
    if (fsync(f->fd) == 0) return FL_OK;
    return FL_FAIL(err, FL_E_IO, errno, "%s: fsync failed: %s", f->path, strerror(errno));
}

fl_status fl_outfile_suspend(fl_outfile **fp, fl_err *err)
{
    assert((*fp)->part);
    const fl_status st = fl_outfile_sync(*fp, err);
    outfile_free(*fp);
    *fp = NULL;
    return st;
}

fl_status fl_outfile_commit(fl_outfile **fp, fl_err *err)
{
    fl_outfile *f = *fp;
    fl_status st = fl_outfile_sync(f, err);
    if (st == FL_OK && rename(f->tmp, f->path) != 0)
        st = FL_FAIL(err, FL_E_IO, errno, "%s: cannot be renamed into place: %s", f->path,
                     strerror(errno));
    if (st != FL_OK) {
        fl_outfile_discard(fp);
        return st;
    }
    sync_folder(f->path);
    *fp = NULL;
    outfile_free(f);
    return FL_OK;
}

void fl_outfile_discard(fl_outfile **fp)
{
    if (!*fp) return;
    unlink((*fp)->tmp);
    outfile_free(*fp);
    *fp = NULL;
}
