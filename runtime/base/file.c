#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
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

static fl_file_id id_of(const struct stat *st)
{
    return (fl_file_id){.dev = st->st_dev,
                        .ino = st->st_ino,
                        .bytes = (uint64_t)st->st_size,
                        .written_s = st->st_mtim.tv_sec,
                        .written_ns = st->st_mtim.tv_nsec};
}

fl_status fl_file_identify(int fd, const char *path, fl_file_id *id, fl_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return FL_FAIL(err, FL_E_IO, errno, "%s: %s", path, strerror(errno));
    *id = id_of(&st);
    return FL_OK;
}

fl_status fl_file_same(int fd, const char *path, const fl_file_id *was, fl_err *err)
{
    fl_file_id now = {0};
    FL_TRY(fl_file_identify(fd, path, &now, err));
    if (now.bytes != was->bytes)
        return FL_FAIL(err, FL_E_IO, 0,
                       "%s: the file ends at %llu, expected %llu bytes as when it was opened; it "
                       "was changed while in use, start again",
                       path, (unsigned long long)now.bytes, (unsigned long long)was->bytes);
    if (now.written_s != was->written_s || now.written_ns != was->written_ns)
        return FL_FAIL(err, FL_E_IO, 0,
                       "%s: the file was written to since it was opened; it was changed while in "
                       "use, start again",
                       path);
    return FL_OK;
}

fl_status fl_file_in_place(int fd, const char *path, const fl_file_id *was, fl_err *err)
{
    struct stat st;
    FL_TRY(fl_file_same(fd, path, was, err));
    if (stat(path, &st) != 0)
        return FL_FAIL(err, FL_E_IO, errno, "%s: the file was removed while in use: %s", path,
                       strerror(errno));
    const fl_file_id now = id_of(&st);
    if (now.dev != was->dev || now.ino != was->ino)
        return FL_FAIL(err, FL_E_IO, 0,
                       "%s: the file was replaced by another one while in use, start again", path);
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
