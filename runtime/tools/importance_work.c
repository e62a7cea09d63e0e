#include "runtime/tools/importance_work.h"

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

enum { PATH_ROOM = 4096, MAX_LAYERS = 1024, PIECE = 4 << 20 };

struct fl_importance_work {
    char *dir;
    char *layer; /* the path that was asked for last */
    int lock;    /* of the job file */
    uint64_t job;
};

static const char *file_of(const fl_importance_work *w, const char *form, int number)
{
    char name[32];
    snprintf(name, sizeof name, form, number);
    snprintf(w->layer, PATH_ROOM, "%s/%s", w->dir, name);
    return w->layer;
}

const char *fl_importance_work_layer(const fl_importance_work *w, int layer)
{
    return file_of(w, "layer-%03d.gguf", layer);
}

static const char *rows_of(const fl_importance_work *w, int layer)
{
    return file_of(w, "rows-%03d", layer);
}

/* ---- opening ---- */

static fl_status write_job(const char *path, const char *job, fl_err *err)
{
    fl_outfile *f = NULL;
    FL_TRY(fl_outfile_open(&f, path, err));
    fl_status st = fl_outfile_write(f, job, strlen(job), err);
    if (st == FL_OK) return fl_outfile_commit(&f, err);
    fl_outfile_discard(&f);
    return st;
}

static fl_status check_job(const fl_importance_work *w, const char *path, const char *job,
                           fl_err *err)
{
    char *have = NULL;
    uint64_t n = 0;
    FL_TRY(fl_file_load(path, 1 << 16, &have, &n, err));
    const bool same = n == strlen(job) && memcmp(have, job, (size_t)n) == 0;
    free(have);
    if (same) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0,
                   "%s: an unfinished run on another model or text, or with other options; remove "
                   "the folder or name another output",
                   w->dir);
}

static fl_status take_lock(fl_importance_work *w, const char *path, fl_err *err)
{
    w->lock = open(path, O_RDONLY | O_CLOEXEC);
    if (w->lock >= 0 && flock(w->lock, LOCK_EX | LOCK_NB) == 0) return FL_OK;
    return FL_FAIL(err, FL_E_IO, errno, "%s: %s", w->dir,
                   w->lock >= 0 && errno == EWOULDBLOCK ? "another run is at work there"
                                                        : strerror(errno));
}

fl_status fl_importance_work_open(fl_importance_work **out, const char *path, const char *job,
                                  fl_err *err)
{
    fl_status st = FL_OK;
    *out = NULL;
    fl_importance_work *w = calloc(1, sizeof *w);
    if (!w) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    w->lock = -1;
    w->job = fl_hash64(job, strlen(job));
    w->layer = malloc(PATH_ROOM);
    if (asprintf(&w->dir, "%s.work", path) < 0) w->dir = NULL;
    if (!w->dir || !w->layer) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path));
    if (strlen(w->dir) > PATH_ROOM - 64)
        FL_GO(FL_FAIL(err, FL_E_ARG, 0, "%s: too long a path", path));
    if (mkdir(w->dir, 0777) != 0 && errno != EEXIST)
        FL_GO(FL_FAIL(err, FL_E_IO, errno, "%s: cannot be made: %s", w->dir, strerror(errno)));
    const char *file = file_of(w, "job", 0);
    if (access(file, F_OK) != 0) FL_GO(write_job(file, job, err));
    FL_GO(check_job(w, file, job, err));
    FL_GO(take_lock(w, file, err));
    *out = w;
    w = NULL;
out:
    fl_importance_work_close(&w);
    return st;
}

void fl_importance_work_close(fl_importance_work **w)
{
    if (!*w) return;
    if ((*w)->lock >= 0) close((*w)->lock);
    free((*w)->dir);
    free((*w)->layer);
    free(*w);
    *w = NULL;
}

void fl_importance_work_remove(fl_importance_work **w)
{
    for (int i = 0; i < MAX_LAYERS; i++) {
        unlink(fl_importance_work_layer(*w, i));
        unlink(rows_of(*w, i));
    }
    unlink(file_of(*w, "job", 0));
    rmdir((*w)->dir);
    fl_importance_work_close(w);
}

/* ---- rows ---- */

/* Bound to the job by the first number; a hash of all bytes stands at the end. */
typedef struct rows_head {
    uint64_t job;
    int64_t n_values, n_seqs;
} rows_head;

static rows_head head_of(const fl_importance_work *w, const fl_sweep_text *text, int64_t d_model)
{
    return (rows_head){w->job, text->n_rows * d_model, text->n_seqs};
}

static fl_status put(fl_outfile *f, fl_hasher *h, const void *p, uint64_t n, fl_err *err)
{
    fl_hasher_add(h, p, n);
    return fl_outfile_write(f, p, n, err);
}

static fl_status write_rows(fl_outfile *f, fl_hasher *h, const rows_head *head, fl_sweep *s,
                            fl_err *err)
{
    FL_TRY(put(f, h, head, sizeof *head, err));
    FL_TRY(put(f, h, fl_sweep_rows(s), (uint64_t)head->n_values * sizeof(float), err));
    for (int64_t i = 0; i < head->n_seqs; i++) {
        const uint8_t lost = fl_sweep_is_lost(s, (int)i);
        FL_TRY(put(f, h, &lost, 1, err));
    }
    const uint64_t hash = fl_hasher_value(h);
    return fl_outfile_write(f, &hash, sizeof hash, err);
}

fl_status fl_importance_work_save(fl_importance_work *w, int layer, fl_sweep *s,
                                  const fl_sweep_text *text, int64_t d_model, fl_err *err)
{
    const rows_head head = head_of(w, text, d_model);
    fl_outfile *f = NULL;
    fl_hasher *h = fl_hasher_create();
    fl_status st = FL_OK;
    if (!h) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", w->dir);
    FL_GO(fl_outfile_open(&f, rows_of(w, layer), err));
    FL_GO(write_rows(f, h, &head, s, err));
    FL_GO(fl_outfile_commit(&f, err));
    for (int i = 0; i < layer; i++) unlink(rows_of(w, i));
out:
    if (f) fl_outfile_discard(&f);
    fl_hasher_destroy(&h);
    return st;
}

/* Reads n bytes of a file behind `at` and adds them to the hash. */
static fl_status get(int fd, fl_hasher *h, void *p, uint64_t n, uint64_t *at, const char *path,
                     fl_err *err)
{
    for (uint64_t done = 0; done < n; done += PIECE) {
        const uint64_t some = n - done < PIECE ? n - done : PIECE;
        FL_TRY(fl_file_read_at(fd, (uint8_t *)p + done, some, *at + done, path, err));
    }
    fl_hasher_add(h, p, n);
    *at += n;
    return FL_OK;
}

static fl_status read_rows(int fd, fl_hasher *h, const rows_head *want, fl_sweep *s, uint8_t *lost,
                           const char *path, fl_err *err)
{
    rows_head head;
    uint64_t at = 0, hash = 0;
    FL_TRY(get(fd, h, &head, sizeof head, &at, path, err));
    if (memcmp(&head, want, sizeof head) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: of another run", path);
    FL_TRY(get(fd, h, fl_sweep_rows(s), (uint64_t)head.n_values * sizeof(float), &at, path, err));
    FL_TRY(get(fd, h, lost, (uint64_t)head.n_seqs, &at, path, err));
    FL_TRY(fl_file_read_at(fd, &hash, sizeof hash, at, path, err));
    if (hash == fl_hasher_value(h)) return FL_OK;
    return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is damaged", path);
}

/* FL_E_FORMAT, FL_E_IO: these rows cannot be had. */
static fl_status load_rows(const fl_importance_work *w, int layer, const rows_head *head,
                           fl_sweep *s, fl_err *err)
{
    const char *path = rows_of(w, layer);
    int fd = -1;
    fl_status st;
    fl_hasher *h = fl_hasher_create();
    uint8_t *lost = calloc((size_t)head->n_seqs + 1, 1);
    if (!h || !lost) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path));
    FL_GO(fl_file_open(path, &fd, NULL, err));
    FL_GO(read_rows(fd, h, head, s, lost, path, err));
    for (int64_t i = 0; i < head->n_seqs; i++)
        if (lost[i]) fl_sweep_lose(s, (int)i);
out:
    if (fd >= 0) close(fd);
    fl_hasher_destroy(&h);
    free(lost);
    return st;
}

fl_status fl_importance_work_resume(fl_importance_work *w, int n_layer, fl_sweep *s,
                                    const fl_sweep_text *text, int64_t d_model, int *layer,
                                    fl_err *err)
{
    const rows_head head = head_of(w, text, d_model);
    int whole = 0; /* layers whose files are there, from the first on */
    *layer = -1;
    while (whole < n_layer && access(fl_importance_work_layer(w, whole), F_OK) == 0) whole++;
    for (int i = whole - 1; i >= 0; i--) {
        fl_err own = {0};
        if (access(rows_of(w, i), F_OK) != 0) continue;
        const fl_status st = load_rows(w, i, &head, s, &own);
        if (st == FL_E_NOMEM) return FL_FAIL(err, st, 0, "%s", own.msg);
        if (st != FL_OK) continue; /* damaged: from earlier ones, or anew */
        *layer = i;
        return FL_OK;
    }
    return FL_OK;
}
