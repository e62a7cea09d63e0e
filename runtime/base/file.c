#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

fl_status fl_file_read_at(int fd, void *dst, uint64_t n, uint64_t offset, const char *path,
                          fl_err *err)
{
    uint8_t *p = dst;
    uint64_t done = 0;
    while (done < n) {
        const uint64_t want = n - done < (1u << 30) ? n - done : (1u << 30);
        const ssize_t got = pread(fd, p + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return FL_FAIL(err, FL_E_IO, errno, "%s: read at byte %llu failed: %s", path,
                           (unsigned long long)(offset + done), strerror(errno));
        if (got == 0)
            return FL_FAIL(
                err, FL_E_FORMAT, 0,
                "%s: the file ends at byte %llu, %llu bytes were expected at %llu; it is "
                "truncated, fetch it again",
                path, (unsigned long long)(offset + done), (unsigned long long)n,
                (unsigned long long)offset);
        done += (uint64_t)got;
    }
    return FL_OK;
}

fl_status fl_file_open(const char *path, int *fd, uint64_t *size, fl_err *err)
{
    *fd = -1;
    /* O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files. */
    const int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be opened: %s", path, strerror(errno));
    struct stat st;
    if (fstat(f, &st) != 0) {
        const int e = errno;
        close(f);
        return FL_FAIL(err, FL_E_IO, e, "%s: %s", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is %s, a regular file was expected", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    }
    *fd = f;
    if (size) *size = (uint64_t)st.st_size;
    return FL_OK;
}

fl_status fl_file_load(const char *path, uint64_t limit, char **data, uint64_t *size, fl_err *err)
{
    *data = NULL;
    int fd;
    uint64_t n = 0;
    FL_TRY(fl_file_open(path, &fd, &n, err));
    if (n > limit) {
        close(fd);
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: has %llu bytes, at most %llu were expected", path,
                       (unsigned long long)n, (unsigned long long)limit);
    }
    char *p = malloc(n + 1);
    fl_status st = FL_OK;
    if (!p)
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its %llu bytes", path,
                     (unsigned long long)n);
    else
        st = fl_file_read_at(fd, p, n, 0, path, err);
    close(fd);
    if (st != FL_OK) {
        free(p);
        return st;
    }
    p[n] = 0;
    *data = p;
    if (size) *size = n;
    return FL_OK;
}

struct fl_outfile {
    char *path, *tmp;
    int fd;
    uint64_t at;
    uint64_t n_buf;
    uint8_t buf[1 << 20];
};

static void outfile_free(fl_outfile *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f->tmp);
    free(f);
}

/* The name to write under: behind symbolic links, so that a link stays one and the file it names
 * is what changes. malloc'ed. */
static fl_status real_target(const char *path, char **out, fl_err *err)
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

fl_status fl_outfile_open(fl_outfile **out, const char *path, fl_err *err)
{
    *out = NULL;
    char *target = NULL;
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return FL_FAIL(err, FL_E_ARG, 0, "%s: is %s; name a file to write", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    FL_TRY(real_target(path, &target, err));
    fl_outfile *f = malloc(sizeof *f);
    if (!f) {
        free(target);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the write buffer", path);
    }
    f->fd = -1;
    f->at = f->n_buf = 0;
    f->path = target;
    f->tmp = NULL;
    if (asprintf(&f->tmp, "%s.tmp.%ld", target, (long)getpid()) < 0) {
        f->tmp = NULL;
        outfile_free(f);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its name", path);
    }
    f->fd = open(f->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (f->fd < 0) {
        const int e = errno;
        fl_status s = FL_FAIL(err, FL_E_IO, e, "%s: cannot be created: %s", f->tmp, strerror(e));
        outfile_free(f);
        return s;
    }
    *out = f;
    return FL_OK;
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

fl_status fl_outfile_commit(fl_outfile **fp, fl_err *err)
{
    fl_outfile *f = *fp;
    fl_status st = fl_outfile_flush(f, err);
    if (st == FL_OK && fsync(f->fd) != 0)
        st = FL_FAIL(err, FL_E_IO, errno, "%s: fsync failed: %s", f->path, strerror(errno));
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
