#include "runtime/model/index.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/hash.h"
#include "runtime/model/index_parts.h"
#include "runtime/model/index_roles.h"
#include "runtime/model/safetensors.h"

/* ---- building ----------------------------------------------------------------------------- */

typedef struct builder {
    fl_index *ix;
    const fl_source *src;
    const fl_hparams *hp;
    bool gguf;
    const char *path;
    char hf_root[40]; /* "model.language_model." or what stands in its place */
    bool *used;       /* [tensors of the source] */
    const fl_wiring *known;
    fl_err *err;
} builder;

fl_status fl_index_note(fl_index *ix, fl_err *err, const char *fmt, ...)
{
    char **more = realloc(ix->note, ((size_t)ix->n_notes + 1) * sizeof *more);
    if (more) ix->note = more;
    va_list ap;
    va_start(ap, fmt);
    char *text = NULL;
    if (more && vasprintf(&text, fmt, ap) < 0) text = NULL;
    va_end(ap);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for a note");
    ix->note[ix->n_notes++] = text;
    return FL_OK;
}

static const fl_tensor *lookup(builder *b, const char *name)
{
    const fl_tensor *t = fl_source_find(b->src, name);
    if (t) b->used[t - fl_source_tensor(b->src, 0)] = true;
    return t;
}

/* "[2048, 512]" into buf, in the order that the file's own format prints it. */
static const char *shape_text(bool gguf, const int64_t *ne, int n, char buf[96])
{
    size_t at = (size_t)snprintf(buf, 96, "[");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%" PRId64, i ? ", " : "",
                               ne[gguf ? i : n - 1 - i]);
    snprintf(buf + at, 96 - at, "]");
    return buf;
}

/* Equal but for dimensions of 1: conv1d is [channels, 1, taps] in one format and {taps, channels}
 * in the other. None may stand before a matrix's rows: ne[0] is their length. */
static bool same_shape(const fl_tensor *t, const int64_t want[3])
{
    int i = 0, j = 0;
    if (want[1] > 1 && t->ne[0] != want[0]) return false;
    for (;; i++, j++) {
        while (i < 4 && t->ne[i] == 1) i++;
        while (j < 3 && want[j] == 1) j++;
        if (i == 4 || j == 3) return i == 4 && j == 3;
        if (t->ne[i] != want[j]) return false;
    }
}

static fl_status check_shape(const builder *b, const fl_tensor *t, const uint8_t ne[3])
{
    const int64_t want[3] = {fl_role_dim(b->hp, ne[0]), fl_role_dim(b->hp, ne[1]),
                             fl_role_dim(b->hp, ne[2])};
    if (same_shape(t, want)) return FL_OK;
    char found[96], expected[96];
    return FL_FAIL(b->err, FL_E_FORMAT, 0,
                   "%s: tensor '%s' has shape %s, expected %s by the model's settings: the file is "
                   "damaged or of another model",
                   fl_source_paths(b->src)[t->file], t->name,
                   shape_text(b->gguf, t->ne, t->n_dims, found),
                   shape_text(b->gguf, want,
                              ne[2]   ? 3
                              : ne[1] ? 2
                                      : 1,
                              expected));
}

static fl_status check_type(const builder *b, const fl_tensor *t)
{
    const fl_type_info *ti = fl_type_get(t->type);
    if (ti && ti->readable) return FL_OK;
    char name[32];
    const char *why =
        ti && ti->refuse ? ti->refuse
        : t->type >= FL_FOREIGN_BOOL
            ? "which is not read; take the BF16 safetensors or a GGUF file (Q4_K_M, "
              "UD-Q4_K_XL, Q8_0)"
            : "which is not known; take a GGUF file of type Q4_K_M, UD-Q4_K_XL or Q8_0";
    return FL_FAIL(b->err, FL_E_UNSUPPORTED, 0, "%s: tensor '%s' has type %s: %s",
                   fl_source_paths(b->src)[t->file], t->name, fl_source_type_name(t->type, name),
                   why);
}

/* The F32 companion of a GGUF matrix: one value, or one per expert. */
static fl_status find_scale(builder *b, const fl_tensor *t, fl_tref *ref)
{
    char name[300];
    const size_t n = strlen(t->name);
    if (!b->gguf || n < 8 || n > 280 || strcmp(t->name + n - 7, ".weight") != 0) return FL_OK;
    snprintf(name, sizeof name, "%.*s.input_scale", (int)n - 7, t->name);
    lookup(b, name); /* for activations in four bits: not used */
    snprintf(name, sizeof name, "%.*s.scale", (int)n - 7, t->name);
    const fl_tensor *s = lookup(b, name);
    if (!s) return FL_OK;
    const int64_t elems = s->ne[0] * s->ne[1] * s->ne[2] * s->ne[3];
    const int64_t matrices = t->ne[2] * t->ne[3];
    if (s->type != FL_TYPE_F32 || (elems != 1 && elems != matrices))
        return FL_FAIL(b->err, FL_E_FORMAT, 0,
                       "%s: tensor '%s' has %" PRId64 " values of type %" PRIu32
                       ", expected 1 or %" PRId64 " of type f32: the file is damaged",
                       fl_source_paths(b->src)[s->file], s->name, elems, s->type, matrices);
    ref->scale = s;
    return FL_OK;
}

static fl_status accept(builder *b, const fl_tensor *t, const uint8_t ne[3], fl_tref *ref)
{
    FL_TRY(check_shape(b, t, ne));
    FL_TRY(check_type(b, t));
    ref->tensor = t;
    return find_scale(b, t, ref);
}

static fl_status missing(const builder *b, const char *name)
{
    return FL_FAIL(
        b->err, FL_E_FORMAT, 0,
        "%s: tensor '%s' is missing: the file is incomplete or of another model, download "
        "it again",
        b->path, name);
}

/* Full name of a role's tensor in layer i; MTP blocks stand behind the layers (GGUF) or under
 * "mtp." (Hugging Face). */
static void full_name(const builder *b, const fl_role *r, int i, bool mtp, char buf[128])
{
    const char *mapped = mtp ? NULL : fl_role_map_get(&b->known->roles, r->gguf);
    const int before = mapped ? (int)strcspn(mapped, "*") : 0;
    if (mapped)
        snprintf(buf, 128, "%.*s%d%.100s", before, mapped, i, mapped + before + 1);
    else if (b->gguf)
        snprintf(buf, 128, "blk.%d.%s", mtp ? b->hp->n_layer + i : i, r->gguf);
    else if (r->where == IN_MTP)
        snprintf(buf, 128, "mtp.%s", r->hf);
    else
        snprintf(buf, 128, "%slayers.%d.%s", mtp ? "mtp." : b->hf_root, i, r->hf);
}

static fl_status find_role(builder *b, const fl_role *r, int i, bool mtp, fl_layer_refs *l)
{
    char name[128];
    full_name(b, r, i, mtp, name);
    const fl_tensor *t = lookup(b, name);
    if (!t && b->gguf && (r->at == AT(dt) || r->at == AT(bwd_dt))) {
        char other[128]; /* Ollama writes it without .bias */
        snprintf(other, sizeof other, "%.*s", (int)strlen(name) - 5, name);
        t = lookup(b, other);
    }
    if (!t && r->where == IN_MTP && r->at == AT(nextn_norm)) return FL_OK; /* output_norm serves */
    return t ? accept(b, t, r->ne, (fl_tref *)((char *)l + r->at)) : missing(b, name);
}

/* Every name of the map must be there: a mistyped one would silently leave its role empty. */
static fl_status check_roles(builder *b)
{
    const fl_role_map *map = &b->known->roles;
    for (int k = 0; k < map->n; k++) {
        const fl_role *r = fl_roles;
        bool found = false;
        char name[128];
        while (strcmp(r->gguf, map->item[k].role) != 0) r++;
        for (int i = 0; i < b->hp->n_layer && !found; i++) {
            full_name(b, r, i, false, name);
            found = fl_source_find(b->src, name) != NULL;
        }
        if (!found)
            return FL_FAIL(b->err, FL_E_FORMAT, 0, "%s: no tensor is named '%s', which is to be %s",
                           b->path, map->item[k].name, map->item[k].role);
    }
    return FL_OK;
}

static bool has(const builder *b, uint16_t at, int i, bool mtp)
{
    char name[128];
    const fl_role *r = fl_roles;
    while (r->at != at) r++;
    full_name(b, r, i, mtp, name);
    return fl_source_find(b->src, name) != NULL;
}

/* Experts as single tensors of Hugging Face files: mlp.experts.E.gate_proj.weight ... */
static fl_status find_per_expert(builder *b, int i, bool mtp, fl_layer_refs *l)
{
    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
    static const uint8_t ne[3][3] = {{D_MODEL, D_FF}, {D_MODEL, D_FF}, {D_FF, D_MODEL}};
    char name[128];
    if ((size_t)b->hp->n_expert * 3 > fl_source_n_tensors(b->src))
        return missing(b, "mlp.experts.*.gate_proj.weight of every expert");
    l->per_expert = calloc((size_t)b->hp->n_expert * 3, sizeof *l->per_expert);
    if (!l->per_expert) return FL_FAIL(b->err, FL_E_NOMEM, 0, "%s: no memory", b->path);
    for (int e = 0; e < b->hp->n_expert * 3; e++) {
        snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%d.%s.weight",
                 mtp ? "mtp." : b->hf_root, i, e / 3, part[e % 3]);
        const fl_tensor *t = lookup(b, name);
        fl_tref ref = {0};
        if (!t) return missing(b, name);
        FL_TRY(accept(b, t, ne[e % 3], &ref));
        l->per_expert[e] = t;
    }
    return FL_OK;
}

static fl_status find_layer(builder *b, int i, bool full, bool bwd, bool mtp, fl_layer_refs *l)
{
    char first[128];
    snprintf(first, sizeof first, "%slayers.%d.mlp.experts.0.gate_proj.weight",
             mtp ? "mtp." : b->hf_root, i);
    const bool single = !b->gguf && fl_source_find(b->src, first);
    const bool fused = !single && has(b, AT(exp_gate_up), i, mtp);
    l->full_attention = full;
    for (int r = 0; r < FL_N_ROLES; r++) {
        const fl_role_where w = (fl_role_where)fl_roles[r].where;
        const bool wanted = w == IN_ALL || (w == IN_FULL && full) || (w == IN_GDN && !full) ||
                            (w == IN_BWD && !full && bwd) || (w == IN_FUSED && fused) ||
                            (w == IN_APART && !fused && !single) || (w == IN_DOWN && !single) ||
                            (w == IN_MTP && mtp);
        if (wanted) FL_TRY(find_role(b, &fl_roles[r], i, mtp, l));
    }
    return single ? find_per_expert(b, i, mtp, l) : FL_OK;
}

/* ---- the tensors outside the layers ------------------------------------------------------- */

static void find_root(builder *b)
{
    static const char *const root[] = {"model.language_model.", "model.", "language_model.model.",
                                       "language_model.", ""};
    char name[96];
    snprintf(b->hf_root, sizeof b->hf_root, "%s", root[0]);
    for (size_t i = 0; i < sizeof root / sizeof *root; i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", root[i]);
        if (!fl_source_find(b->src, name)) continue;
        snprintf(b->hf_root, sizeof b->hf_root, "%s", root[i]);
        return;
    }
}

static fl_status find_embedding(builder *b, const fl_config *c)
{
    char name[96];
    int64_t vocab;
    snprintf(name, sizeof name, "%s", "token_embd.weight");
    if (!b->gguf) snprintf(name, sizeof name, "%sembed_tokens.weight", b->hf_root);
    const fl_tensor *t = lookup(b, name);
    if (!t) return missing(b, name);
    fl_hparams *hp = &b->ix->hp;
    hp->n_vocab = t->ne[1];
    if (fl_config_int(c, "vocab_size", "vocab_size", &vocab)) hp->n_vocab = vocab;
    if (hp->n_vocab < 1 || hp->n_vocab > INT32_MAX)
        return FL_FAIL(b->err, FL_E_FORMAT, 0,
                       "%s: the vocabulary has %" PRId64
                       " tokens, expected 1 to %d: the file is damaged",
                       b->path, hp->n_vocab, INT32_MAX);
    return accept(b, t, (const uint8_t[]){D_MODEL, D_VOCAB, 0}, &b->ix->embed);
}

static fl_status find_output(builder *b, const fl_config *c)
{
    static const char *const names[] = {"lm_head.weight", "language_model.lm_head.weight"};
    fl_index *ix = b->ix;
    bool tied = false;
    char name[96];
    snprintf(name, sizeof name, "%s", b->gguf ? "output_norm.weight" : "");
    if (!b->gguf) snprintf(name, sizeof name, "%snorm.weight", b->hf_root);
    const fl_tensor *norm = lookup(b, name);
    if (!norm) return missing(b, name);
    FL_TRY(accept(b, norm, (const uint8_t[]){D_MODEL, 0, 0}, &ix->output_norm));
    const fl_tensor *t = lookup(b, b->gguf ? "output.weight" : names[0]);
    if (!t && !b->gguf) t = lookup(b, names[1]);
    fl_config_bool(c, NULL, "tie_word_embeddings", &tied);
    if (t) return accept(b, t, (const uint8_t[]){D_MODEL, D_VOCAB, 0}, &ix->output);
    if (!b->gguf && !tied) return missing(b, names[0]);
    ix->output = ix->embed;
    return fl_index_note(ix, b->err, "no output matrix: the embedding serves as output (tied)");
}

/* ---- MTP and what is left over ------------------------------------------------------------ */

/* An embedding or output matrix of the MTP block's own: the block's drafts would need it. */
static fl_status refuse_own_matrices(const builder *b, int i)
{
    static const char *const gguf[] = {"embed_tokens", "shared_head_head"};
    static const char *const hf[] = {"embed_tokens", "shared_head.head"};
    char name[128];
    for (int k = 0; k < 2; k++) {
        if (b->gguf)
            snprintf(name, sizeof name, "blk.%d.nextn.%s.weight", b->hp->n_layer + i, gguf[k]);
        else
            snprintf(name, sizeof name, "mtp.%s.weight", hf[k]);
        if (fl_source_find(b->src, name))
            return FL_FAIL(b->err, FL_E_UNSUPPORTED, 0,
                           "%s: '%s': matrices of its own are not supported", b->path, name);
    }
    return FL_OK;
}

/* The draft head is optional: what is missing or wrong there is a note. */
static fl_status find_mtp(builder *b)
{
    fl_hparams *hp = &b->ix->hp;
    const int n = hp->n_mtp;
    hp->n_mtp = 0;
    if (n == 0) return FL_OK;
    b->ix->mtp = calloc((size_t)n, sizeof *b->ix->mtp);
    if (!b->ix->mtp) return FL_FAIL(b->err, FL_E_NOMEM, 0, "%s: no memory", b->path);
    fl_err *const outer = b->err;
    for (int i = 0; i < n; i++) {
        if (!has(b, AT(attn_norm), i, true))
            return fl_index_note(b->ix, outer, "the settings name %d MTP block%s, the file has %d",
                                 n, n > 1 ? "s" : "", i);
        fl_err why = {0};
        b->err = &why;
        fl_status st = refuse_own_matrices(b, i);
        if (st == FL_OK) st = find_layer(b, i, true, false, true, &b->ix->mtp[i]);
        b->err = outer;
        if (st != FL_OK) { /* fl_index_free sees only the blocks that count */
            free(b->ix->mtp[i].per_expert);
            if (st == FL_E_NOMEM) return FL_FAIL(outer, st, 0, "%s", why.msg);
            return fl_index_note(b->ix, outer, "MTP block %d is not usable: %s", i, why.msg);
        }
        hp->n_mtp = i + 1;
    }
    return FL_OK;
}

/* One note on the tensors that no role took. */
static fl_status note_unused(builder *b)
{
    fl_index *ix = b->ix;
    const size_t n = fl_source_n_tensors(b->src);
    size_t count = 0;
    uint64_t bytes = 0;
    char names[200] = "";
    ix->extra = calloc(n + 1, sizeof *ix->extra);
    if (!ix->extra) return FL_FAIL(b->err, FL_E_NOMEM, 0, "%s: no memory", b->path);
    for (size_t i = 0; i < n; i++) {
        if (b->used[i]) continue;
        const fl_tensor *t = fl_source_tensor(b->src, i);
        const size_t at = strlen(names);
        if (count < 3)
            snprintf(names + at, sizeof names - at, "%s%.60s", count ? ", " : "", t->name);
        ix->extra[count++] = t;
        bytes += t->bytes;
    }
    ix->n_extra = (int)count;
    if (count == 0) return FL_OK;
    return fl_index_note(ix, b->err, "%zu tensor%s outside the text model skipped (%.1f MiB): %s%s",
                         count, count > 1 ? "s" : "", (double)bytes / (1 << 20), names,
                         count > 3 ? ", ..." : "");
}

static bool any_bwd(const builder *b, const bool *full)
{
    for (int i = 0; i < b->hp->n_layer; i++)
        for (int r = 0; r < FL_N_ROLES && !full[i]; r++)
            if (fl_roles[r].where == IN_BWD && has(b, fl_roles[r].at, i, false)) return true;
    return false;
}

/* A mask id outside the vocabulary is an error when the file names it, else the end of blocks. */
static fl_status check_mask(builder *b, const fl_config *c)
{
    fl_clover *k = &b->ix->clover;
    const int id = (int)k->mask_id;
    int64_t v;
    if (!k->has_blocks) return FL_OK;
    const bool given = fl_config_int(c, "mask_token_id", "mask_token_id", &v);
    if (given && id >= b->hp->n_vocab)
        return FL_FAIL(b->err, FL_E_FORMAT, 0,
                       "%s: mask_token_id is %d, the vocabulary has %" PRId64 " tokens", b->path,
                       id, b->hp->n_vocab);
    if (given) return FL_OK;
    if (id < b->hp->n_vocab)
        return fl_index_note(b->ix, b->err, "mask_token_id is missing: taken as %d", id);
    k->has_blocks = false;
    k->mask_id = -1;
    return fl_index_note(
        b->ix, b->err,
        "mask_token_id is missing and %d is outside the vocabulary: block mode is off", id);
}

/* What the probe settled, in place of what the file says or the definition guesses. */
static fl_status apply_probe(builder *b)
{
    fl_clover *k = &b->ix->clover;
    const fl_clover *p = &b->known->clover;
    char text[256];
    if (!b->known->probed) return FL_OK;
    if (p->has_blocks) {
        if (p->mask_id >= b->hp->n_vocab || (p->gdn_block_mode == FL_GDN_BIDIR && !k->has_bwd))
            return fl_index_note(b->ix, b->err,
                                 "what a probe stored on this model does not fit it and is not "
                                 "used: run fourleaf probe again");
        k->has_blocks = true;
        k->mask_id = p->mask_id;
        k->pred_shift = p->pred_shift;
        k->pool_c = p->pool_c;
        k->verdict = p->verdict;
        for (const fl_switch *s = fl_switches; s->name; s++)
            fl_clover_set(k, s->name, fl_clover_word(p, s->name));
    }
    if (!p->has_blocks) return FL_OK;
    return fl_index_note(b->ix, b->err, "wired as fourleaf probe found: %s; block mode %s",
                         fl_wiring_text(b->known, text), p->verdict == 1 ? "earned" : "not earned");
}

static fl_status build(builder *b)
{
    fl_index *ix = b->ix;
    fl_config c;
    bool *full = NULL;
    fl_status st;
    FL_TRY(fl_config_open(&c, b->src, b->err));
    b->gguf = c.gguf != NULL;
    FL_GO(fl_hparams_read(ix, &c, &full, b->err));
    find_root(b);
    FL_GO(check_roles(b));
    FL_GO(find_embedding(b, &c));
    FL_GO(find_output(b, &c));
    const bool bwd = strcmp(ix->hp.arch, "clover_moe") == 0 && any_bwd(b, full);
    ix->layer = calloc((size_t)ix->hp.n_layer, sizeof *ix->layer);
    if (!ix->layer) FL_GO(FL_FAIL(b->err, FL_E_NOMEM, 0, "%s: no memory", b->path));
    for (int i = 0; i < ix->hp.n_layer; i++)
        FL_GO(find_layer(b, i, full[i], bwd, false, &ix->layer[i]));
    FL_GO(find_mtp(b));
    fl_stop_ids_read(&ix->hp, &c);
    FL_GO(fl_quirks_detect(ix, &c, b->known, b->err));
    FL_GO(fl_clover_read(&ix->clover, b->src, bwd, b->err));
    FL_GO(check_mask(b, &c));
    FL_GO(apply_probe(b));
    FL_GO(note_unused(b));
out:
    free(full);
    return st;
}

fl_status fl_index_build(fl_index **out, const fl_source *src, fl_err *err)
{
    const fl_wiring none = fl_wiring_none();
    return fl_index_build_as(out, src, &none, err);
}

fl_status fl_index_build_as(fl_index **out, const fl_source *src, const fl_wiring *w, fl_err *err)
{
    *out = NULL;
    fl_index *ix = calloc(1, sizeof *ix);
    bool *used = calloc(fl_source_n_tensors(src) + 1, sizeof *used);
    fl_status st = FL_OK;
    if (!ix || !used) st = FL_FAIL(err, FL_E_NOMEM, 0, "no memory for the index of a model");
    if (st == FL_OK) {
        ix->src = src;
        builder b = {.ix = ix,
                     .src = src,
                     .hp = &ix->hp,
                     .path = fl_source_paths(src)[0],
                     .used = used,
                     .known = w,
                     .err = err};
        st = build(&b);
    }
    free(used);
    if (st != FL_OK) fl_index_free(&ix);
    *out = ix;
    return st;
}

void fl_index_free(fl_index **ix)
{
    fl_index *x = *ix;
    if (!x) return;
    for (int i = 0; x->layer && i < x->hp.n_layer; i++) free(x->layer[i].per_expert);
    for (int i = 0; x->mtp && i < x->hp.n_mtp; i++) free(x->mtp[i].per_expert);
    for (int i = 0; i < x->n_notes; i++) free(x->note[i]);
    free(x->layer);
    free(x->mtp);
    free(x->note);
    free(x->extra);
    free(x);
    *ix = NULL;
}

uint64_t fl_index_digest(const fl_index *ix)
{
    const bool stored[] = {ix->hp.norm_add_one, ix->hp.a_is_log, ix->hp.v_grouped};
    uint64_t h = fl_hash64(stored, sizeof stored);
    for (int i = 0; i < ix->hp.n_layer; i++)
        for (int r = 0; r < FL_N_ROLES; r++) {
            const fl_tref *t = (const fl_tref *)((const char *)&ix->layer[i] + fl_roles[r].at);
            if (!t->tensor || fl_roles[r].where == IN_BWD) continue;
            h = fl_hash64_seeded(fl_roles[r].gguf, strlen(fl_roles[r].gguf), h);
            h = fl_hash64_seeded(t->tensor->name, strlen(t->tensor->name), h);
        }
    return h;
}

bool fl_index_role_fits(const fl_index *ix, const char *name, const fl_tensor *t)
{
    for (int r = 0; r < FL_N_ROLES; r++) {
        if (strcmp(fl_roles[r].gguf, name) != 0) continue;
        const uint8_t *ne = fl_roles[r].ne;
        return same_shape(t, (const int64_t[3]){fl_role_dim(&ix->hp, ne[0]),
                                                fl_role_dim(&ix->hp, ne[1]),
                                                fl_role_dim(&ix->hp, ne[2])});
    }
    return false;
}

/* ---- experts and sizes -------------------------------------------------------------------- */

const fl_layer_refs *fl_index_layer(const fl_index *ix, int layer)
{
    assert(layer < ix->hp.n_layer + (ix->hp.n_mtp > 0));
    return layer < ix->hp.n_layer ? &ix->layer[layer] : &ix->mtp[0];
}

void fl_index_expert(const fl_index *ix, int layer, int expert, int part, fl_expert_mat *out)
{
    const fl_layer_refs *l = fl_index_layer(ix, layer);
    const int64_t cols = part == 2 ? ix->hp.d_ff : ix->hp.d_model;
    const int64_t rows = part == 2 ? ix->hp.d_model : ix->hp.d_ff;
    const bool fused = part < 2 && l->exp_gate_up.tensor;
    const fl_tref *ref = fused       ? &l->exp_gate_up
                         : part == 0 ? &l->exp_gate
                         : part == 1 ? &l->exp_up
                                     : &l->exp_down;
    const fl_tensor *t = l->per_expert ? l->per_expert[expert * 3 + part] : ref->tensor;
    *out = (fl_expert_mat){.type = t->type, .rows = rows, .cols = cols, .file = t->file};
    out->bytes = fl_type_row_bytes(t->type, (uint64_t)cols) * (uint64_t)rows;
    out->offset = t->offset;
    if (l->per_expert) return;
    out->scale = ref->scale;
    out->offset += (uint64_t)expert * out->bytes * (fused ? 2 : 1);
    if (fused && part == 1) out->offset += out->bytes;
}

static int64_t elems(const fl_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

/* Adds a tensor and its scale; parameters may be NULL. */
static void add(uint64_t *bytes, uint64_t *params, const fl_tref *r)
{
    if (!r->tensor) return;
    *bytes += r->tensor->bytes + (r->scale ? r->scale->bytes : 0);
    if (params) *params += (uint64_t)elems(r->tensor);
}

static void measure_layer(const fl_index *ix, const fl_layer_refs *l, fl_index_sizes *s,
                          uint64_t *params, uint64_t *expert_params)
{
    for (int r = 0; r < FL_N_ROLES; r++) {
        const fl_tref *ref = (const fl_tref *)((const char *)l + fl_roles[r].at);
        uint64_t *at = &s->attention;
        switch ((fl_role_where)fl_roles[r].where) {
        case IN_FULL: break;
        case IN_GDN: at = &s->gdn; break;
        case IN_BWD: at = &s->bwd; break;
        case IN_MTP: at = &s->norms; break;
        case IN_FUSED:
        case IN_APART:
        case IN_DOWN: at = &s->experts; break;
        case IN_ALL:
            at = fl_roles[r].at == AT(router)                                        ? &s->router
                 : fl_roles[r].at == AT(attn_norm) || fl_roles[r].at == AT(ffn_norm) ? &s->norms
                                                                                     : &s->shared;
            break;
        }
        add(at, at == &s->experts ? expert_params : params, ref);
    }
    for (int e = 0; l->per_expert && e < ix->hp.n_expert * 3; e++)
        add(&s->experts, expert_params, &(fl_tref){l->per_expert[e], NULL});
}

static uint64_t sum(const fl_index_sizes *s)
{
    return s->embed + s->output + s->attention + s->gdn + s->bwd + s->experts + s->shared +
           s->router + s->norms;
}

void fl_index_measure(const fl_index *ix, fl_index_sizes *out)
{
    fl_index_sizes s = {0};
    uint64_t params = 0, experts = 0, embed = 0, none = 0;
    const bool tied = ix->output.tensor == ix->embed.tensor;
    add(&s.embed, &embed, &ix->embed);
    if (!tied) add(&s.output, &params, &ix->output);
    add(&s.norms, &params, &ix->output_norm);
    for (int i = 0; i < ix->hp.n_layer; i++)
        measure_layer(ix, &ix->layer[i], &s, &params, &experts);
    const uint64_t text = sum(&s);
    for (int i = 0; i < ix->hp.n_mtp; i++) {
        fl_index_sizes m = {0};
        measure_layer(ix, &ix->mtp[i], &m, &none, &none);
        s.mtp += sum(&m);
    }
    for (size_t i = 0; i < fl_source_n_tensors(ix->src); i++)
        s.total += fl_source_tensor(ix->src, i)->bytes;
    s.other = s.total - text - s.mtp;
    s.params_total = params + experts + embed;
    s.params_active = params + experts / (uint64_t)ix->hp.n_expert * (uint64_t)ix->hp.top_k +
                      (tied ? embed : (uint64_t)ix->hp.d_model);
    *out = s;
}
