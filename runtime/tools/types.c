#include "runtime/tools/types.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/json.h"
#include "runtime/tools/conversion_meta.h"
#include "runtime/tools/guides.h"
#include "runtime/tools/size.h"

/* The quantized types of the source's tensors that are rounded again, as "q4_k, q6_k". */
static void types_again(const fl_conv *c, char *text, size_t room)
{
    bool seen[FL_TYPE_LIMIT] = {false};
    size_t n = 0;
    for (int i = 0; i < c->n; i++) {
        const fl_conv_tensor *t = &c->tensor[i];
        const uint32_t type = t->many ? t->many[0]->type : t->one->type;
        if (!t->again || seen[type] || n >= room) continue;
        seen[type] = true;
        n += (size_t)snprintf(text + n, room - n, "%s%s", n ? ", " : "", fl_type_get(type)->name);
    }
}

static void say_again(const fl_conv *c, fl_text *notes)
{
    char types[128] = "", line[512];
    if (c->n_copied > 0) {
        snprintf(line, sizeof line, "%d quantized tensors are copied bit for bit\n", c->n_copied);
        fl_text_puts(notes, line);
    }
    if (c->n_again == 0) return;
    types_again(c, types, sizeof types);
    snprintf(line, sizeof line,
             "warning: %d tensors (%s) are rounded a second time: the errors of the first rounding "
             "stay and those of the second are added, so the file is worse than one of this size "
             "made from the F32, F16 or BF16 weights\n",
             c->n_again, types);
    fl_text_puts(notes, line);
}

static fl_status apply(fl_conv *c, const fl_index *ix, const fl_options *o, bool *done,
                       fl_text *notes, fl_err *err)
{
    fl_recipe r = {0};
    fl_status st = FL_OK;
    if (o->recipe) {
        FL_GO(fl_recipe_open(&r, o->recipe, ix, err));
        FL_GO(fl_recipe_apply(&r, c, done, notes, err));
        fl_recipe_fini(&r);
    }
    if (o->size) return FL_OK;
    FL_GO(fl_recipe_of_type(&r, o->type ? o->type : "q4_k", ix, err));
    FL_GO(fl_recipe_apply(&r, c, done, notes, err));
out:
    fl_recipe_fini(&r);
    return st;
}

/* ---- --size ---- */

/* Bytes of the whole output with the types that the tensors have. */
static fl_status output_bytes(const fl_conv *c, const fl_index *ix, const fl_options *o,
                              const char *arch, uint64_t *bytes, fl_err *err)
{
    fl_gguf_writer *w = NULL;
    fl_status st;
    FL_GO(fl_gguf_writer_create(&w, o->args[1], 0, err));
    FL_GO(fl_conv_declare(w, c, ix, arch, err));
    fl_gguf_writer_keep(w);
    fl_gguf_writer_split(w, o->split_size);
    FL_GO(fl_gguf_writer_layout(w, err));
    *bytes = fl_gguf_writer_bytes(w);
out:
    fl_gguf_writer_discard(&w);
    return st;
}

static fl_status too_small(const fl_options *o, uint64_t floor, fl_err *err)
{
    char want[32], least[32];
    return FL_FAIL(err, FL_E_ARG, 0,
                   "--size %s (%llu bytes): the least that is possible is %s (%llu bytes), with "
                   "every tensor at its smallest type",
                   fl_size_format(want, o->size), (unsigned long long)o->size,
                   fl_size_format(least, floor), (unsigned long long)floor);
}

/* Bytes beside the tensors' own depend a little on the types where the output is split: what was
 * too much is taken off and the choice is made again. */
static fl_status fit(const fl_size *s, fl_conv *c, const fl_index *ix, const fl_options *o,
                     const char *arch, fl_text *notes, fl_err *err)
{
    uint64_t bytes, tensors = fl_size_floor(s);
    double loss;
    char line[256], size[32];
    FL_TRY(fl_size_choose(s, tensors, &loss, err));
    FL_TRY(output_bytes(c, ix, o, arch, &bytes, err));
    if (bytes > o->size) return too_small(o, bytes, err);
    uint64_t beside = bytes - tensors;
    for (;; beside += bytes - o->size) {
        if (o->size < beside + fl_size_floor(s)) return too_small(o, beside + tensors, err);
        FL_TRY(fl_size_choose(s, o->size - beside, &loss, err));
        FL_TRY(output_bytes(c, ix, o, arch, &bytes, err));
        if (bytes <= o->size) break;
    }
    snprintf(line, sizeof line, "%s (%llu bytes), %.2f %% of --size; expected loss %.3g nats\n",
             fl_size_format(size, bytes), (unsigned long long)bytes,
             100.0 * (double)bytes / (double)o->size, loss);
    fl_text_puts(notes, line);
    if (bytes - beside >= fl_size_ceiling(s))
        fl_text_puts(notes, "everything is at the largest type that --size gives (q8_0); for more "
                            "take --type bf16\n");
    return FL_OK;
}

static fl_status choose_by_size(fl_conv *c, const fl_index *ix, const fl_options *o,
                                const char *arch, const bool *done, fl_text *notes, fl_err *err)
{
    fl_sensitivity known = {0};
    fl_guides *guides = NULL;
    fl_pool *pool = NULL;
    fl_size *s = NULL;
    fl_stream_guides stream;
    fl_status st;
    if (o->sensitivity)
        FL_GO(fl_sensitivity_load(&known, o->sensitivity, err));
    else
        fl_text_puts(notes, "--size without --sensitivity FILE: tensors count as those of their "
                            "kind do in clover-tiny\n");
    if (o->importance) {
        FL_GO(fl_guides_open(&guides, o->importance, c, err));
        stream = fl_guides_stream(guides);
    }
    FL_GO(fl_pool_create(&pool, o->threads, err));
    FL_GO(fl_size_create(&s, c, done, &known, guides ? &stream : NULL, pool, err));
    st = fit(s, c, ix, o, arch, notes, err);
out:
    fl_size_destroy(&s);
    fl_pool_destroy(&pool);
    fl_guides_close(&guides);
    fl_sensitivity_fini(&known);
    return st;
}

fl_status fl_types_choose(fl_conv *c, const fl_index *ix, const fl_options *o, const char *arch,
                          char **notes, fl_err *err)
{
    fl_text text = {0};
    fl_status st;
    *notes = NULL;
    bool *done = calloc((size_t)c->n + 1, sizeof *done);
    if (!done) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %d tensors", c->n);
    FL_GO(apply(c, ix, o, done, &text, err));
    if (o->size) FL_GO(choose_by_size(c, ix, o, arch, done, &text, err));
    FL_GO(fl_conv_settle(c, o->requantize, err));
    say_again(c, &text);
    st = fl_text_take(&text, "notes", notes, NULL, err);
out:
    fl_text_fini(&text);
    free(done);
    return st;
}

/* ---- the table ---- */

typedef struct line {
    int tensors;
    uint64_t weights, bytes;
} line;

static void add(line *l, const fl_conv_tensor *t)
{
    l->tensors++;
    l->weights += (uint64_t)(t->rows * t->cols);
    l->bytes += fl_conv_bytes(t, t->type);
}

static double bits(const line *l)
{
    return l->weights ? 8.0 * (double)l->bytes / (double)l->weights : 0;
}

static void print_line(const char *name, const char *type, const line *l)
{
    char size[32];
    printf("  %-18s %-7s %5d tensors %15llu weights %12s %7.3f bits\n", name, type, l->tensors,
           (unsigned long long)l->weights, fl_size_format(size, l->bytes), bits(l));
}

static fl_json *line_json(const line *l)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "tensors", l->tensors);
    fl_json_set_int(j, "weights", (int64_t)l->weights);
    fl_json_set_int(j, "bytes", (int64_t)l->bytes);
    fl_json_set_num(j, "bits_per_weight", bits(l));
    return j;
}

static line line_of(const fl_conv *c, int class, uint32_t type)
{
    line l = {0};
    for (int i = 0; i < c->n; i++)
        if ((int)c->tensor[i].class == class && c->tensor[i].type == type) add(&l, &c->tensor[i]);
    return l;
}

static fl_json *tensors_json(const fl_conv *c)
{
    fl_json *list = fl_json_new_array();
    for (int i = 0; i < c->n; i++) {
        const fl_conv_tensor *t = &c->tensor[i];
        fl_json *j = fl_json_new_object();
        fl_json_set_str(j, "name", t->name);
        fl_json_set_str(j, "type", fl_type_get(t->type)->name);
        fl_json_set_int(j, "bytes", (int64_t)fl_conv_bytes(t, t->type));
        if (t->copied) fl_json_set_bool(j, "copied", true);
        if (t->again) fl_json_set_bool(j, "again", true);
        fl_json_append(list, j);
    }
    return list;
}

static fl_status print_json(const fl_conv *c, const line *all, uint64_t bytes, fl_err *err)
{
    fl_json *j = line_json(all), *list = fl_json_new_array();
    for (int k = 0; k < FL_CONV_CLASSES; k++)
        for (uint32_t type = 0; type < FL_TYPE_LIMIT; type++) {
            const line l = line_of(c, k, type);
            if (l.tensors == 0) continue;
            fl_json *one = line_json(&l);
            fl_json_set_str(one, "class", fl_conv_class_name[k]);
            fl_json_set_str(one, "type", fl_type_get(type)->name);
            fl_json_append(list, one);
        }
    fl_json_set_int(j, "file_bytes", (int64_t)bytes);
    fl_json_set(j, "classes", list);
    fl_json_set(j, "list", tensors_json(c));
    char *text = fl_json_dump(j, 1);
    fl_json_free(&j);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "quantize: out of memory");
    puts(text);
    free(text);
    return FL_OK;
}

fl_status fl_types_report(const fl_conv *c, uint64_t bytes, bool json, fl_err *err)
{
    line all = {0};
    char size[32];
    for (int i = 0; i < c->n; i++) add(&all, &c->tensor[i]);
    if (json) return print_json(c, &all, bytes, err);
    for (int k = 0; k < FL_CONV_CLASSES; k++)
        for (uint32_t type = 0; type < FL_TYPE_LIMIT; type++) {
            const line l = line_of(c, k, type);
            if (l.tensors > 0) print_line(fl_conv_class_name[k], fl_type_get(type)->name, &l);
        }
    print_line("all", "", &all);
    printf("  file: %s, %llu bytes, with header and padding\n", fl_size_format(size, bytes),
           (unsigned long long)bytes);
    return FL_OK;
}
