#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/model/index_parts.h"
#include "runtime/model/jscan.h"

static void add_stop(fl_hparams *hp, int64_t id)
{
    if (id < 0 || id >= hp->n_vocab || hp->n_stop_ids == FL_MAX_STOP_IDS) return;
    for (int i = 0; i < hp->n_stop_ids; i++)
        if (hp->stop_ids[i] == id) return;
    hp->stop_ids[hp->n_stop_ids++] = (int32_t)id;
}

static int32_t token_key(const fl_gguf *g, const char *key, int64_t n_vocab)
{
    const int64_t v = fl_kv_int(fl_gguf_find(g, key), -1);
    return v >= 0 && v < n_vocab ? (int32_t)v : -1;
}

/* The two texts that end an answer. */
static const char *const ends[] = {"<|im_end|>", "<|endoftext|>"};

static bool is_end(fl_str s, int e)
{
    return s.n == strlen(ends[e]) && memcmp(s.p, ends[e], s.n) == 0;
}

/* They are looked up in the vocabulary, from its end. */
static void stops_in_vocabulary(fl_hparams *hp, const fl_gguf *g)
{
    const fl_kv *kv = fl_gguf_find(g, "tokenizer.ggml.tokens");
    fl_str *token =
        kv && kv->type == FL_GGUF_ARRAY ? malloc((kv->count + 1) * sizeof *token) : NULL;
    if (token && fl_kv_strings(kv, token))
        for (int e = 0; e < 2; e++)
            for (uint64_t i = kv->count; i-- > 0;)
                if (is_end(token[i], e)) {
                    add_stop(hp, (int64_t)i);
                    break;
                }
    free(token);
}

static void add_json_stops(fl_hparams *hp, const fl_json *j)
{
    if (fl_json_kind_of(j) != FL_JSON_ARRAY) add_stop(hp, fl_json_int(j, -1));
    for (size_t i = 0; i < fl_json_size(j); i++) add_stop(hp, fl_json_int(fl_json_at(j, i), -1));
}

/* One object of added_tokens. */
static fl_status added_token(fl_hparams *hp, fl_jscan *c)
{
    fl_str key, content = {"", 0};
    uint64_t id = UINT64_MAX;
    FL_TRY(fl_jscan_expect(c, '{'));
    do {
        FL_TRY(fl_jscan_string(c, &key, "a name"));
        FL_TRY(fl_jscan_expect(c, ':'));
        if (key.n == 2 && memcmp(key.p, "id", 2) == 0)
            FL_TRY(fl_jscan_number(c, &id));
        else if (key.n == 7 && memcmp(key.p, "content", 7) == 0)
            FL_TRY(fl_jscan_string(c, &content, "a text"));
        else
            FL_TRY(fl_jscan_skip(c));
    } while (fl_jscan_take(c, ','));
    for (int e = 0; e < 2; e++)
        if (is_end(content, e) && id < INT32_MAX) add_stop(hp, (int64_t)id);
    return fl_jscan_expect(c, '}');
}

/* tokenizer.json: its added_tokens stand before the vocabulary. What is damaged there is the
 * tokenizer's to report. */
static fl_status stops_in_tokenizer(fl_hparams *hp, fl_jscan *c)
{
    fl_str key;
    FL_TRY(fl_jscan_expect(c, '{'));
    do {
        FL_TRY(fl_jscan_string(c, &key, "a name"));
        FL_TRY(fl_jscan_expect(c, ':'));
        if (key.n != 12 || memcmp(key.p, "added_tokens", 12) != 0) {
            FL_TRY(fl_jscan_skip(c));
            continue;
        }
        FL_TRY(fl_jscan_expect(c, '['));
        do FL_TRY(added_token(hp, c));
        while (fl_jscan_take(c, ','));
        return FL_OK;
    } while (fl_jscan_take(c, ','));
    return FL_OK;
}

static void read_tokenizer(fl_hparams *hp, const char *path)
{
    enum { MOST = 64 << 20 };
    fl_err ignored = {0};
    char *text;
    uint64_t n;
    if (!path || fl_file_load(path, MOST, &text, &n, &ignored) != FL_OK) return;
    fl_jscan c = {text, text + n, text, 0, path, &ignored};
    if (stops_in_tokenizer(hp, &c) == FL_OK && hp->eos_id < 0 && hp->n_stop_ids)
        hp->eos_id = hp->stop_ids[0];
    free(text);
}

void fl_stop_ids_read(fl_hparams *hp, const fl_config *c)
{
    hp->bos_id = hp->eos_id = hp->pad_id = -1;
    if (c->gguf) {
        hp->bos_id = token_key(c->gguf, "tokenizer.ggml.bos_token_id", hp->n_vocab);
        hp->eos_id = token_key(c->gguf, "tokenizer.ggml.eos_token_id", hp->n_vocab);
        hp->pad_id = token_key(c->gguf, "tokenizer.ggml.padding_token_id", hp->n_vocab);
        add_stop(hp, hp->eos_id);
        add_stop(hp, token_key(c->gguf, "tokenizer.ggml.eot_token_id", hp->n_vocab));
        stops_in_vocabulary(hp, c->gguf);
        return;
    }
    int64_t v;
    add_json_stops(hp, fl_json_get(fl_source_generation_config(c->src), "eos_token_id"));
    if (hp->n_stop_ids) hp->eos_id = hp->stop_ids[0];
    add_json_stops(hp, fl_config_json(c, "eos_token_id"));
    if (hp->n_stop_ids < 2) read_tokenizer(hp, fl_source_tokenizer_path(c->src));
    if (hp->eos_id < 0 && hp->n_stop_ids) hp->eos_id = hp->stop_ids[0];
    if (fl_config_int(c, NULL, "bos_token_id", &v) && v >= 0 && v < hp->n_vocab)
        hp->bos_id = (int32_t)v;
    if (fl_config_int(c, NULL, "pad_token_id", &v) && v >= 0 && v < hp->n_vocab)
        hp->pad_id = (int32_t)v;
}
