#include "runtime/tools/importance_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/base/options.h"
#include "runtime/tools/importance_parts.h"

enum { LISTED = 12 /* experts of a layer in one line */ };

/* ---- experts that saw few rows ---- */

static void say_few(int layer, const float *rows, int64_t n, double enough, int few)
{
    int shown = 0;
    if (few == 0) return;
    fprintf(stderr,
            "note: layer %d: %d of %lld experts saw fewer than %.0f rows and lean on their layer: ",
            layer, few, (long long)n, enough);
    for (int64_t e = 0; e < n && shown < LISTED; e++)
        if ((double)rows[e] < enough)
            fprintf(stderr, "%s%lld (%.0f)", shown++ ? ", " : "", (long long)e, (double)rows[e]);
    fprintf(stderr, few > shown ? " and %d more\n" : "\n", few - shown);
}

static fl_json *few_json(int layer, const float *rows, int64_t n, double enough)
{
    fl_json *o = fl_json_new_object(), *list = fl_json_new_array();
    fl_json_set_int(o, "layer", layer);
    fl_json_set_num(o, "enough", enough);
    for (int64_t e = 0; e < n; e++) {
        if ((double)rows[e] >= enough) continue;
        fl_json *one = fl_json_new_array();
        fl_json_append(one, fl_json_new_int(e));
        fl_json_append(one, fl_json_new_int((int64_t)rows[e]));
        fl_json_append(list, one);
    }
    fl_json_set(o, "experts", list);
    return o;
}

/* `out`: an array to fill, or NULL: on standard error. */
static fl_status report_few(const fl_importance *im, fl_json *out, fl_err *err)
{
    for (int layer = 0;; layer++) {
        int64_t n = 0;
        float *rows = NULL;
        double enough = 0.0;
        int few = 0;
        FL_TRY(fl_importance_experts(im, layer, &n, &rows, &enough, err));
        if (n == 0) return FL_OK;
        for (int64_t e = 0; e < n; e++) few += (double)rows[e] < enough;
        if (out && few > 0)
            fl_json_append(out, few_json(layer, rows, n, enough));
        else if (!out)
            say_few(layer, rows, n, enough, few);
        free(rows);
    }
}

/* ---- rows of zeros, rows that are not finite ---- */

static void say_odd(const char *site, int length, const float *odd, fl_json *out)
{
    if (!out) {
        fprintf(stderr,
                "note: %.*s: %.0f rows of zeros, %.0f rows that are not finite (left out)\n",
                length, site, (double)odd[0], (double)odd[1]);
        return;
    }
    fl_json *o = fl_json_new_object();
    fl_json_set(o, "site", fl_json_new_strn(site, (size_t)length));
    fl_json_set_int(o, "zero", (int64_t)odd[0]);
    fl_json_set_int(o, "not_finite", (int64_t)odd[1]);
    fl_json_append(out, o);
}

static fl_status report_odd(const fl_importance *im, fl_json *out, fl_err *err)
{
    for (size_t i = 0; i < fl_source_n_tensors(im->src); i++) {
        const fl_tensor *t = fl_source_tensor(im->src, i);
        const char *part = strrchr(t->name, '.');
        float odd[2];
        if (!part || strcmp(part, ".odd") != 0) continue;
        FL_TRY(fl_importance_read(im, t, 0, 2, odd, err));
        if (odd[0] > 0.0f || odd[1] > 0.0f) say_odd(t->name, (int)(part - t->name), odd, out);
    }
    return FL_OK;
}

/* ---- all of it ---- */

static void say_file(const fl_importance *im, const fl_importance_result *r)
{
    char size[32];
    fprintf(stderr, "%s: %.0f tokens, %.0f rows of block passes, %s, verified\n", im->path,
            im->info.tokens, im->info.block_rows,
            fl_size_format(size, fl_source_file_bytes(im->src, 0)));
    if (!r) return;
    if (r->first_layer > 0) fprintf(stderr, "note: gone on at layer %d\n", r->first_layer);
    if (r->n_lost > 0)
        fprintf(stderr,
                "note: %d of %d windows gave NaN or infinity and were left out from there on\n",
                r->n_lost, r->n_windows);
}

static fl_status print_json(const fl_importance *im, const fl_importance_result *r, fl_err *err)
{
    fl_json *o = fl_json_new_object(), *few = fl_json_new_array(), *odd = fl_json_new_array();
    fl_json_set_str(o, "file", im->path);
    fl_json_set_int(o, "bytes", (int64_t)fl_source_file_bytes(im->src, 0));
    fl_json_set_int(o, "tokens", (int64_t)im->info.tokens);
    fl_json_set_int(o, "block_rows", (int64_t)im->info.block_rows);
    if (r) {
        fl_json_set_int(o, "windows", r->n_windows);
        fl_json_set_int(o, "windows_lost", r->n_lost);
        fl_json_set_int(o, "first_layer", r->first_layer);
        fl_json_set_int(o, "weights_read", (int64_t)r->bytes_read);
    }
    fl_status st = report_few(im, few, err);
    if (st == FL_OK) st = report_odd(im, odd, err);
    fl_json_set(o, "few_rows", few);
    fl_json_set(o, "odd_rows", odd);
    char *text = st == FL_OK ? fl_json_dump(o, 0) : NULL;
    fl_json_free(&o);
    if (st == FL_OK && !text) st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", im->path);
    if (text) puts(text);
    free(text);
    return st;
}

fl_status fl_importance_report(const char *path, const fl_importance_result *r, bool json,
                               fl_err *err)
{
    fl_importance *im = NULL;
    FL_TRY(fl_importance_open(&im, path, err));
    fl_status st;
    if (json) {
        st = print_json(im, r, err);
    } else {
        say_file(im, r);
        st = report_few(im, NULL, err);
        if (st == FL_OK) st = report_odd(im, NULL, err);
    }
    fl_importance_close(&im);
    return st;
}
