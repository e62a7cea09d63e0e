#include "runtime/tools/patch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/law.h"
#include "runtime/model/gguf_write.h"
#include "runtime/model/model.h"
#include "runtime/tools/setup.h"

typedef enum moved { STAY, ROWS, COLUMNS } moved;

/* What becomes of a tensor. */
typedef struct edit {
    bool add_one, neg_exp;
    bool as_f32; /* its values are written as F32 */
    moved move;  /* value heads, grouped to tiled: heads of `unit` rows or columns behind `first` */
    int64_t first, unit;
    const char *role; /* its name behind blk.N., when the file has another; or NULL */
    int layer;
} edit;

typedef struct run {
    fl_source *src;
    fl_index *ix;
    const fl_gguf *gguf;
    fl_wiring known;
    edit *edit; /* [n_tensors] */
    fl_gguf_writer *w;
    const char *out;
    bool add_count; /* the key expert_shared_count */
    int n_edited, n_renamed;
    uint64_t copied;
} run;

static edit *edit_of(const run *r, const fl_tref *ref)
{
    return ref->tensor ? &r->edit[ref->tensor - fl_source_tensor(r->src, 0)] : NULL;
}

static bool is_edited(const edit *e) { return e->add_one || e->neg_exp || e->move != STAY; }

/* ---- what to do --------------------------------------------------------------------------- */

static void norm(const run *r, const fl_tref *ref)
{
    edit *e = edit_of(r, ref);
    if (e) e->add_one = e->as_f32 = true;
}

static void decay(const run *r, const fl_tref *ref)
{
    edit *e = edit_of(r, ref);
    if (e) e->neg_exp = e->as_f32 = true;
}

static void heads(const run *r, const fl_tref *ref, moved move, int64_t first, int64_t unit)
{
    edit *e = edit_of(r, ref);
    if (!e) return;
    e->move = move;
    e->first = first;
    e->unit = unit;
    if (move == COLUMNS && unit % fl_type_get(ref->tensor->type)->block_elems != 0)
        e->as_f32 = true;
}

static void edit_norms(const run *r, const fl_layer_refs *l)
{
    const fl_tref *all[] = {&l->attn_norm,   &l->ffn_norm,    &l->q_norm,    &l->k_norm,
                            &l->nextn_enorm, &l->nextn_hnorm, &l->nextn_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) norm(r, all[i]);
}

static void edit_heads(const run *r, const fl_layer_refs *l)
{
    const int64_t d = r->ix->hp.gdn_dim, v = 2 * (int64_t)r->ix->hp.gdn_k_heads * d;
    const fl_tref *one[] = {&l->alpha,    &l->beta,  &l->a,      &l->dt,     &l->bwd_alpha,
                            &l->bwd_beta, &l->bwd_a, &l->bwd_dt, &l->bwd_mix};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) heads(r, one[i], ROWS, 0, 1);
    heads(r, &l->qkv, ROWS, v, d);
    heads(r, &l->conv, ROWS, v, d);
    heads(r, &l->bwd_conv, ROWS, v, d);
    heads(r, &l->z, ROWS, 0, d);
    heads(r, &l->out, COLUMNS, 0, d);
}

/* Tensors under names of their own get their roles' names. */
static void rename_roles(run *r)
{
    for (int k = 0; k < r->known.roles.n; k++)
        for (int i = 0; i < r->ix->hp.n_layer; i++) {
            const fl_role_name *x = &r->known.roles.item[k];
            const int before = (int)strcspn(x->name, "*");
            char name[2 * FL_ROLE_BYTES], own[2 * FL_ROLE_BYTES];
            snprintf(name, sizeof name, "%.*s%d%s", before, x->name, i, x->name + before + 1);
            snprintf(own, sizeof own, "blk.%d.%s", i, x->role);
            const fl_tensor *t = fl_source_find(r->src, name);
            if (!t || strcmp(name, own) == 0) continue;
            edit *e = &r->edit[t - fl_source_tensor(r->src, 0)];
            e->role = x->role;
            e->layer = i;
            r->n_renamed++;
        }
}

static fl_status plan(run *r, fl_err *err)
{
    const fl_hparams *hp = &r->ix->hp;
    const size_t n = fl_source_n_tensors(r->src);
    r->edit = calloc(n + 1, sizeof *r->edit);
    if (!r->edit) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", r->out);
    if (hp->norm_add_one) norm(r, &r->ix->output_norm);
    for (int i = 0; i < hp->n_layer + hp->n_mtp; i++) {
        const fl_layer_refs *l = i < hp->n_layer ? &r->ix->layer[i] : &r->ix->mtp[i - hp->n_layer];
        if (hp->norm_add_one) edit_norms(r, l);
        if (hp->a_is_log) decay(r, &l->a);
        if (hp->a_is_log) decay(r, &l->bwd_a);
        if (hp->v_grouped) edit_heads(r, l);
    }
    rename_roles(r);
    for (size_t i = 0; i < n; i++) r->n_edited += is_edited(&r->edit[i]);
    return FL_OK;
}

/* ---- metadata ----------------------------------------------------------------------------- */

static bool has_suffix(const fl_str key, const char *suffix)
{
    const size_t n = strlen(suffix);
    return key.n >= n && memcmp(key.p + key.n - n, suffix, n) == 0;
}

static void put_metadata(const run *r)
{
    char key[512], arch[64];
    const fl_str spelling = fl_kv_str(fl_gguf_find(r->gguf, "general.architecture"));
    snprintf(arch, sizeof arch, "%.*s", (int)(spelling.n < 63 ? spelling.n : 63), spelling.p);
    for (size_t i = 0; i < fl_gguf_n_kv(r->gguf); i++) {
        const fl_kv *kv = fl_gguf_kv_at(r->gguf, i);
        if (has_suffix(kv->key, ".ssm.v_head_reordered")) continue; /* they are now */
        if (kv->key.n >= 6 && memcmp(kv->key.p, "split.", 6) == 0) continue;
        if (kv->key.n >= sizeof key) continue;
        snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
        if (strcmp(key, "general.alignment") == 0) continue; /* the writer's own */
        fl_gguf_put_copy(r->w, key, kv);
    }
    if (!r->add_count) return;
    snprintf(key, sizeof key, "%s.expert_shared_count", arch);
    fl_gguf_put_u32(r->w, key, 1);
}

static bool lacks_count(const run *r)
{
    if (strcmp(r->ix->hp.arch, "clover_moe") != 0) return false;
    for (size_t i = 0; i < fl_gguf_n_kv(r->gguf); i++)
        if (has_suffix(fl_gguf_kv_at(r->gguf, i)->key, ".expert_shared_count")) return false;
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static uint32_t type_of(const edit *e, const fl_tensor *t)
{
    return e->as_f32 ? (uint32_t)FL_TYPE_F32 : t->type;
}

static fl_status declare(const run *r, fl_err *err)
{
    for (size_t i = 0; i < fl_source_n_tensors(r->src); i++) {
        const fl_tensor *t = fl_source_tensor(r->src, i);
        const edit *e = &r->edit[i];
        char own[2 * FL_ROLE_BYTES];
        if (e->role) snprintf(own, sizeof own, "blk.%d.%s", e->layer, e->role);
        FL_TRY(fl_gguf_add_tensor(r->w, e->role ? own : t->name, type_of(e, t), t->n_dims, t->ne,
                                  err));
    }
    return FL_OK;
}

/* Source head of output head n. */
static int64_t source_head(const fl_hparams *hp, int64_t n)
{
    const int64_t k = hp->gdn_k_heads;
    return hp->gdn_v_heads / k * (n % k) + n / k;
}

/* Heads of `bytes` bytes each, from src to dst; `head_bytes` of others stand before them. */
static void move_heads(const fl_hparams *hp, const uint8_t *src, uint8_t *dst, uint64_t head_bytes,
                       uint64_t bytes)
{
    memcpy(dst, src, head_bytes);
    for (int64_t n = 0; n < hp->gdn_v_heads; n++)
        memcpy(dst + head_bytes + (uint64_t)n * bytes,
               src + head_bytes + (uint64_t)source_head(hp, n) * bytes, bytes);
}

/* src in the tensor's new type, to dst of the same size. */
static void move_tensor(const run *r, const fl_tensor *t, const edit *e, const uint8_t *src,
                        uint8_t *dst)
{
    const uint32_t type = type_of(e, t);
    const fl_type_info *ti = fl_type_get(type);
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    const bool vector = e->unit == 1 && n == r->ix->hp.gdn_v_heads;
    const uint64_t row = vector ? ti->block_bytes : fl_type_row_bytes(type, (uint64_t)t->ne[0]);
    if (e->move == ROWS) {
        move_heads(&r->ix->hp, src, dst, (uint64_t)e->first * row, (uint64_t)e->unit * row);
        return;
    }
    const uint64_t unit = (uint64_t)e->unit / ti->block_elems * ti->block_bytes;
    for (int64_t i = 0; i < n / t->ne[0]; i++)
        move_heads(&r->ix->hp, src + (uint64_t)i * row, dst + (uint64_t)i * row, 0, unit);
}

static void change_values(const edit *e, float *v, int64_t n)
{
    for (int64_t i = 0; e->add_one && i < n; i++) v[i] += 1.0f;
    for (int64_t i = 0; e->neg_exp && i < n; i++) v[i] = (float)-fl_law_exp64((double)v[i]);
}

/* A tensor that changes, whole in memory: the largest is ssm_out or attn_qkv of one layer. */
static fl_status write_edited(run *r, const fl_tensor *t, const edit *e, fl_err *err)
{
    const fl_type_info *ti = fl_type_get(t->type);
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    const uint64_t bytes = e->as_f32 ? (uint64_t)n * sizeof(float) : t->bytes;
    uint8_t *raw = malloc(t->bytes), *now = malloc(bytes), *moved_to = malloc(bytes);
    fl_status st = FL_OK;
    if (!raw || !now || !moved_to)
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for tensor %s", r->out, t->name);
    if (st == FL_OK) st = fl_source_read(r->src, t, 0, raw, t->bytes, err);
    if (st == FL_OK) {
        if (e->as_f32)
            ti->dequantize(raw, (float *)(void *)now, n);
        else
            memcpy(now, raw, bytes);
        change_values(e, (float *)(void *)now, n);
        if (e->move != STAY) move_tensor(r, t, e, now, moved_to);
        st = fl_gguf_writer_write(r->w, e->move != STAY ? moved_to : now, bytes, err);
    }
    free(raw);
    free(now);
    free(moved_to);
    return st;
}

static fl_status write_tensors(run *r, fl_err *err)
{
    for (size_t i = 0; i < fl_source_n_tensors(r->src); i++) {
        const fl_tensor *t = fl_source_tensor(r->src, i);
        if (is_edited(&r->edit[i])) {
            FL_TRY(write_edited(r, t, &r->edit[i], err));
            continue;
        }
        FL_TRY(fl_gguf_writer_copy(r->w, fl_source_fd(r->src, t->file), t->offset,
                                   fl_source_paths(r->src)[t->file], err));
        r->copied += t->bytes;
    }
    return FL_OK;
}

/* ---- the command -------------------------------------------------------------------------- */

static fl_status prepare(run *r, const fl_options *o, fl_err *err)
{
    fl_wiring asked;
    FL_TRY(fl_setup_asked(o, &asked, err));
    FL_TRY(fl_source_open(&r->src, o->args[0], err));
    r->gguf = fl_source_gguf(r->src);
    if (!r->gguf)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: is no GGUF file; fourleaf quantize makes one of safetensors",
                       o->args[0]);
    FL_TRY(fl_setup_check_output(r->src, r->out, err));
    FL_TRY(fl_index_build_known(&r->ix, r->src, &asked, &r->known, err));
    FL_TRY(plan(r, err));
    r->add_count = lacks_count(r);
    if (r->n_edited == 0 && r->n_renamed == 0 && !r->add_count)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: nothing to patch: it is in the form that other programs read",
                       o->args[0]);
    FL_TRY(fl_gguf_writer_create(&r->w, r->out, (uint32_t)fl_gguf_alignment(r->gguf), err));
    put_metadata(r);
    return declare(r, err);
}

fl_status fl_tool_patch(const fl_options *o, fl_err *err)
{
    run r = {.out = o->args[1]};
    char size[32];
    fl_status st;
    FL_GO(prepare(&r, o, err));
    for (int i = 0; i < r.ix->n_notes; i++) fprintf(stderr, "note: %s\n", r.ix->note[i]);
    const uint64_t bytes = fl_gguf_writer_bytes(r.w);
    FL_GO(fl_gguf_writer_begin(r.w, err));
    FL_GO(write_tensors(&r, err));
    FL_GO(fl_gguf_writer_commit(&r.w, err));
    fprintf(stderr, "%s: %s; %d of %zu tensors changed, %d renamed, %s; the others copied (%s)\n",
            r.out, fl_size_format(size, bytes), r.n_edited, fl_source_n_tensors(r.src), r.n_renamed,
            r.add_count ? "expert_shared_count added" : "no key added",
            fl_size_format((char[32]){0}, r.copied));
out:
    fl_gguf_writer_discard(&r.w);
    free(r.edit);
    fl_index_free(&r.ix);
    fl_source_close(&r.src);
    return st;
}
