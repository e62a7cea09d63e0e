#include "tests/support/make_model.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/bytes.h"
#include "tests/support/make_tensors.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "make_model: %s\n", what);
    exit(3);
}

fl_make fl_make_default(void)
{
    return (fl_make){.arch = "qwen35moe",
                     .seed = 1,
                     .n_layer = 4,
                     .interval = 4,
                     .d_model = 256,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .head_dim = 64,
                     .rot_dim = 16,
                     .gdn_k_heads = 2,
                     .gdn_v_heads = 4,
                     .gdn_dim = 64,
                     .conv_kernel = 4,
                     .n_expert = 8,
                     .top_k = 2,
                     .d_ff = 256,
                     .d_ff_shared = 256,
                     .n_vocab = 512,
                     .n_ctx = 1024,
                     .type = FL_TYPE_F32,
                     .version = 3,
                     .n_files = 1,
                     .st_type = FL_TYPE_BF16,
                     .st_files = 1};
}

fl_make fl_make_tiny(void)
{
    fl_make m = fl_make_default();
    m.d_model = 64;
    m.n_head = 2;
    m.n_head_kv = 1;
    m.head_dim = 32;
    m.rot_dim = 8;
    m.gdn_dim = 16;
    m.n_expert = 4;
    m.d_ff = m.d_ff_shared = 32;
    m.n_vocab = 320;
    return m;
}

void fl_make_quick_experts(fl_make *m)
{
    if (!FL_SANITIZED) return;
    m->mix[0].part = "_exps";
    m->mix[0].type = FL_TYPE_Q8_0;
}

/* ---- vocabulary --------------------------------------------------------------------------- */

#define SPACE "\xc4\xa0" /* its byte-level character */
/* Merges over byte-level characters. */
static const char *const merge[][2] = {{"t", "h"}, {"th", "e"}, {"i", "n"},   {SPACE, "the"},
                                       {"a", "n"}, {"e", "r"},  {SPACE, "a"}, {SPACE, "in"}};
static const char *const joined[] = {"th", "the", "in",      SPACE "the",
                                     "an", "er",  SPACE "a", SPACE "in"};
enum { N_MERGES = sizeof merge / sizeof *merge };

static const char *const special[] = {"<|endoftext|>",    "<|im_start|>", "<|im_end|>",
                                      "<tool_call>",      "</tool_call>", "<tool_response>",
                                      "</tool_response>", "<think>",      "</think>"};
enum { N_SPECIAL = sizeof special / sizeof *special, FIRST_SPECIAL = 256 + N_MERGES };

static bool is_control(int i) { return strncmp(special[i], "<|", 2) == 0; }

/* Spelling of a token into buf. */
static const char *spell(int id, char buf[32])
{
    if (id < 256) {
        /* GPT-2: printable bytes stand for themselves, the others for U+0100 and on. */
        int shifted = 0;
        for (int b = 0; b < id; b++) shifted += b < 0x21 || (b > 0x7e && b < 0xa1) || b == 0xad;
        const bool plain = !(id < 0x21 || (id > 0x7e && id < 0xa1) || id == 0xad);
        const int c = plain ? id : 256 + shifted;
        if (c < 0x80)
            snprintf(buf, 32, "%c", c);
        else
            snprintf(buf, 32, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
    } else if (id < FIRST_SPECIAL) {
        snprintf(buf, 32, "%s", joined[id - 256]);
    } else if (id < FIRST_SPECIAL + N_SPECIAL) {
        snprintf(buf, 32, "%s", special[id - FIRST_SPECIAL]);
    } else {
        snprintf(buf, 32, "[PAD%d]", id);
    }
    return buf;
}

static int token_type(int id)
{
    if (id < FIRST_SPECIAL) return 1;
    if (id >= FIRST_SPECIAL + N_SPECIAL) return 5;
    return is_control(id - FIRST_SPECIAL) ? 3 : 4;
}

int fl_make_token(const fl_make *m, const char *text)
{
    char buf[32];
    for (int i = 0; i < m->n_vocab; i++)
        if (strcmp(spell(i, buf), text) == 0) return i;
    return -1;
}

int fl_make_mask_id(const fl_make *m)
{
    if (m->no_tokenizer) return m->n_vocab - 1;
    need(m->n_vocab > FIRST_SPECIAL + N_SPECIAL, "n_vocab must be at least 274");
    return FIRST_SPECIAL + N_SPECIAL;
}

/* ---- GGUF --------------------------------------------------------------------------------- */

/* Metadata under construction; keys without a dot at the start get the architecture's prefix. */
typedef struct meta {
    fl_bytes b;
    uint64_t n;
    const char *arch;
} meta;

static void key(meta *k, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", *name == '.' ? k->arch : "", name);
    fl_bytes_str(&k->b, full);
    k->n++;
}

static void put_u32(meta *k, const char *name, int v)
{
    key(k, name);
    fl_bytes_u32(&k->b, 4);
    fl_bytes_u32(&k->b, (uint32_t)v);
}

static void put_u16(meta *k, const char *name, int v)
{
    key(k, name);
    fl_bytes_u32(&k->b, 2);
    fl_bytes_u8(&k->b, (uint8_t)v);
    fl_bytes_u8(&k->b, (uint8_t)(v >> 8));
}

static void put_f32(meta *k, const char *name, float v)
{
    key(k, name);
    fl_bytes_u32(&k->b, 6);
    fl_bytes_f32(&k->b, v);
}

static void put_bool(meta *k, const char *name, bool v)
{
    key(k, name);
    fl_bytes_u32(&k->b, 7);
    fl_bytes_u8(&k->b, v);
}

static void put_str(meta *k, const char *name, const char *v)
{
    key(k, name);
    fl_bytes_u32(&k->b, 8);
    fl_bytes_str(&k->b, v);
}

static void put_array(meta *k, const char *name, uint32_t elem, int n)
{
    key(k, name);
    fl_bytes_u32(&k->b, 9);
    fl_bytes_u32(&k->b, elem);
    fl_bytes_u64(&k->b, (uint64_t)n);
}

static bool is_clover(const fl_make *m) { return strcmp(m->arch, "clover_moe") == 0; }

static void put_attention(meta *k, const fl_make *m)
{
    put_u32(k, ".attention.head_count", m->n_head);
    if (m->ollama) {
        put_array(k, ".attention.head_count_kv", 5, m->n_layer);
        for (int i = 0; i < m->n_layer; i++)
            fl_bytes_u32(&k->b, (i + 1) % m->interval ? 0 : (uint32_t)m->n_head_kv);
    } else {
        put_u32(k, ".attention.head_count_kv", m->n_head_kv);
    }
    put_u32(k, ".attention.key_length", m->head_dim);
    put_u32(k, ".attention.value_length", m->head_dim);
    put_f32(k, ".attention.layer_norm_rms_epsilon", 1e-6f);
    put_u32(k, ".rope.dimension_count", m->rot_dim);
    const int sections[] = {m->rot_dim / 2 - 2 * (m->rot_dim / 6), m->rot_dim / 6, m->rot_dim / 6,
                            0};
    put_array(k, ".rope.dimension_sections", 5, m->ollama ? 3 : 4);
    for (int i = 0; i < (m->ollama ? 3 : 4); i++) fl_bytes_u32(&k->b, (uint32_t)sections[i]);
    put_f32(k, ".rope.freq_base", 1e7f);
}

static void put_arch(meta *k, const fl_make *m)
{
    put_u32(k, ".block_count", m->n_layer + m->mtp);
    put_u32(k, ".context_length", m->n_ctx);
    put_u32(k, ".embedding_length", m->d_model);
    put_attention(k, m);
    put_u32(k, ".expert_count", m->n_expert);
    put_u32(k, ".expert_used_count", m->top_k);
    put_u32(k, ".expert_feed_forward_length", m->d_ff);
    put_u32(k, ".expert_shared_feed_forward_length", m->d_ff_shared);
    put_u32(k, ".ssm.conv_kernel", m->conv_kernel);
    put_u32(k, ".ssm.state_size", m->gdn_dim);
    put_u32(k, ".ssm.group_count", m->gdn_k_heads);
    put_u32(k, ".ssm.time_step_rank", m->gdn_v_heads);
    put_u32(k, ".ssm.inner_size", m->gdn_v_heads * m->gdn_dim);
    put_u32(k, ".full_attention_interval", m->interval);
    if (m->ollama || m->v_grouped) put_bool(k, ".ssm.v_head_reordered", !m->v_grouped);
    if (m->mtp) put_u32(k, ".nextn_predict_layers", 1);
    if (!is_clover(m)) return;
    if (!m->no_shared_count) put_u32(k, ".expert_shared_count", 1);
    put_u32(k, ".block_size", 32);
    put_u32(k, ".mask_token_id", fl_make_mask_id(m));
    put_f32(k, ".confidence_threshold", 0.95f);
    put_u32(k, ".expert_pool_size", 0);
}

static void put_tokenizer(meta *k, const fl_make *m)
{
    char buf[32];
    put_str(k, "tokenizer.ggml.model", "gpt2");
    put_str(k, "tokenizer.ggml.pre", "qwen35");
    put_array(k, "tokenizer.ggml.tokens", 8, m->n_vocab);
    for (int i = 0; i < m->n_vocab; i++) fl_bytes_str(&k->b, spell(i, buf));
    put_array(k, "tokenizer.ggml.token_type", 5, m->n_vocab);
    for (int i = 0; i < m->n_vocab; i++) fl_bytes_u32(&k->b, (uint32_t)token_type(i));
    put_array(k, "tokenizer.ggml.merges", 8, N_MERGES);
    for (int i = 0; i < N_MERGES; i++) {
        snprintf(buf, sizeof buf, "%s %s", merge[i][0], merge[i][1]);
        fl_bytes_str(&k->b, buf);
    }
    put_u32(k, "tokenizer.ggml.eos_token_id", fl_make_token(m, "<|im_end|>"));
    put_u32(k, "tokenizer.ggml.padding_token_id", fl_make_token(m, "<|endoftext|>"));
    put_bool(k, "tokenizer.ggml.add_bos_token", false);
}

/* One tensor as it goes into a GGUF file: name, shape and bytes. */
typedef struct blob {
    char name[80];
    uint32_t type, n_dims;
    uint64_t ne[3];
    uint8_t *data;
    size_t bytes;
} blob;

static uint32_t type_of(const fl_make *m, const fl_make_tensor *t)
{
    if (t->f32) return FL_TYPE_F32;
    for (size_t i = 0; i < sizeof m->mix / sizeof *m->mix && m->mix[i].part; i++)
        if (strstr(t->gguf, m->mix[i].part)) return m->mix[i].type;
    return m->type;
}

/* Values to a type; the row length must divide. */
static uint8_t *encode(uint32_t type, const float *v, int64_t n, int64_t cols, size_t *bytes)
{
    const fl_type_info *ti = fl_type_get(type);
    need(ti && ti->quantize, "a type that has no quantize function");
    need(cols % ti->block_elems == 0, "rows do not divide into blocks of the wanted type");
    *bytes = (size_t)(n / ti->block_elems) * ti->block_bytes;
    uint8_t *out = malloc(*bytes);
    need(out != NULL, "no memory");
    ti->quantize(v, out, n);
    return out;
}

static blob make_blob(const fl_make *m, const fl_make_tensor *t)
{
    blob b = {.type = type_of(m, t)};
    snprintf(b.name, sizeof b.name, "%s", t->gguf);
    float *v = fl_make_tensor_values(m, t);
    fl_make_to_gguf(m, t, v);
    const int64_t n = t->n * t->rows * t->cols;
    b.data = encode(b.type, v, n, t->vector ? n : t->cols, &b.bytes);
    free(v);
    const bool one_row = t->f32 && t->rows == 1; /* the shared gate is written as a vector */
    b.n_dims = t->vector || one_row ? 1 : t->n > 1 ? 3 : 2;
    b.ne[0] = (uint64_t)(b.n_dims == 1 ? n : t->cols);
    b.ne[1] = (uint64_t)t->rows;
    b.ne[2] = (uint64_t)t->n;
    return b;
}

/* The .scale companion of a matrix that may have one; false otherwise. */
static bool make_scale(const fl_make_tensor *t, const char *suffix, blob *b)
{
    static const char *const with[] = {
        "attn_q.weight",   "attn_k.weight",    "attn_v.weight",  "attn_output.weight",
        "attn_qkv.weight", "attn_gate.weight", "ssm_out.weight", "ssm_alpha.weight",
        "ssm_beta.weight", "_shexp.weight",    "_exps.weight",   "nextn.eh_proj.weight"};
    bool wanted = strcmp(t->gguf, "output.weight") == 0;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        wanted |= strstr(t->gguf, with[i]) != NULL;
    if (!wanted || strstr(t->gguf, "gate_inp") || strstr(t->gguf, "gate_up_exps")) return false;
    *b = (blob){.type = FL_TYPE_F32, .n_dims = 1, .ne = {(uint64_t)t->n, 1, 1}};
    snprintf(b->name, sizeof b->name, "%.*s%s", (int)(strlen(t->gguf) - 7), t->gguf, suffix);
    b->bytes = (size_t)t->n * 4;
    float *v = malloc(b->bytes);
    need(v != NULL, "no memory");
    for (int64_t e = 0; e < t->n; e++) v[e] = t->n == 1 ? 1.5f : 1 + (float)e / 8;
    b->data = (uint8_t *)v;
    return true;
}

static blob *make_blobs(const fl_make *m, int *n)
{
    int n_list;
    fl_make_tensor *list = fl_make_list(m, true, &n_list);
    blob *b = calloc((size_t)n_list * 3, sizeof *b);
    need(b != NULL, "no memory");
    *n = 0;
    for (int i = 0; i < n_list; i++) {
        b[(*n)++] = make_blob(m, &list[i]);
        if (m->scales && make_scale(&list[i], ".scale", &b[*n])) {
            ++*n;
            *n += make_scale(&list[i], ".input_scale", &b[*n]);
        }
    }
    free(list);
    return b;
}

/* One file with the tensors [from, to). */
static void write_file(const fl_make *m, const char *path, const meta *k, const blob *b, int from,
                       int to)
{
    const uint32_t align = m->alignment ? m->alignment : 32;
    fl_bytes out = {0};
    fl_bytes_gguf_head(&out, m->version, (uint64_t)(to - from), k->n);
    fl_bytes_put(&out, k->b.p, k->b.n);
    uint64_t offset = 0;
    for (int i = from; i < to; i++) {
        fl_bytes_tensor(&out, b[i].name, b[i].n_dims, b[i].ne, b[i].type, offset);
        offset += (b[i].bytes + align - 1) / align * align;
    }
    for (int i = from; i < to; i++) {
        fl_bytes_pad(&out, align);
        fl_bytes_put(&out, b[i].data, b[i].bytes);
    }
    fl_tmp_write(path, out.p, out.n);
    fl_bytes_free(&out);
}

static void put_split(meta *k, const fl_make *m, int no, int n_tensors)
{
    if (m->n_files < 2) return;
    put_u16(k, "split.no", no);
    put_u16(k, "split.count", m->n_files);
    key(k, "split.tensors.count");
    fl_bytes_u32(&k->b, 5);
    fl_bytes_u32(&k->b, (uint32_t)n_tensors);
}

static void put_model(meta *k, const fl_make *m)
{
    put_str(k, "general.architecture", m->arch);
    put_str(k, "general.name", "made for a test");
    put_arch(k, m);
    if (!m->no_tokenizer) put_tokenizer(k, m);
}

void fl_make_metadata(const fl_make *m, fl_bytes *out)
{
    meta k = {.arch = m->arch};
    put_model(&k, m);
    fl_bytes_gguf_head(out, 3, 0, k.n);
    fl_bytes_put(out, k.b.p, k.b.n);
    fl_bytes_free(&k.b);
}

void fl_make_gguf(const fl_make *m, const char *path)
{
    int n;
    blob *b = make_blobs(m, &n);
    const size_t stem = strlen(path) - 5;
    need(m->n_files < 2 || strcmp(path + stem, ".gguf") == 0, "the path must end in .gguf");
    for (int f = 0; f < (m->n_files > 1 ? m->n_files : 1); f++) {
        meta k = {.arch = m->arch};
        if (f == 0) put_model(&k, m);
        if (m->alignment) put_u32(&k, "general.alignment", (int)m->alignment);
        put_split(&k, m, f, n);
        char shard[4096];
        snprintf(shard, sizeof shard, "%.*s-%05d-of-%05d.gguf", (int)stem, path, f + 1, m->n_files);
        const int parts = m->n_files > 1 ? m->n_files : 1;
        write_file(m, parts > 1 ? shard : path, &k, b, n * f / parts, n * (f + 1) / parts);
        fl_bytes_free(&k.b);
    }
    for (int i = 0; i < n; i++) free(b[i].data);
    free(b);
}

/* ---- safetensors -------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void print(fl_bytes *b, const char *fmt, ...)
{
    char buf[2048];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    need(n >= 0 && n < (int)sizeof buf, "text too long");
    fl_bytes_put(b, buf, (size_t)n);
}

/* Full name of a tensor in the folder. */
static void full_name(const fl_make *m, const fl_make_tensor *t, char buf[128])
{
    const bool bare = strncmp(t->hf, "mtp.", 4) == 0 || strncmp(t->hf, "lm_head", 7) == 0;
    snprintf(buf, 128, "%s%s", bare ? "" : m->st_plain ? "model." : "model.language_model.", t->hf);
}

static void print_shape(fl_bytes *b, const fl_make_tensor *t)
{
    const int64_t n = t->n * t->rows * t->cols;
    if (t->vector)
        print(b, "[%lld]", (long long)n);
    else if (t->kind == FL_MAKE_CONV)
        print(b, "[%lld,1,%lld]", (long long)t->rows, (long long)t->cols);
    else if (t->n > 1)
        print(b, "[%lld,%lld,%lld]", (long long)t->n, (long long)t->rows, (long long)t->cols);
    else
        print(b, "[%lld,%lld]", (long long)t->rows, (long long)t->cols);
}

static const char *st_name(uint32_t type)
{
    need(type == FL_TYPE_F32 || type == FL_TYPE_F16 || type == FL_TYPE_BF16,
         "st_type must be F32, F16 or BF16");
    return type == FL_TYPE_F32 ? "F32" : type == FL_TYPE_F16 ? "F16" : "BF16";
}

static void write_shard(const fl_make *m, const char *path, const fl_make_tensor *t, int from,
                        int to)
{
    fl_bytes head = {0}, data = {0}, out = {0};
    char name[128];
    print(&head, "{\"__metadata__\":{\"format\":\"pt\"");
    if (m->st_license) print(&head, ",\"license\":\"%s\"", m->st_license);
    print(&head, "}");
    for (int i = from; i < to; i++) {
        const uint32_t type = t[i].st_f32 ? (uint32_t)FL_TYPE_F32 : m->st_type;
        const int64_t n = t[i].n * t[i].rows * t[i].cols;
        size_t bytes;
        float *v = fl_make_tensor_values(m, &t[i]);
        uint8_t *p = encode(type, v, n, n, &bytes);
        full_name(m, &t[i], name);
        print(&head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":", name, st_name(type));
        print_shape(&head, &t[i]);
        print(&head, ",\"data_offsets\":[%zu,%zu]}", data.n, data.n + bytes);
        fl_bytes_put(&data, p, bytes);
        free(p);
        free(v);
    }
    print(&head, "}");
    while (head.n % 8) print(&head, " ");
    fl_bytes_u64(&out, head.n);
    fl_bytes_put(&out, head.p, head.n);
    fl_bytes_put(&out, data.p, data.n);
    fl_tmp_write(path, out.p, out.n);
    fl_bytes_free(&head);
    fl_bytes_free(&data);
    fl_bytes_free(&out);
}

static void write_config(const fl_make *m, const char *dir)
{
    fl_bytes b = {0};
    const char *type = is_clover(m) ? "clover_moe" : "qwen3_5_moe";
    print(&b, "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"tie_word_embeddings\":%s",
          is_clover(m) ? "CloverMoeForCausalLM" : "Qwen3_5MoeForConditionalGeneration", type,
          m->tied ? "true" : "false");
    if (m->config_license) print(&b, ",\"license\":\"%s\"", m->config_license);
    if (!m->st_flat) print(&b, ",\"text_config\":{\"model_type\":\"%s_text\"", type);
    print(&b, ",\"num_hidden_layers\":%d,\"hidden_size\":%d,\"num_attention_heads\":%d", m->n_layer,
          m->d_model, m->n_head);
    print(&b, ",\"num_key_value_heads\":%d,\"head_dim\":%d,\"rms_norm_eps\":1e-06", m->n_head_kv,
          m->head_dim);
    print(&b, ",\"full_attention_interval\":%d,\"layer_types\":[", m->interval);
    for (int i = 0; i < m->n_layer; i++)
        print(&b, "%s\"%s_attention\"", i ? "," : "", (i + 1) % m->interval ? "linear" : "full");
    print(&b, "],\"linear_conv_kernel_dim\":%d,\"linear_key_head_dim\":%d", m->conv_kernel,
          m->gdn_dim);
    print(&b, ",\"linear_value_head_dim\":%d,\"linear_num_key_heads\":%d", m->gdn_dim,
          m->gdn_k_heads);
    print(&b, ",\"linear_num_value_heads\":%d,\"num_experts\":%d,\"num_experts_per_tok\":%d",
          m->gdn_v_heads, m->n_expert, m->top_k);
    print(&b, ",\"moe_intermediate_size\":%d,\"shared_expert_intermediate_size\":%d", m->d_ff,
          m->d_ff_shared);
    print(&b, ",\"vocab_size\":%d,\"max_position_embeddings\":%d", m->n_vocab, m->n_ctx);
    print(&b, ",\"partial_rotary_factor\":%g,\"rope_parameters\":{\"rope_type\":\"default\",",
          (double)m->rot_dim / m->head_dim);
    print(&b, "\"rope_theta\":10000000,\"partial_rotary_factor\":%g}",
          (double)m->rot_dim / m->head_dim);
    print(&b, ",\"mtp_num_hidden_layers\":%d,\"eos_token_id\":%d", m->mtp,
          fl_make_token(m, "<|endoftext|>"));
    if (is_clover(m))
        print(&b,
              ",\"block_size\":32,\"mask_token_id\":%d,\"confidence_threshold\":0.95,"
              "\"expert_pool_size\":0",
              fl_make_mask_id(m));
    print(&b, m->st_flat ? "}" : "}}");
    char *path = fl_tmp_path(dir, "config.json");
    fl_tmp_write(path, b.p, b.n);
    free(path);
    b.n = 0;
    print(&b, "{\"eos_token_id\":[%d,%d],\"temperature\":1.0,\"top_k\":20,\"top_p\":0.95}",
          fl_make_token(m, "<|im_end|>"), fl_make_token(m, "<|endoftext|>"));
    path = fl_tmp_path(dir, "generation_config.json");
    fl_tmp_write(path, b.p, b.n);
    free(path);
    fl_bytes_free(&b);
}

/* A token's spelling as a JSON string (only quote and backslash need an escape). */
static void print_json(fl_bytes *b, const char *s)
{
    fl_bytes_u8(b, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fl_bytes_u8(b, '\\');
        fl_bytes_u8(b, (uint8_t)*s);
    }
    fl_bytes_u8(b, '"');
}

static void write_tokenizer(const char *dir)
{
    static const char regex[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "
        "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"
        "\\\\s+";
    fl_bytes b = {0};
    char buf[32];
    print(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < N_SPECIAL; i++)
        print(&b,
              "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":"
              "false,\"normalized\":false,\"special\":%s}",
              i ? "," : "", FIRST_SPECIAL + i, special[i], is_control(i) ? "true" : "false");
    print(&b, "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",");
    print(&b, "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},", regex);
    print(&b, "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",");
    print(&b, "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},");
    print(&b, "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
              "true,\"trim_offsets\":true,\"use_regex\":true},");
    print(&b, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
              "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_unk\":false,"
              "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    for (int i = 0; i < FIRST_SPECIAL; i++) {
        if (i) print(&b, ",");
        print_json(&b, spell(i, buf));
        print(&b, ":%d", i);
    }
    print(&b, "},\"merges\":[");
    for (int i = 0; i < N_MERGES; i++)
        print(&b, "%s[\"%s\",\"%s\"]", i ? "," : "", merge[i][0], merge[i][1]);
    print(&b, "]}}");
    char *path = fl_tmp_path(dir, "tokenizer.json");
    fl_tmp_write(path, b.p, b.n);
    free(path);
    fl_bytes_free(&b);
}

void fl_make_safetensors(const fl_make *m, const char *dir)
{
    need(mkdir(dir, 0777) == 0 || errno == EEXIST, dir);
    write_config(m, dir);
    if (!m->no_tokenizer) write_tokenizer(dir);
    int n;
    fl_make_tensor *t = fl_make_list(m, false, &n);
    fl_bytes map = {0};
    const int parts = m->st_files > 1 ? m->st_files : 1;
    print(&map, "{\"metadata\":{},\"weight_map\":{");
    for (int f = 0; f < parts; f++) {
        char file[64] = "model.safetensors", name[128];
        if (parts > 1) snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", f + 1, parts);
        char *path = fl_tmp_path(dir, file);
        const int from = n * f / parts, to = n * (f + 1) / parts;
        write_shard(m, path, t, from, to);
        free(path);
        for (int i = from; i < to; i++) {
            full_name(m, &t[i], name);
            print(&map, "%s\"%s\":\"%s\"", i ? "," : "", name, file);
        }
    }
    print(&map, "}}");
    char *path = fl_tmp_path(dir, "model.safetensors.index.json");
    if (parts > 1) fl_tmp_write(path, map.p, map.n);
    free(path);
    fl_bytes_free(&map);
    free(t);
}

float *fl_make_values(const fl_make *m, const char *hf_name, int64_t *n)
{
    int count;
    fl_make_tensor *t = fl_make_list(m, false, &count);
    float *v = NULL;
    for (int i = 0; i < count && !v; i++) {
        if (strcmp(t[i].hf, hf_name) != 0) continue;
        v = fl_make_tensor_values(m, &t[i]);
        *n = t[i].n * t[i].rows * t[i].cols;
    }
    free(t);
    return v;
}
