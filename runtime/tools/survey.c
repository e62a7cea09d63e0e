#include "runtime/tools/survey.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/limits.h"
#include "runtime/model/costs.h"
#include "runtime/model/source.h"

enum { SAMPLE_MS = 120 };                               /* of reads */
static const uint64_t HOST_BYTES = UINT64_C(256) << 20; /* more than caches hold */

static void tell(const fl_survey_watch *w, const char *part)
{
    if (w->progress) w->progress(w->arg, part);
}

/* ---- memory that can be pinned ---- */

fl_status fl_survey_pin(fl_survey *s, const char *model, const fl_survey_watch *w, fl_err *err)
{
    fl_source *src = NULL;
    fl_limits limits;
    *s = (fl_survey){0};
    tell(w, "memory that can be pinned");
    FL_TRY(fl_source_open(&src, model, err));
    for (int i = 0; i < fl_source_n_files(src); i++) s->pin_wanted += fl_source_file_bytes(src, i);
    fl_source_close(&src);
    fl_limits_read(&limits, NULL);
    const uint64_t most = fl_limits_pinnable(&limits) / 5 * 4;
    if (most < s->pin_wanted) s->pin_wanted = most;
    const fl_pin_probe probe = {.want = s->pin_wanted & ~UINT64_C(4095)};
    return fl_pin_probe_run(&probe, &s->pinned, err);
}

/* ---- links and reads ---- */

/* All extents of all routed experts, shuffled: a sample should not depend on where in the file it
 * is taken. NULL: out of memory. */
static fl_extent *list_extents(const fl_engine *e, int *n)
{
    const fl_experts *x = &e->experts;
    fl_extent *list = malloc(((size_t)x->n * FL_EXPERT_PARTS + 1) * sizeof *list);
    uint64_t random = 1;
    *n = 0;
    for (int i = 0; list && i < x->n; i++)
        for (int part = 0; part < FL_EXPERT_PARTS; part++)
            if (x->place[i].part[part].bytes > 0) list[(*n)++] = x->place[i].part[part];
    for (int i = *n - 1; i > 0; i--) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int j = (int)((random >> 33) % (uint64_t)(i + 1));
        const fl_extent swap = list[i];
        list[i] = list[j];
        list[j] = swap;
    }
    return list;
}

static fl_status measure_reads(fl_survey *s, const fl_engine *e, const fl_survey_watch *w,
                               fl_err *err)
{
    const fl_source *src = e->model->index->src;
    int n = 0;
    fl_status st = FL_OK;
    fl_extent *list = list_extents(e, &n);
    const fl_read_job job = {.paths = fl_source_paths(src),
                             .n_paths = fl_source_n_files(src),
                             .backend = e->params.io,
                             .extent = list,
                             .n_extents = n,
                             .sample_ms = SAMPLE_MS,
                             .progress = w->progress,
                             .arg = w->arg};
    if (!list) return FL_FAIL(err, FL_E_NOMEM, 0, "measuring reads: out of memory");
    if (n > 0) st = fl_reads_measure(&job, &s->reads, err);
    free(list);
    return st;
}

fl_status fl_survey_moves(fl_survey *s, fl_engine *e, const fl_survey_watch *w, fl_err *err)
{
    tell(w, "copies to the device");
    FL_TRY(fl_link_measure(e->dev, &s->link, err));
    FL_TRY(measure_reads(s, e, w, err));
    const fl_read_rates *r = &s->reads;
    s->rates.link_bytes_s = s->link.bytes_s;
    s->rates.link_pageable_bytes_s = s->link.pageable_bytes_s;
    s->rates.link_start_ns = s->link.start_ns;
    s->rates.file_bytes_s = r->buffered_wins ? r->buffered_bytes_s : r->bytes_s;
    return FL_OK;
}

/* ---- computing ---- */

/* 1, 2, 4, ... 64, 512, as far as a pass can have them; then the most that it can. */
static void list_rows(fl_rates *r, int most)
{
    static const int rows[FL_RATES_MAX_ROWS] = {1, 2, 4, 8, 16, 32, 64, 512};
    r->n_rows = 0;
    for (int i = 0; i < FL_RATES_MAX_ROWS; i++) {
        const int n = rows[i] < most ? rows[i] : most;
        if (r->n_rows == 0 || n > r->rows[r->n_rows - 1]) r->rows[r->n_rows++] = n;
    }
}

static fl_status measure_rows(fl_survey *s, fl_costs *c, fl_pool *pool, const fl_survey_watch *w,
                              fl_err *err)
{
    char part[64];
    fl_rates *r = &s->rates;
    list_rows(r, fl_costs_max_rows(c));
    for (int i = 0; i < r->n_rows; i++) {
        snprintf(part, sizeof part, "experts and passes of %d row%s", r->rows[i],
                 r->rows[i] == 1 ? "" : "s");
        tell(w, part);
        FL_TRY(fl_costs_expert(c, pool, r->rows[i], &r->cpu_expert_ns[i], err));
        FL_TRY(fl_costs_dense(c, r->rows[i], &r->dense_pass_ns[i], err));
    }
    return FL_OK;
}

static fl_status measure_pool(fl_survey *s, fl_costs *c, fl_pool *pool, fl_err *err)
{
    const int at = s->n_threads++;
    s->threads[at] = fl_pool_threads(pool);
    for (int i = 0; i < FL_SURVEY_THREAD_ROWS; i++)
        FL_TRY(fl_costs_expert(c, pool, s->thread_rows[i], &s->expert_ns[at][i], err));
    return FL_OK;
}

static fl_status measure_threads(fl_survey *s, fl_costs *c, fl_pool *all, const fl_survey_watch *w,
                                 fl_err *err)
{
    const int most = fl_costs_max_rows(c);
    tell(w, "experts on fewer threads");
    s->thread_rows[0] = 1;
    s->thread_rows[1] = most < 32 ? most : 32;
    for (int n = 1; n < fl_pool_threads(all); n *= 2) {
        fl_pool *pool = NULL;
        FL_TRY(fl_pool_create(&pool, n, err));
        const fl_status st = measure_pool(s, c, pool, err);
        fl_pool_destroy(&pool);
        FL_TRY(st);
    }
    return measure_pool(s, c, all, err);
}

fl_status fl_survey_computes(fl_survey *s, fl_engine *e, const fl_survey_watch *w, fl_err *err)
{
    fl_costs *c = NULL;
    fl_pool *pool = e->exec.pool;
    const uint64_t experts = e->plan.expert_bytes,
                   host = experts < HOST_BYTES ? experts : HOST_BYTES;
    fl_status st = FL_OK;
    tell(w, "memory");
    if (host > 0) FL_TRY(fl_costs_host(pool, host, &s->rates.host_bytes_s, err));
    FL_GO(fl_costs_open(&c, e, err));
    FL_GO(fl_costs_device(c, &s->rates.device_bytes_s, err));
    FL_GO(measure_rows(s, c, pool, w, err));
    st = measure_threads(s, c, pool, w, err);
out:
    fl_costs_close(&c);
    return st;
}

int fl_survey_better_threads(const fl_survey *s)
{
    const int all = s->n_threads - 1;
    int best = 0;
    uint64_t least = 0;
    for (int row = FL_SURVEY_THREAD_ROWS - 1; row >= 0 && best == 0; row--) {
        least = s->n_threads > 0 ? s->expert_ns[all][row] / 100 * 95 : 0;
        for (int i = 0; i < all; i++)
            if (s->expert_ns[i][row] > 0 && s->expert_ns[i][row] < least) {
                least = s->expert_ns[i][row];
                best = s->threads[i];
            }
    }
    return best;
}
