#include "runtime/tools/types.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/json.h"

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
    FL_GO(fl_recipe_of_type(&r, o->type ? o->type : "q4_k", ix, err));
    FL_GO(fl_recipe_apply(&r, c, done, notes, err));
out:
    fl_recipe_fini(&r);
    return st;
}

fl_status fl_types_choose(fl_conv *c, const fl_index *ix, const fl_options *o, char **notes,
                          fl_err *err)
{
    fl_text text = {0};
    fl_status st;
    *notes = NULL;
    bool *done = calloc((size_t)c->n + 1, sizeof *done);
    if (!done) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %d tensors", c->n);
    FL_GO(apply(c, ix, o, done, &text, err));
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
