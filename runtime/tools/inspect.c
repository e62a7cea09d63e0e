#include "runtime/tools/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/config.h"
#include "runtime/model/index.h"
#include "runtime/tools/setup.h"

enum { MAX_TYPES = 48 };

typedef struct type_count {
    uint32_t type;
    uint64_t tensors, bytes;
} type_count;

/* Everything that is printed, in either form. */
typedef struct report {
    const fl_source *src;
    const fl_index *ix; /* NULL: the files do not make a model */
    const fl_err *why;  /* then the reason */
    fl_index_sizes sizes;
    type_count type[MAX_TYPES]; /* largest first */
    int n_types;
    uint64_t file_bytes, tensor_bytes;
    const char *missing[4]; /* what a complete model has beside the weights */
    int n_missing;
    int64_t n_tokens; /* of the tokenizer; -1 unknown */
    bool all;
} report;

static int by_bytes(const void *a, const void *b)
{
    const type_count *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : (int)x->type - (int)y->type;
}

static void count_types(report *r)
{
    for (size_t i = 0; i < fl_source_n_tensors(r->src); i++) {
        const fl_tensor *t = fl_source_tensor(r->src, i);
        int at = 0;
        while (at < r->n_types && r->type[at].type != t->type) at++;
        if (at == MAX_TYPES) at--; /* more kinds than there are formats: a damaged file */
        if (at == r->n_types) r->type[r->n_types++] = (type_count){.type = t->type};
        r->type[at].tensors++;
        r->type[at].bytes += t->bytes;
        r->tensor_bytes += t->bytes;
    }
    qsort(r->type, (size_t)r->n_types, sizeof *r->type, by_bytes);
}

static void find_missing(report *r)
{
    const fl_gguf *g = fl_source_gguf(r->src);
    const fl_kv *tokens = g ? fl_gguf_find(g, "tokenizer.ggml.tokens") : NULL;
    r->n_tokens = tokens && tokens->type == FL_GGUF_ARRAY ? (int64_t)tokens->count : -1;
    if (g) {
        if (!tokens) r->missing[r->n_missing++] = "tokenizer (keys tokenizer.ggml.*)";
        if (!fl_gguf_find(g, "tokenizer.chat_template"))
            r->missing[r->n_missing++] = "chat template (Qwen's format is built in)";
        return;
    }
    if (!fl_source_tokenizer_path(r->src)) r->missing[r->n_missing++] = "tokenizer.json";
    if (!fl_source_config(r->src)) r->missing[r->n_missing++] = "config.json";
    if (!fl_source_generation_config(r->src)) r->missing[r->n_missing++] = "generation_config.json";
}

typedef struct component {
    const char *name;
    uint64_t bytes;
} component;
enum { N_COMPONENTS = 11 };

static void list_components(const fl_index_sizes *s, component c[N_COMPONENTS])
{
    const component all[N_COMPONENTS] = {{"experts", s->experts},     {"shared_experts", s->shared},
                                         {"routers", s->router},      {"gated_deltanet", s->gdn},
                                         {"backward_branch", s->bwd}, {"attention", s->attention},
                                         {"embedding", s->embed},     {"output", s->output},
                                         {"norms", s->norms},         {"mtp", s->mtp},
                                         {"other", s->other}};
    memcpy(c, all, sizeof all);
}

static int n_attention_layers(const fl_index *ix)
{
    int n = 0;
    for (int i = 0; i < ix->hp.n_layer; i++) n += ix->layer[i].full_attention;
    return n;
}

/* ---- JSON --------------------------------------------------------------------------------- */

static fl_json *json_settings(const fl_index *ix)
{
    const fl_hparams *hp = &ix->hp;
    fl_json *j = fl_json_new_object(), *stops = fl_json_new_array();
    fl_json_set_int(j, "layers", hp->n_layer);
    fl_json_set_int(j, "attention_layers", n_attention_layers(ix));
    fl_json_set_int(j, "mtp_blocks", hp->n_mtp);
    fl_json_set_int(j, "d_model", hp->d_model);
    fl_json_set_int(j, "vocabulary", hp->n_vocab);
    fl_json_set_int(j, "context", hp->n_ctx_train);
    fl_json_set_int(j, "heads", hp->n_head);
    fl_json_set_int(j, "kv_heads", hp->n_head_kv);
    fl_json_set_int(j, "head_dim", hp->head_dim);
    fl_json_set_int(j, "rotary_dim", hp->rot_dim);
    fl_json_set_num(j, "rope_base", hp->rope_base);
    fl_json_set_num(j, "rms_eps", (double)hp->eps);
    fl_json_set_int(j, "gdn_key_heads", hp->gdn_k_heads);
    fl_json_set_int(j, "gdn_value_heads", hp->gdn_v_heads);
    fl_json_set_int(j, "gdn_head_dim", hp->gdn_dim);
    fl_json_set_int(j, "gdn_conv_kernel", hp->conv_kernel);
    fl_json_set_int(j, "experts", hp->n_expert);
    fl_json_set_int(j, "experts_used", hp->top_k);
    fl_json_set_int(j, "expert_width", hp->d_ff);
    fl_json_set_int(j, "shared_expert_width", hp->d_ff_shared);
    fl_json_set_bool(j, "norms_zero_centred", hp->norm_add_one);
    fl_json_set_bool(j, "decay_as_log", hp->a_is_log);
    fl_json_set_bool(j, "value_heads_grouped", hp->v_grouped);
    for (int i = 0; i < hp->n_stop_ids; i++)
        fl_json_append(stops, fl_json_new_int(hp->stop_ids[i]));
    fl_json_set(j, "stop_ids", stops);
    return j;
}

static fl_json *json_blocks(const fl_clover *c)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "block_size", c->block_size);
    fl_json_set_int(j, "mask_id", c->mask_id);
    fl_json_set_num(j, "threshold", (double)c->threshold);
    fl_json_set_str(j, "gdn_block_mode", fl_gdn_block_mode_name(c->gdn_block_mode));
    fl_json_set_bool(j, "backward_branch", c->has_bwd);
    fl_json_set_int(j, "expert_pool", c->pool == FL_POOL_OFF ? 0 : c->pool_c);
    fl_json_set_str(j, "earned", c->verdict < 0 ? "unknown" : c->verdict ? "yes" : "no");
    return j;
}

static fl_json *json_types(const report *r)
{
    fl_json *list = fl_json_new_array();
    for (int i = 0; i < r->n_types; i++) {
        char name[32];
        fl_json *j = fl_json_new_object();
        fl_json_set_str(j, "type", fl_source_type_name(r->type[i].type, name));
        fl_json_set_int(j, "tensors", (int64_t)r->type[i].tensors);
        fl_json_set_int(j, "bytes", (int64_t)r->type[i].bytes);
        fl_json_append(list, j);
    }
    return list;
}

static fl_json *json_files(const report *r)
{
    fl_json *list = fl_json_new_array();
    for (int i = 0; i < fl_source_n_files(r->src); i++) {
        fl_json *j = fl_json_new_object();
        fl_json_set_str(j, "path", fl_source_paths(r->src)[i]);
        fl_json_set_int(j, "bytes", (int64_t)fl_source_file_bytes(r->src, i));
        fl_json_append(list, j);
    }
    return list;
}

static fl_json *json_tensors(const report *r)
{
    fl_json *list = fl_json_new_array();
    for (size_t i = 0; i < fl_source_n_tensors(r->src); i++) {
        const fl_tensor *t = fl_source_tensor(r->src, i);
        char name[32];
        fl_json *j = fl_json_new_object(), *ne = fl_json_new_array();
        for (int d = 0; d < t->n_dims; d++) fl_json_append(ne, fl_json_new_int(t->ne[d]));
        fl_json_set_str(j, "name", t->name);
        fl_json_set_str(j, "type", fl_source_type_name(t->type, name));
        fl_json_set(j, "ne", ne);
        fl_json_set_int(j, "file", t->file);
        fl_json_set_int(j, "offset", (int64_t)t->offset);
        fl_json_set_int(j, "bytes", (int64_t)t->bytes);
        fl_json_append(list, j);
    }
    return list;
}

/* What only a model that runs has. */
static void json_model(const report *r, fl_json *j)
{
    const fl_index *ix = r->ix;
    component c[N_COMPONENTS];
    fl_json *parts = fl_json_new_object(), *notes = fl_json_new_array();
    fl_json_set_str(j, "architecture", ix->hp.arch);
    fl_json_set_str(j, "name", ix->hp.name);
    fl_json_set_int(j, "parameters", (int64_t)r->sizes.params_total);
    fl_json_set_int(j, "parameters_active", (int64_t)r->sizes.params_active);
    fl_json_set(j, "settings", json_settings(ix));
    if (ix->clover.has_blocks) fl_json_set(j, "block_diffusion", json_blocks(&ix->clover));
    list_components(&r->sizes, c);
    for (int i = 0; i < N_COMPONENTS; i++) fl_json_set_int(parts, c[i].name, (int64_t)c[i].bytes);
    fl_json_set(j, "components", parts);
    for (int i = 0; i < ix->n_notes; i++) fl_json_append(notes, fl_json_new_str(ix->note[i]));
    fl_json_set(j, "notes", notes);
}

static fl_status print_json(const report *r, fl_err *err)
{
    char arch[64];
    fl_json *j = fl_json_new_object(), *missing = fl_json_new_array();
    const fl_gguf *g = fl_source_gguf(r->src);
    fl_json_set_bool(j, "ok", r->ix != NULL);
    if (!r->ix) fl_json_set_str(j, "error", r->why->msg);
    fl_json_set_str(j, "container", g ? "gguf" : "safetensors");
    if (g) fl_json_set_int(j, "gguf_version", fl_gguf_version(g));
    fl_json_set_str(j, "architecture_stored", fl_config_arch_spelling(r->src, arch));
    if (r->ix) json_model(r, j);
    fl_json_set_int(j, "bytes", (int64_t)r->file_bytes);
    fl_json_set_int(j, "tensor_bytes", (int64_t)r->tensor_bytes);
    fl_json_set_int(j, "tensors", (int64_t)fl_source_n_tensors(r->src));
    fl_json_set(j, "files", json_files(r));
    fl_json_set(j, "types", json_types(r));
    if (r->n_tokens >= 0) fl_json_set_int(j, "tokenizer_tokens", r->n_tokens);
    for (int i = 0; i < r->n_missing; i++) fl_json_append(missing, fl_json_new_str(r->missing[i]));
    fl_json_set(j, "missing", missing);
    if (r->all) fl_json_set(j, "tensor_list", json_tensors(r));
    char *text = fl_json_dump(j, 2);
    fl_json_free(&j);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for the report");
    puts(text);
    free(text);
    return FL_OK;
}

/* ---- text --------------------------------------------------------------------------------- */

/* Text from a file on a terminal: control characters become '?'. */
static void line(const char *label, const char *text)
{
    if (*label)
        printf("%-18s", label);
    else
        printf("  ");
    for (; *text; text++) putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
    putchar('\n');
}

static void print_size(const char *label, uint64_t bytes, uint64_t whole)
{
    char size[32];
    printf("  %-18s%12s  %5.1f %%\n", label, fl_size_format(size, bytes),
           whole ? 100.0 * (double)bytes / (double)whole : 0.0);
}

static void print_settings(const report *r)
{
    const fl_hparams *hp = &r->ix->hp;
    const int attention = n_attention_layers(r->ix);
    printf("%-18s%" PRIu64 ", of these %" PRIu64 " active per token\n", "parameters",
           r->sizes.params_total, r->sizes.params_active);
    printf("%-18s%d: %d Gated DeltaNet, %d attention; width %" PRId64 "\n", "layers", hp->n_layer,
           hp->n_layer - attention, attention, hp->d_model);
    printf("%-18s%d per layer, %d used; width %" PRId64 "; one shared expert of %" PRId64 "\n",
           "experts", hp->n_expert, hp->top_k, hp->d_ff, hp->d_ff_shared);
    printf("%-18s%d query heads of %d, %d key-value heads, %d rotary dimensions, base %g\n",
           "attention", hp->n_head, hp->head_dim, hp->n_head_kv, hp->rot_dim, hp->rope_base);
    printf("%-18s%d key heads, %d value heads of %d, convolution over %d rows\n", "Gated DeltaNet",
           hp->gdn_k_heads, hp->gdn_v_heads, hp->gdn_dim, hp->conv_kernel);
    printf("%-18s%" PRId64 " tokens\n", "context", hp->n_ctx_train);
    printf("%-18s%" PRId64 " tokens; a text ends at", "vocabulary", hp->n_vocab);
    for (int i = 0; i < hp->n_stop_ids; i++) printf("%s %d", i ? "," : "", (int)hp->stop_ids[i]);
    puts(hp->n_stop_ids ? "" : " no known token");
    if (hp->n_mtp) printf("%-18s%d\n", "MTP blocks", hp->n_mtp);
}

static void print_blocks(const fl_clover *c)
{
    if (!c->has_blocks) {
        line("block diffusion", "no: token by token only");
        return;
    }
    printf("%-18sblocks of %d, mask token %d, threshold %g, Gated DeltaNet in a block: %s\n",
           "block diffusion", c->block_size, (int)c->mask_id, (double)c->threshold,
           fl_gdn_block_mode_name(c->gdn_block_mode));
    line("block mode", c->verdict < 0 ? "not known whether it is earned: auto speculates"
                       : c->verdict ? "earned: auto decodes in blocks where stored rates favour it"
                                    : "not earned: auto speculates");
}

static void print_types(const report *r)
{
    char name[32], size[32];
    printf("\ntypes\n");
    for (int i = 0; i < r->n_types; i++)
        printf("  %-18s%12s  %5" PRIu64 " tensor%s\n", fl_source_type_name(r->type[i].type, name),
               fl_size_format(size, r->type[i].bytes), r->type[i].tensors,
               r->type[i].tensors > 1 ? "s" : "");
}

static void print_components(const report *r)
{
    component c[N_COMPONENTS];
    list_components(&r->sizes, c);
    printf("\ncomponents\n");
    for (int i = 0; i < N_COMPONENTS; i++)
        if (c[i].bytes) print_size(c[i].name, c[i].bytes, r->sizes.total);
    print_size("total", r->sizes.total, r->sizes.total);
}

static void print_tensors(const report *r)
{
    char name[32];
    printf("\ntensors (name, type, dimensions with the fastest first, file, offset, bytes)\n");
    for (size_t i = 0; i < fl_source_n_tensors(r->src); i++) {
        const fl_tensor *t = fl_source_tensor(r->src, i);
        printf("  %s %s ", t->name, fl_source_type_name(t->type, name));
        for (int d = 0; d < t->n_dims; d++) printf("%s%" PRId64, d ? "x" : "", t->ne[d]);
        printf(" %d %" PRIu64 " %" PRIu64 "\n", (int)t->file, t->offset, t->bytes);
    }
}

static void print_text(const report *r)
{
    const fl_gguf *g = fl_source_gguf(r->src);
    char arch[64], size[32];
    line("file", fl_source_paths(r->src)[0]);
    if (g)
        printf("%-18sGGUF version %u, %d file%s, %s, %zu tensors\n", "container",
               (unsigned)fl_gguf_version(g), fl_source_n_files(r->src),
               fl_source_n_files(r->src) > 1 ? "s" : "", fl_size_format(size, r->file_bytes),
               fl_source_n_tensors(r->src));
    else
        printf("%-18ssafetensors, %d file%s, %s, %zu tensors\n", "container",
               fl_source_n_files(r->src), fl_source_n_files(r->src) > 1 ? "s" : "",
               fl_size_format(size, r->file_bytes), fl_source_n_tensors(r->src));
    line("architecture", r->ix ? r->ix->hp.arch : fl_config_arch_spelling(r->src, arch));
    if (r->ix) {
        line("name", r->ix->hp.name);
        print_settings(r);
        print_blocks(&r->ix->clover);
        print_components(r);
    }
    print_types(r);
    if (r->n_missing || (r->ix && r->ix->n_notes) || !r->ix) printf("\nnotes\n");
    for (int i = 0; r->ix && i < r->ix->n_notes; i++) line("", r->ix->note[i]);
    for (int i = 0; i < r->n_missing; i++) printf("  missing: %s\n", r->missing[i]);
    if (!r->ix) printf("  does not run: %s\n", r->why->msg);
    if (r->all) print_tensors(r);
}

static fl_status inspect(const fl_options *o, const fl_source *src, fl_err *err)
{
    fl_wiring asked;
    FL_TRY(fl_setup_asked(o, &asked, err));
    report *r = calloc(1, sizeof *r);
    if (!r) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for the report");
    fl_index *ix;
    fl_err why = {0};
    fl_status st = fl_index_build_known(&ix, src, &asked, NULL, &why);
    r->src = src;
    r->ix = ix;
    r->why = &why;
    r->all = o->all;
    if (ix) fl_index_measure(ix, &r->sizes);
    for (int i = 0; i < fl_source_n_files(src); i++) r->file_bytes += fl_source_file_bytes(src, i);
    count_types(r);
    find_missing(r);
    fl_status printed = FL_OK;
    if (o->json)
        printed = print_json(r, err);
    else
        print_text(r);
    fl_index_free(&ix);
    free(r);
    if (printed != FL_OK) return printed;
    return st == FL_OK ? FL_OK : FL_FAIL(err, st, why.sys, "%s", why.msg);
}

fl_status fl_tool_inspect(const fl_options *o, fl_err *err)
{
    const char *path;
    fl_source *src;
    FL_TRY(fl_setup_model_path(o, &path, err));
    FL_TRY(fl_source_open(&src, path, err));
    const fl_status st = inspect(o, src, err);
    fl_source_close(&src);
    return st;
}
