#include "offload/forecast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const lack_name[] = {"compute", "link", "file"};
enum { N_LACKS = sizeof lack_name / sizeof *lack_name };

const char *fl_predict_name(fl_predict_kind kind)
{
    static const char *const name[] = {"ar", "block", "spec", "prefill"};
    return name[kind];
}

fl_status fl_forecast_make(fl_forecast *f, const fl_plan *plan, const fl_plan_input *input,
                           fl_err *err)
{
    fl_predict(plan, &f->in, &f->now);
    f->n_vram = f->n_ram = 0;
    if (plan->n_total == 0) return FL_OK;
    FL_TRY(fl_predict_curve(input, false, &f->in, f->vram, &f->n_vram, err));
    return fl_predict_curve(input, true, &f->in, f->ram, &f->n_ram, err);
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

static uint64_t all_uses(const fl_predicted_pass *p)
{
    return p->uses_milli[FL_TIER_FILE] + p->uses_milli[FL_TIER_HOST] +
           p->uses_milli[FL_TIER_DEVICE];
}

static double share(const fl_predicted_pass *p, fl_tier tier)
{
    const uint64_t all = all_uses(p);
    return all ? (double)p->uses_milli[tier] / (double)all : 0.0;
}

static char *printed(void (*print)(FILE *out, const fl_forecast *f, const fl_plan *plan, int mode),
                     const fl_forecast *f, const fl_plan *plan, int mode)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out) return NULL;
    print(out, f, plan, mode);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

/* ---- for people ---- */

/* "12.3", or from 100 on "123". */
static void print_rate(FILE *out, uint64_t milli)
{
    fprintf(out, milli < 100000 ? "%.1f" : "%.0f", (double)milli / 1000.0);
}

static void print_speeds(FILE *out, const fl_prediction *p)
{
    const char *before = " ";
    for (int k = 0; k < FL_PREDICT_KINDS; k++) {
        if (!p->kind[k].tokens_per_s_milli) continue;
        fprintf(out, "%s%s ", before, fl_predict_name((fl_predict_kind)k));
        print_rate(out, p->kind[k].tokens_per_s_milli);
        before = ", ";
    }
}

static bool any_speed(const fl_prediction *p)
{
    for (int k = 0; k < FL_PREDICT_KINDS; k++)
        if (p->kind[k].tokens_per_s_milli) return true;
    return false;
}

static void print_line(FILE *out, const fl_forecast *f, const fl_plan *plan, int mode)
{
    const int file = plan->n_total - plan->n_resident - plan->n_host;
    (void)mode;
    fprintf(out, "plan: %d of %d experts on the device", plan->n_resident, plan->n_total);
    if (plan->n_host) fprintf(out, ", %d in host memory", plan->n_host);
    if (file) fprintf(out, ", %d in the file", file);
    fprintf(out, "; %.0f MiB of device memory, %.0f MiB of host memory", mib(plan->device_bytes),
            mib(plan->host_bytes));
    if (!any_speed(&f->now)) return;
    fprintf(out, "; expected tokens/s:");
    print_speeds(out, &f->now);
}

char *fl_forecast_line(const fl_forecast *f, const fl_plan *plan)
{
    return printed(print_line, f, plan, 0);
}

static void print_kind(FILE *out, const fl_forecast *f, int k)
{
    const fl_predicted_pass *p = &f->now.kind[k];
    const fl_predict_pass *pass = &f->in.pass[k];
    fprintf(out, "  %-8s", fl_predict_name((fl_predict_kind)k));
    if (p->tokens_per_s_milli)
        fprintf(out, " %8.1f", (double)p->tokens_per_s_milli / 1000.0);
    else
        fprintf(out, " %8s", "?");
    fprintf(out, " %9.2f%s %5d %7.1f %% %5.1f %% %5.1f %% %8.1f %8.1f",
            (double)pass->tokens_milli / 1000.0, f->counted[k] ? " " : "*", pass->rows,
            100.0 * share(p, FL_TIER_DEVICE), 100.0 * share(p, FL_TIER_HOST),
            100.0 * share(p, FL_TIER_FILE), mib(p->copy_bytes), mib(p->read_bytes));
    if (p->pass_ns)
        fprintf(out, " %9.1f %9.1f\n", (double)p->compute_ns * 1e-6, (double)p->pass_ns * 1e-6);
    else
        fprintf(out, " %9s %9s\n", "?", "?");
}

/* Budgets of host memory (`host`) or of the device. */
static void print_points(FILE *out, bool host, const fl_predict_point *at, int n, int total,
                         int mode)
{
    for (int i = 0; i < n; i++) {
        const uint64_t cap = host ? at[i].host_cap : at[i].device_cap;
        fprintf(out, "  %s %6" PRIu64 "M %6d of %d on the device", host ? "--ram " : "--vram",
                (cap >> 20) + ((cap & 0xfffff) != 0), at[i].n_resident, total);
        if (at[i].n_host) fprintf(out, ", %d in host memory", at[i].n_host);
        if (at[i].result.kind[mode].tokens_per_s_milli)
            fprintf(out, ", %s %.1f tokens/s", fl_predict_name((fl_predict_kind)mode),
                    (double)at[i].result.kind[mode].tokens_per_s_milli / 1000.0);
        else
            fprintf(out, ", %.1f %% of %s uses there",
                    100.0 * share(&at[i].result.kind[mode], FL_TIER_DEVICE),
                    fl_predict_name((fl_predict_kind)mode));
        fputc('\n', out);
    }
}

static void print_lacks(FILE *out, unsigned lacks)
{
    static const char *const what[] = {"what is computed", "copies to the device",
                                       "reads from the file"};
    const char *before = "  ?: not measured on this machine:";
    if (!lacks) return;
    for (int i = 0; i < N_LACKS; i++) {
        if (!(lacks & 1u << i)) continue;
        fprintf(out, "%s %s", before, what[i]);
        before = ",";
    }
    fprintf(out, "; fourleaf calibrate MODEL measures it\n");
}

static void print_table(FILE *out, const fl_forecast *f, const fl_plan *plan, int mode)
{
    bool published = false;
    fprintf(out, "Expected, per pass\n  %-8s %8s %10s %5s %9s %7s %7s %8s %8s %9s %9s\n", "mode",
            "tokens/s", "tokens ", "rows", "device", "host", "file", "copy MiB", "read MiB",
            "compute", "pass ms");
    for (int k = 0; k < FL_PREDICT_KINDS; k++) {
        if (!f->in.pass[k].rows) continue;
        print_kind(out, f, k);
        published |= !f->counted[k];
    }
    if (published)
        fprintf(out, "  *: as published for models of this kind; fourleaf calibrate MODEL counts "
                     "this one's\n");
    print_lacks(out, f->now.lacks);
    if (f->n_vram + f->n_ram) fprintf(out, "With more memory\n");
    print_points(out, false, f->vram, f->n_vram, plan->n_total, mode);
    print_points(out, true, f->ram, f->n_ram, plan->n_total, mode);
}

char *fl_forecast_text(const fl_forecast *f, const fl_plan *plan, fl_predict_kind mode)
{
    return printed(print_table, f, plan, mode);
}

/* ---- for programs ---- */

static void set_known(fl_json *o, const char *key, bool known, double v)
{
    fl_json_set(o, key, known ? fl_json_new_num(v) : fl_json_new_null());
}

static fl_json *kind_json(const fl_forecast *f, int k)
{
    const fl_predicted_pass *p = &f->now.kind[k];
    const fl_predict_pass *pass = &f->in.pass[k];
    fl_json *j = fl_json_new_object(), *hits = fl_json_new_object();
    set_known(j, "tokens_per_s", p->tokens_per_s_milli > 0, (double)p->tokens_per_s_milli / 1000.0);
    fl_json_set_num(j, "tokens_per_pass", (double)pass->tokens_milli / 1000.0);
    fl_json_set_int(j, "rows", pass->rows);
    fl_json_set_num(j, "distinct", (double)pass->distinct_milli / 1000.0);
    fl_json_set_str(j, "passes", f->counted[k] ? "counted" : "published");
    fl_json_set_num(hits, "device", share(p, FL_TIER_DEVICE));
    fl_json_set_num(hits, "host", share(p, FL_TIER_HOST));
    fl_json_set_num(hits, "file", share(p, FL_TIER_FILE));
    fl_json_set(j, "hits", hits);
    fl_json_set_int(j, "copy_bytes", (int64_t)p->copy_bytes);
    fl_json_set_int(j, "read_bytes", (int64_t)p->read_bytes);
    fl_json_set_int(j, "compute_ns", (int64_t)p->compute_ns);
    fl_json_set_int(j, "copy_ns", (int64_t)p->copy_ns);
    fl_json_set_int(j, "read_ns", (int64_t)p->read_ns);
    set_known(j, "pass_ns", p->pass_ns > 0, (double)p->pass_ns);
    return j;
}

static fl_json *points_json(const fl_forecast *f, const fl_predict_point *at, int n, bool host)
{
    fl_json *a = fl_json_new_array();
    for (int i = 0; i < n; i++) {
        fl_json *j = fl_json_new_object(), *rates = fl_json_new_object();
        fl_json_set_int(j, "bytes", (int64_t)(host ? at[i].host_cap : at[i].device_cap));
        fl_json_set_int(j, "resident", at[i].n_resident);
        fl_json_set_int(j, "host", at[i].n_host);
        for (int k = 0; k < FL_PREDICT_KINDS; k++) {
            const uint64_t rate = at[i].result.kind[k].tokens_per_s_milli;
            if (f->in.pass[k].rows)
                set_known(rates, fl_predict_name((fl_predict_kind)k), rate > 0,
                          (double)rate / 1000.0);
        }
        fl_json_set(j, "tokens_per_s", rates);
        fl_json_append(a, j);
    }
    return a;
}

fl_json *fl_forecast_json(const fl_forecast *f)
{
    fl_json *j = fl_json_new_object(), *modes = fl_json_new_object(), *lacks = fl_json_new_array();
    for (int k = 0; k < FL_PREDICT_KINDS; k++)
        if (f->in.pass[k].rows)
            fl_json_set(modes, fl_predict_name((fl_predict_kind)k), kind_json(f, k));
    for (int i = 0; i < N_LACKS; i++)
        if (f->now.lacks & 1u << i) fl_json_append(lacks, fl_json_new_str(lack_name[i]));
    fl_json_set(j, "modes", modes);
    fl_json_set(j, "lacks", lacks);
    fl_json_set(j, "vram", points_json(f, f->vram, f->n_vram, false));
    fl_json_set(j, "ram", points_json(f, f->ram, f->n_ram, true));
    return j;
}
