#include "runtime/tools/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"

static const char magic[8] = {'F', 'L', 'R', 'E', 'S', 'U', 'M', '1'};
enum { MAX_BYTES = 1 << 23 };

typedef struct header {
    char magic[8];
    uint64_t options, source, n_tensors;
    uint32_t n_parts, zero;
    uint64_t check; /* hash of what is before */
} header;

/* `check` binds a hash to its place and to the header, so that nothing of another run counts. */
typedef struct record {
    uint64_t hash, check;
} record;

struct fl_journal {
    char *path;
    int fd;
    uint64_t seed; /* the header's check */
    size_t n;
};

static uint64_t header_check(const header *h) { return fl_hash64(h, offsetof(header, check)); }

static uint64_t record_check(uint64_t seed, size_t i, uint64_t hash)
{
    const uint64_t both[2] = {i, hash};
    return fl_hash64_seeded(both, sizeof both, seed);
}

bool fl_journal_parse(const uint8_t *data, size_t n, fl_journal_key *key, uint64_t *hash,
                      size_t *n_hash)
{
    header h;
    *n_hash = 0;
    if (n < sizeof h) return false;
    memcpy(&h, data, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.check != header_check(&h)) return false;
    *key = (fl_journal_key){h.options, h.source, h.n_tensors, h.n_parts};
    for (size_t at = sizeof h; n - at >= sizeof(record) && *n_hash < h.n_tensors; ++*n_hash) {
        record r;
        memcpy(&r, data + at, sizeof r);
        if (r.check != record_check(h.check, *n_hash, r.hash)) break;
        hash[*n_hash] = r.hash;
        at += sizeof r;
    }
    return true;
}

static fl_status failed(const fl_journal *j, const char *what, fl_err *err)
{
    return FL_FAIL(err, FL_E_IO, errno, "%s: %s: %s", j->path, what, strerror(errno));
}

/* Whether the name still leads to the file that was opened: a run that ends removes it. */
static bool is_current(const fl_journal *j)
{
    struct stat a, b;
    return fstat(j->fd, &a) == 0 && stat(j->path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static fl_status open_locked(fl_journal *j, const char *target, fl_err *err)
{
    for (;;) {
        j->fd = open(j->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (j->fd < 0) return failed(j, "cannot be created", err);
        if (flock(j->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            return FL_FAIL(err, FL_E_IO, errno, "%s: another run is writing it", target);
        if (is_current(j)) return FL_OK;
        close(j->fd);
    }
}

fl_status fl_journal_open(fl_journal **out, const char *target, fl_err *err)
{
    *out = NULL;
    fl_journal *j = calloc(1, sizeof *j);
    if (j) j->fd = -1;
    if (j && asprintf(&j->path, "%s.resume", target) < 0) j->path = NULL;
    if (!j || !j->path) {
        fl_journal_close(&j);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its journal", target);
    }
    const fl_status st = open_locked(j, target, err);
    if (st != FL_OK)
        fl_journal_close(&j);
    else
        *out = j;
    return st;
}

fl_status fl_journal_load(fl_journal *j, fl_journal_key *key, uint64_t **hash, size_t *n,
                          bool *found, fl_err *err)
{
    struct stat sb;
    fl_status st = FL_OK;
    *hash = NULL;
    *n = 0;
    *found = false;
    if (fstat(j->fd, &sb) != 0) return failed(j, "cannot be read", err);
    if (sb.st_size == 0 || sb.st_size > MAX_BYTES) return FL_OK;
    const size_t size = (size_t)sb.st_size;
    uint8_t *data = malloc(size);
    *hash = malloc(size);
    if (!data || !*hash) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to read it", j->path);
        goto out;
    }
    FL_GO(fl_file_read_at(j->fd, data, size, 0, j->path, err));
    *found = fl_journal_parse(data, size, key, *hash, n);
out:
    free(data);
    if (st != FL_OK || !*found) {
        free(*hash);
        *hash = NULL;
    }
    return st;
}

static fl_status put(fl_journal *j, const void *data, size_t n, off_t at, fl_err *err)
{
    errno = ENOSPC; /* a short write says no more */
    return pwrite(j->fd, data, n, at) == (ssize_t)n ? FL_OK : failed(j, "write failed", err);
}

static header header_of(const fl_journal_key *key)
{
    header h = {.options = key->options,
                .source = key->source,
                .n_tensors = key->n_tensors,
                .n_parts = key->n_parts};
    memcpy(h.magic, magic, sizeof magic);
    h.check = header_check(&h);
    return h;
}

fl_status fl_journal_start(fl_journal *j, const fl_journal_key *key, fl_err *err)
{
    const header h = header_of(key);
    j->seed = h.check;
    j->n = 0;
    if (ftruncate(j->fd, 0) != 0) return failed(j, "cannot be cut", err);
    return put(j, &h, sizeof h, 0, err);
}

fl_status fl_journal_go_on(fl_journal *j, const fl_journal_key *key, size_t n, fl_err *err)
{
    const header h = header_of(key);
    j->seed = h.check;
    j->n = n;
    if (ftruncate(j->fd, (off_t)(sizeof h + n * sizeof(record))) != 0)
        return failed(j, "cannot be cut", err);
    return FL_OK;
}

fl_status fl_journal_add(fl_journal *j, uint64_t hash, fl_err *err)
{
    const record r = {hash, record_check(j->seed, j->n, hash)};
    FL_TRY(put(j, &r, sizeof r, (off_t)(sizeof(header) + j->n * sizeof r), err));
    j->n++;
    return FL_OK;
}

fl_status fl_journal_sync(fl_journal *j, fl_err *err)
{
    return fdatasync(j->fd) == 0 ? FL_OK : failed(j, "fsync failed", err);
}

size_t fl_journal_count(const fl_journal *j) { return j->n; }

void fl_journal_close(fl_journal **pj)
{
    fl_journal *j = *pj;
    if (!j) return;
    if (j->fd >= 0) close(j->fd);
    free(j->path);
    free(j);
    *pj = NULL;
}

void fl_journal_remove(fl_journal **pj)
{
    if (*pj) unlink((*pj)->path);
    fl_journal_close(pj);
}
