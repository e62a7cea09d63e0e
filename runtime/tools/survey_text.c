#include "runtime/tools/survey_text.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/options.h"

static double gb(uint64_t bytes_s) { return (double)bytes_s * 1e-9; }

/* ---- text ---- */

static void print_link(const fl_survey *s)
{
    const fl_link_rates *l = &s->link;
    if (l->n == 0) return;
    printf("  copies to the device  %8.2f GB/s from %s", gb(l->bytes_s),
           l->pinned ? "pinned memory" : "memory that could not be pinned");
    if (l->pinned) printf(", %.2f GB/s from pageable", gb(l->pageable_bytes_s));
    printf("; %.1f us to begin one\n", (double)l->start_ns * 1e-3);
}

static void print_reads(const fl_survey *s)
{
    const fl_read_rates *r = &s->reads;
    if (r->depth == 0) return;
    printf("  reads of experts      %8.2f GB/s by %s, %d at once", gb(r->bytes_s), r->backend,
           r->depth);
    if (r->buffered_depth > 0)
        printf("; %.2f GB/s through a cold page cache, %d at once%s", gb(r->buffered_bytes_s),
               r->buffered_depth, r->buffered_wins ? ": kept" : "");
    putchar('\n');
    if (r->note[0]) printf("    %s\n", r->note);
}

static const char *pin_end(const fl_pinnable *p)
{
    switch (p->end) {
    case FL_PIN_ALL: return "all that was tried";
    case FL_PIN_REFUSED: return strerror(p->sys);
    case FL_PIN_STALLED: return "no more within the time limit";
    case FL_PIN_KILLED: return "the kernel ended the try: out of memory";
    }
    return "";
}

static void print_pinned(const fl_survey *s)
{
    char size[32], want[32];
    printf("  memory that pins      %s of %s (%s)\n", fl_size_format(size, s->pinned.bytes),
           fl_size_format(want, s->pin_wanted), pin_end(&s->pinned));
}

static void print_rows(const fl_survey *s)
{
    const fl_rates *r = &s->rates;
    printf("  by rows             ");
    for (int i = 0; i < r->n_rows; i++) printf(" %9d", r->rows[i]);
    printf("\n    an expert, us     ");
    for (int i = 0; i < r->n_rows; i++) printf(" %9.1f", (double)r->cpu_expert_ns[i] * 1e-3);
    printf("\n    rest of a pass, us");
    for (int i = 0; i < r->n_rows; i++) printf(" %9.0f", (double)r->dense_pass_ns[i] * 1e-3);
    putchar('\n');
}

static void print_threads(const fl_survey *s)
{
    for (int row = 0; s->n_threads > 1 && row < FL_SURVEY_THREAD_ROWS; row++) {
        printf("  an expert of %d row%s on", s->thread_rows[row],
               s->thread_rows[row] == 1 ? "" : "s");
        for (int i = 0; i < s->n_threads; i++)
            printf("%s %d: %.1f us", i ? "," : "", s->threads[i],
                   (double)s->expert_ns[i][row] * 1e-3);
        printf(" (threads)\n");
    }
    const int better = fl_survey_better_threads(s);
    if (better > 0) printf("  --threads %d is faster here\n", better);
}

void fl_survey_print(const fl_survey *s)
{
    print_link(s);
    print_reads(s);
    print_pinned(s);
    printf("  device memory         %8.2f GB/s in products, host memory %.2f GB/s read by %d "
           "threads\n",
           gb(s->rates.device_bytes_s), gb(s->rates.host_bytes_s),
           s->n_threads > 0 ? s->threads[s->n_threads - 1] : 0);
    print_rows(s);
    print_threads(s);
}

/* ---- JSON ---- */

static fl_json *link_json(const fl_link_rates *l)
{
    fl_json *a = fl_json_new_array();
    for (int i = 0; i < l->n; i++) {
        fl_json *j = fl_json_new_object();
        fl_json_set_int(j, "bytes", (int64_t)l->sample[i].bytes);
        fl_json_set_int(j, "pinned_bytes_s", (int64_t)l->sample[i].pinned_bytes_s);
        fl_json_set_int(j, "pageable_bytes_s", (int64_t)l->sample[i].pageable_bytes_s);
        fl_json_append(a, j);
    }
    return a;
}

static fl_json *threads_json(const fl_survey *s)
{
    fl_json *a = fl_json_new_array();
    for (int i = 0; i < s->n_threads; i++)
        for (int row = 0; row < FL_SURVEY_THREAD_ROWS; row++) {
            fl_json *j = fl_json_new_object();
            fl_json_set_int(j, "threads", s->threads[i]);
            fl_json_set_int(j, "rows", s->thread_rows[row]);
            fl_json_set_int(j, "expert_ns", (int64_t)s->expert_ns[i][row]);
            fl_json_append(a, j);
        }
    return a;
}

fl_json *fl_survey_entry(const fl_survey *s)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_str(j, "version", fl_version);
    fl_json_set(j, "rates", fl_rates_to_json(&s->rates));
    fl_json_set(j, "link", link_json(&s->link));
    fl_json_set(j, "threads", threads_json(s));
    return j;
}

static fl_json *reads_json(const fl_read_rates *r)
{
    fl_json *j = fl_json_new_object(), *samples = fl_json_new_array();
    fl_json_set_str(j, "keep", r->buffered_wins ? "buffered" : "direct");
    fl_json_set_str(j, "backend", r->backend);
    fl_json_set_int(j, "depth", r->depth);
    fl_json_set_int(j, "direct_bytes_s", (int64_t)r->bytes_s);
    fl_json_set_int(j, "buffered_depth", r->buffered_depth);
    fl_json_set_int(j, "buffered_bytes_s", (int64_t)r->buffered_bytes_s);
    if (r->note[0]) fl_json_set_str(j, "note", r->note);
    for (int i = 0; i < FL_READ_DEPTHS; i++) {
        fl_json *x = fl_json_new_object();
        fl_json_set_int(x, "depth", r->sample[i].depth);
        fl_json_set_int(x, "direct_bytes_s", (int64_t)r->sample[i].direct_bytes_s);
        fl_json_set_int(x, "buffered_bytes_s", (int64_t)r->sample[i].buffered_bytes_s);
        fl_json_append(samples, x);
    }
    fl_json_set(j, "samples", samples);
    return j;
}

fl_json *fl_survey_parts(const fl_survey *s)
{
    fl_json *j = fl_json_new_object(), *pinned = fl_json_new_object();
    fl_json_set_int(pinned, "bytes", (int64_t)s->pinned.bytes);
    fl_json_set_int(pinned, "wanted_bytes", (int64_t)s->pin_wanted);
    fl_json_set_str(pinned, "end", pin_end(&s->pinned));
    fl_json_set(j, "reads", reads_json(&s->reads));
    fl_json_set(j, "pinned", pinned);
    return j;
}
