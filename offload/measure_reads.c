#include "offload/measure_reads.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/pages.h"
#include "runtime/base/samples.h"

enum { PAGE = 4096, MAX_DEPTH = 1 << (FL_READ_DEPTHS - 1) };

typedef struct reads_run {
    const fl_read_job *job;
    fl_read_rates *out;
    uint8_t *memory; /* MAX_DEPTH places of `stride` bytes */
    uint64_t stride;
    int next; /* extent: a sample goes on where the last one ended */
} reads_run;

static const fl_extent *extent_at(const reads_run *r, int i)
{
    return &r->job->extent[i % r->job->n_extents];
}

/* ---- a cold cache ---- */

static uint64_t warm_pages(const uint8_t *map, const fl_extent *x)
{
    unsigned char in[4096];
    const uint64_t end = (x->offset + x->bytes + PAGE - 1) / PAGE;
    uint64_t warm = 0;
    for (uint64_t at = x->offset / PAGE; at < end;) {
        const uint64_t n = end - at < sizeof in ? end - at : sizeof in;
        if (mincore((void *)(uintptr_t)(map + at * PAGE), n * PAGE, in) != 0) return end;
        for (uint64_t i = 0; i < n; i++) warm += in[i] & 1;
        at += n;
    }
    return warm;
}

/* Drops a file's pages and counts those of the extents that stayed: dirty ones do, as do those
 * that somebody else has mapped. Where the kernel does not tell (another user's file) all count. */
static fl_status drop_file(const reads_run *r, int file, uint64_t *warm, uint64_t *pages,
                           fl_err *err)
{
    int fd;
    uint64_t size;
    FL_TRY(fl_file_open(r->job->paths[file], &fd, &size, err));
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    uint8_t *map = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    for (int i = 0; i < r->job->n_extents; i++) {
        const fl_extent *x = &r->job->extent[i];
        if (x->file != file) continue;
        *pages += x->bytes / PAGE + 1;
        *warm += map == MAP_FAILED || x->offset + x->bytes > size ? x->bytes / PAGE + 1
                                                                  : warm_pages(map, x);
    }
    if (map != MAP_FAILED) munmap(map, size);
    return FL_OK;
}

static fl_status drop_cache(const reads_run *r, bool *cold, fl_err *err)
{
    uint64_t warm = 0, pages = 0;
    for (int i = 0; i < r->job->n_paths; i++) FL_TRY(drop_file(r, i, &warm, &pages, err));
    *cold = warm * 100 <= pages;
    return FL_OK;
}

/* ---- one sample ---- */

static fl_status read_some(reads_run *r, fl_io *io, int depth, uint64_t *bytes, fl_err *err)
{
    const uint64_t end_ns = fl_clock_ns() + (uint64_t)r->job->sample_ms * 1000000u;
    int sent = 0;
    for (int done = 0; done == 0 || fl_io_in_flight(io) > 0;) {
        fl_io_done d;
        int n = 0, place = sent;
        if (sent >= depth || sent == r->job->n_extents) {
            FL_TRY(fl_io_wait(io, &d, 1, 1, &n, err));
            done++;
            place = (int)d.tag;
        }
        /* Even the slowest drive reads as many as may be in flight. */
        if (sent == r->job->n_extents || (sent >= depth && fl_clock_ns() > end_ns)) continue;
        const fl_extent *x = extent_at(r, r->next);
        FL_TRY(fl_io_submit(io, x, r->memory + (uint64_t)place * r->stride, (uint64_t)place, err));
        *bytes += x->bytes;
        r->next = (r->next + 1) % r->job->n_extents;
        sent++;
    }
    return FL_OK;
}

static void keep_note(fl_read_rates *out, const char *text)
{
    if (text && out->note[0] == '\0') snprintf(out->note, sizeof out->note, "%s", text);
}

static fl_status sample(reads_run *r, const char *backend, int depth, uint64_t *bytes_s,
                        fl_err *err)
{
    fl_io *io = NULL;
    uint64_t bytes = 0;
    FL_TRY(fl_io_open(&io, backend, r->job->paths, r->job->n_paths, depth, err));
    if (!backend || strcmp(backend, "buffered") != 0) {
        snprintf(r->out->backend, sizeof r->out->backend, "%s", fl_io_backend(io));
        keep_note(r->out, fl_io_fallback(io));
    }
    fl_io_register(io, r->memory, (uint64_t)depth * r->stride);
    const uint64_t start = fl_clock_ns();
    const fl_status st = read_some(r, io, depth, &bytes, err);
    *bytes_s = fl_rate_per_s(bytes, fl_clock_ns() - start);
    fl_io_close(&io);
    return st;
}

static fl_status sample_depth(reads_run *r, int i, fl_err *err)
{
    fl_read_sample *s = &r->out->sample[i];
    bool cold = false;
    s->depth = 1 << i;
    if (r->job->progress) {
        char part[64];
        snprintf(part, sizeof part, "reads of the file, %d at once", s->depth);
        r->job->progress(r->job->arg, part);
    }
    FL_TRY(drop_cache(r, &cold, err));
    FL_TRY(sample(r, r->job->backend, s->depth, &s->direct_bytes_s, err));
    FL_TRY(drop_cache(r, &cold, err));
    if (cold) return sample(r, "buffered", s->depth, &s->buffered_bytes_s, err);
    keep_note(r->out, "parts of the file stay in the page cache: reads through it not measured");
    return FL_OK;
}

/* ---- all of them ---- */

static uint64_t rate_of(const fl_read_sample *s, bool buffered)
{
    return buffered ? s->buffered_bytes_s : s->direct_bytes_s;
}

static void pick(const fl_read_rates *r, bool buffered, int *depth, uint64_t *bytes_s)
{
    uint64_t best = 0;
    for (int i = 0; i < FL_READ_DEPTHS; i++)
        if (rate_of(&r->sample[i], buffered) > best) best = rate_of(&r->sample[i], buffered);
    *depth = 0;
    *bytes_s = 0;
    for (int i = 0; i < FL_READ_DEPTHS && *depth == 0; i++) {
        const uint64_t rate = rate_of(&r->sample[i], buffered);
        if (rate == 0 || rate < best / 100 * 97) continue;
        *depth = r->sample[i].depth;
        *bytes_s = rate;
    }
}

void fl_reads_choose(fl_read_rates *r)
{
    pick(r, false, &r->depth, &r->bytes_s);
    pick(r, true, &r->buffered_depth, &r->buffered_bytes_s);
    r->buffered_wins = r->buffered_bytes_s / 103 > r->bytes_s / 100;
}

fl_status fl_reads_measure(const fl_read_job *job, fl_read_rates *out, fl_err *err)
{
    fl_status st = FL_OK;
    reads_run r = {.job = job, .out = out};
    uint64_t largest = 0;
    *out = (fl_read_rates){0};
    for (int i = 0; i < job->n_extents; i++)
        if (job->extent[i].bytes > largest) largest = job->extent[i].bytes;
    r.stride = (largest + 3 * PAGE) / PAGE * PAGE;
    r.memory = fl_pages_take(MAX_DEPTH * r.stride);
    if (!r.memory) return FL_FAIL(err, FL_E_NOMEM, 0, "measuring reads: out of memory");
    memset(r.memory, 0, MAX_DEPTH * r.stride);
    for (int i = 0; i < FL_READ_DEPTHS; i++) FL_GO(sample_depth(&r, i, err));
    fl_reads_choose(out);
out:
    fl_pages_give(r.memory, MAX_DEPTH * r.stride);
    return st;
}
