#include "runtime/tools/shape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/model/gguf_write.h"
#include "runtime/model/index_roles.h"
#include "runtime/tools/recipe.h"

typedef struct shape {
    const char *name, *arch, *title;
    bool blocks; /* a mask token, and GDN layers that read blocks backwards */
} shape;

static const shape shapes[] = {
    {"clover-35b-a3b", "clover_moe", "Clover-35B-A3B", true},
    {"qwen3.6-35b-a3b", "qwen35moe", "Qwen3.6-35B-A3B", false},
};

enum { FULL_INTERVAL = 4, BLOCK = 32, MASK_ID = 248077 };

static const fl_hparams real = {.n_layer = 40,
                                .d_model = 2048,
                                .n_vocab = 248320,
                                .n_ctx_train = 262144,
                                .n_head = 16,
                                .n_head_kv = 2,
                                .head_dim = 256,
                                .rot_dim = 64,
                                .rope_base = 1e7,
                                .eps = 1e-6f,
                                .n_expert = 256,
                                .top_k = 8,
                                .d_ff = 512,
                                .d_ff_shared = 512,
                                .conv_kernel = 4,
                                .gdn_dim = 128,
                                .gdn_k_heads = 16,
                                .gdn_v_heads = 32};

static void put_settings(fl_gguf_writer *w, const shape *s)
{
    const struct {
        const char *key;
        int64_t value;
        bool of_blocks;
    } number[] = {
        {"block_count", real.n_layer, false},
        {"context_length", real.n_ctx_train, false},
        {"embedding_length", real.d_model, false},
        {"attention.head_count", real.n_head, false},
        {"attention.head_count_kv", real.n_head_kv, false},
        {"attention.key_length", real.head_dim, false},
        {"rope.dimension_count", real.rot_dim, false},
        {"expert_count", real.n_expert, false},
        {"expert_used_count", real.top_k, false},
        {"expert_feed_forward_length", real.d_ff, false},
        {"expert_shared_feed_forward_length", real.d_ff_shared, false},
        {"ssm.conv_kernel", real.conv_kernel, false},
        {"ssm.state_size", real.gdn_dim, false},
        {"ssm.group_count", real.gdn_k_heads, false},
        {"ssm.time_step_rank", real.gdn_v_heads, false},
        {"full_attention_interval", FULL_INTERVAL, false},
        {"expert_shared_count", 1, true},
        {"block_size", BLOCK, true},
        {"mask_token_id", MASK_ID, true},
    };
    char key[80];
    fl_gguf_put_str(w, "general.architecture", s->arch, strlen(s->arch));
    fl_gguf_put_str(w, "general.name", s->title, strlen(s->title));
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        if (number[i].of_blocks && !s->blocks) continue;
        snprintf(key, sizeof key, "%s.%s", s->arch, number[i].key);
        fl_gguf_put_u32(w, key, (uint32_t)number[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    fl_gguf_put_f32(w, key, real.eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    fl_gguf_put_f32(w, key, (float)real.rope_base);
}

/* In the type of the first rule that matches, as the quantizer takes it. */
static fl_status add(fl_gguf_writer *w, const fl_recipe *r, const fl_role_shape *t, fl_err *err)
{
    int rule = 0;
    while (rule < r->n - 1 && !fl_recipe_matches(r->rule[rule].pattern, t->name)) rule++;
    const uint32_t type = t->f32 ? FL_TYPE_F32 : r->rule[rule].type;
    return fl_gguf_add_tensor(w, t->name, type, t->n_dims, t->ne, err);
}

static fl_status add_tensors(fl_gguf_writer *w, const shape *s, const fl_recipe *r, fl_err *err)
{
    const fl_role_shape around[] = {
        {"token_embd.weight", 2, {real.d_model, real.n_vocab}, false},
        {"output.weight", 2, {real.d_model, real.n_vocab}, false},
        {"output_norm.weight", 1, {real.d_model}, true},
    };
    for (size_t i = 0; i < sizeof around / sizeof *around; i++) FL_TRY(add(w, r, &around[i], err));
    for (int layer = 0; layer < real.n_layer; layer++) {
        fl_role_shape list[FL_N_ROLES];
        const bool full = (layer + 1) % FULL_INTERVAL == 0;
        const int n = fl_role_shapes(&real, layer, full, s->blocks, list);
        for (int i = 0; i < n; i++) FL_TRY(add(w, r, &list[i], err));
    }
    return FL_OK;
}

/* A file in memory: `n` bytes, then zeros up to `whole`. */
static fl_status make_file(const char *name, const void *header, uint64_t n, uint64_t whole,
                           int *fd, fl_err *err)
{
    *fd = memfd_create(name, MFD_CLOEXEC);
    if (*fd >= 0 && write(*fd, header, n) == (ssize_t)n && ftruncate(*fd, (off_t)whole) == 0)
        return FL_OK;
    return FL_FAIL(err, FL_E_IO, errno, "--shape %s: a file in memory: %s", name, strerror(errno));
}

static fl_status open_shape(fl_model **out, const shape *s, fl_gguf_writer *w, const fl_recipe *r,
                            const fl_wiring *asked, fl_err *err)
{
    void *header = NULL;
    uint64_t n = 0;
    char path[32];
    int fd = -1;
    fl_status st;
    put_settings(w, s);
    FL_GO(add_tensors(w, s, r, err));
    FL_GO(fl_gguf_writer_layout(w, err));
    FL_GO(fl_gguf_writer_header(w, &header, &n, err));
    FL_GO(make_file(s->name, header, n, fl_gguf_writer_bytes(w), &fd, err));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    st = fl_model_open_known(out, path, asked, err);
out:
    if (fd >= 0) close(fd); /* the model has opened its own */
    free(header);
    return st;
}

fl_status fl_shape_open(fl_model **out, const char *name, const fl_wiring *asked, fl_err *err)
{
    const shape *s = NULL;
    *out = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, name) == 0) s = &shapes[i];
    if (!s)
        return FL_FAIL(err, FL_E_ARG, 0, "--shape %s: expected %s or %s", name, shapes[0].name,
                       shapes[1].name);
    fl_recipe recipe = {0};
    fl_gguf_writer *w = NULL;
    fl_status st;
    FL_GO(fl_gguf_writer_create(&w, s->name, 0, err));
    FL_GO(fl_recipe_open(&recipe, "q4", NULL, err));
    st = open_shape(out, s, w, &recipe, asked, err);
out:
    fl_recipe_fini(&recipe);
    fl_gguf_writer_discard(&w);
    return st;
}
