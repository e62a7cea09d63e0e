/* clover-tiny as a GGUF file that is wired otherwise than its definition and does not say so: what
 * `fourleaf probe` has to find out.
 *
 *   reexport MODEL OUT.gguf KIND
 *
 * KIND: names   the tensors of the backward branch under other names
 *       norms   zero-centred norms        decay   A_log kept        heads   value heads grouped
 *       mask    the mask token is another id than the file says (two rows of the embedding and of
 *               the output trade places)
 *       random  the branch's tensors are noise */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/gguf_write.h"
#include "runtime/tools/conversion.h"
#include "runtime/tools/conversion_meta.h"
#include "tests/eval/common.h"

static fl_err err;
static const char *kind;

static void need(fl_status st)
{
    if (st != FL_OK) ev_die("%s", err.msg);
}

static bool is(const char *k) { return strcmp(kind, k) == 0; }

/* blk.N.ssm_bwd_X under another name, as somebody else might call it. */
static const char *name_of(const fl_conv_tensor *t, char buf[FL_CONV_NAME])
{
    static const char *const role[][2] = {{"alpha.weight", "in_proj_a.weight"},
                                          {"beta.weight", "in_proj_b.weight"},
                                          {"conv1d.weight", "kernel"},
                                          {"dt.bias", "dt"},
                                          {"mix", "read_out"},
                                          {"a", "A_log"}};
    const char *at = strstr(t->name, "ssm_bwd_");
    snprintf(buf, FL_CONV_NAME, "%s", t->name);
    for (int i = 0; at && is("names") && i < 6; i++) {
        if (strcmp(at + strlen("ssm_bwd_"), role[i][0]) != 0) continue;
        snprintf(buf, FL_CONV_NAME, "%.*sgdn_reverse.%s", (int)(at - t->name), t->name, role[i][1]);
    }
    return buf;
}

static void swap_rows(float *v, int64_t cols, int64_t a, int64_t b)
{
    for (int64_t i = 0; i < cols; i++) {
        const float x = v[a * cols + i];
        v[a * cols + i] = v[b * cols + i];
        v[b * cols + i] = x;
    }
}

/* A whole tensor as it goes into the file. */
static void write_tensor(fl_gguf_writer *w, const fl_conv *c, const fl_conv_tensor *t, int mask)
{
    const fl_type_info *ti = fl_type_get(t->type);
    const int64_t n = t->rows * t->cols;
    float *v = ev_alloc((size_t)n * sizeof *v);
    void *scratch = ev_alloc((size_t)(n + t->cols) * sizeof *v);
    uint8_t *out = ev_alloc((size_t)n * sizeof *v);
    need(fl_conv_read(c, t, 0, t->rows, v, scratch, &err));
    const bool table = !strcmp(t->name, "token_embd.weight") || !strcmp(t->name, "output.weight");
    if (is("mask") && table) swap_rows(v, t->cols, mask, mask + 3);
    if (is("random") && strstr(t->name, "ssm_bwd_"))
        for (int64_t i = 0; i < n; i++)
            v[i] = (float)(ev_hash((uint64_t)i + 1) >> 40) * 0x1p-24f - 1.0f;
    ti->quantize(v, out, n);
    need(fl_gguf_writer_write(w, out, (uint64_t)(n / ti->block_elems) * ti->block_bytes, &err));
    free(v);
    free(scratch);
    free(out);
}

int main(int argc, char **argv)
{
    if (argc != 4) ev_die("usage: reexport MODEL OUT.gguf names|norms|decay|heads|mask|random");
    fl_source *src;
    fl_index *ix;
    fl_conv c;
    fl_gguf_writer *w;
    char name[FL_CONV_NAME];
    kind = argv[3];
    need(fl_source_open(&src, argv[1], &err));
    need(fl_index_build(&ix, src, &err));
    /* Not converted is what is taken to be converted already. */
    if (is("norms")) ix->hp.norm_add_one = false;
    if (is("decay")) ix->hp.a_is_log = false;
    if (is("heads")) ix->hp.v_grouped = false;
    if (is("names")) ix->clover.gdn_block_mode = FL_GDN_BLOCKEND;
    ix->clover.verdict = -1;
    need(fl_conv_plan(&c, ix, true, &err));
    for (int i = 0; i < c.n; i++) fl_conv_set_type(&c.tensor[i], FL_TYPE_BF16);
    need(fl_conv_settle(&c, true, &err));
    need(fl_gguf_writer_create(&w, argv[2], 0, &err));
    need(fl_conv_metadata(w, ix, "clover_moe", FL_TYPE_BF16, &err));
    for (int i = 0; i < c.n; i++) {
        const fl_conv_tensor *t = &c.tensor[i];
        need(fl_gguf_add_tensor(w, name_of(t, name), t->type, t->n_dims, t->ne, &err));
    }
    need(fl_gguf_writer_begin(w, &err));
    for (int i = 0; i < c.n; i++) write_tensor(w, &c, &c.tensor[i], ix->clover.mask_id);
    need(fl_gguf_writer_commit(&w, &err));
    fl_conv_fini(&c);
    fl_index_free(&ix);
    fl_source_close(&src);
    return 0;
}
