#include "tests/support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/gguf_write.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/tokenizer_build.h"
#include "tests/golden/expand_vocab.h"
#include "tests/support/golden_text.h"
#include "tests/support/tmp.h"
#include "tests/support/vocab.h"

#define GOLD "tests/golden/tokenizer/"

static fl_tokenizer *qwen; /* the full vocabulary, shared by the tests */
static fl_tokenizer *tiny; /* tests/support/vocab.h */
static fl_err err;

static char *dir; /* of temporary files */

static fl_status load_qwen(fl_tokenizer **t, bool merges_as_strings)
{
    char *path = fl_tmp_path(dir, "qwen.json");
    assert_int_equal(
        golden_expand_vocab(GOLD "qwen36.vocab", GOLD "qwen36_head.json", path, merges_as_strings),
        0);
    const fl_status st = fl_tokenizer_from_json(t, path, &err);
    free(path);
    return st;
}

static int setup(void **state)
{
    (void)state;
    size_t n;
    char *json = fl_test_vocab_json(&n);
    dir = fl_tmp_make();
    fl_status st = fl_tokenizer_parse_json(&tiny, json, n, "tiny", &err);
    free(json);
    if (st == FL_OK) st = load_qwen(&qwen, false);
    if (st != FL_OK) fprintf(stderr, "%s\n", err.msg);
    return st;
}

static int teardown(void **state)
{
    (void)state;
    fl_tokenizer_close(&qwen);
    fl_tokenizer_close(&tiny);
    fl_tmp_remove(dir);
    return 0;
}

static bool same_ids(const fl_gold_item *it, const int32_t *ids, size_t n)
{
    if (n != it->n_ids) return false;
    for (uint32_t k = 0; k < it->n_ids; k++)
        if (ids[k] != fl_gold_id(it, k)) return false;
    return true;
}

static int count_differences(const fl_tokenizer *t, const fl_gold_items *g)
{
    int bad = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        int32_t *ids;
        size_t n;
        ASSERT_OK(fl_tokenizer_encode(t, g->item[i].text, g->item[i].n, true, &ids, &n, &err));
        if (!same_ids(&g->item[i], ids, n)) {
            print_error("item %u: %.*s\n", i, (int)g->item[i].n, g->item[i].text);
            bad++;
        }
        free(ids);
    }
    return bad;
}

static void golden(const char *path, uint32_t at_least)
{
    fl_gold_items g = fl_gold_items_load(path);
    assert_true(g.n >= at_least);
    assert_int_equal(count_differences(qwen, &g), 0);
    fl_gold_items_free(&g);
}

static void test_vectors(void **state) { (void)state, golden(GOLD "qwen36_vectors.bin", 25); }
static void test_strings(void **state) { (void)state, golden(GOLD "qwen36_strings.bin", 20000); }
static void test_invalid(void **state) { (void)state, golden(GOLD "qwen36_invalid.bin", 1000); }

/* FNV-1a over ids as u32, the count in front: what clover_tiny_hashes.bin holds for each text. */
static int count_wrong_hashes(const fl_tokenizer *t, const char *items, const uint8_t **hash)
{
    int bad = 0;
    fl_gold_items g = fl_gold_items_load(items);
    for (uint32_t i = 0; i < g.n; i++, *hash += 12) {
        int32_t *ids;
        size_t n;
        uint64_t h = 0xCBF29CE484222325u, want;
        ASSERT_OK(fl_tokenizer_encode(t, g.item[i].text, g.item[i].n, true, &ids, &n, &err));
        for (size_t k = 0; k < n; k++) h = (h ^ (uint32_t)ids[k]) * 0x100000001B3u;
        memcpy(&want, *hash + 4, sizeof want);
        bad += n != golden_u32(*hash) || h != want;
        free(ids);
    }
    fl_gold_items_free(&g);
    return bad;
}

/* The tokenizer of the model that is shipped. */
static void test_clover_tiny(void **state)
{
    (void)state;
    fl_tokenizer *t;
    size_t size = 0;
    ASSERT_OK(fl_tokenizer_from_json(&t, "tests/clover_tiny/model/tokenizer.json", &err));
    fl_gold_items g = fl_gold_items_load(GOLD "clover_tiny_strings.bin");
    assert_true(g.n >= 500);
    assert_int_equal(count_differences(t, &g), 0);
    fl_gold_items_free(&g);
    uint8_t *file = golden_slurp(GOLD "clover_tiny_hashes.bin", &size);
    assert_non_null(file);
    assert_true(golden_u32(file) >= 21000 && size == 4 + 12 * (size_t)golden_u32(file));
    const uint8_t *hash = file + 4;
    assert_int_equal(count_wrong_hashes(t, GOLD "qwen36_vectors.bin", &hash), 0);
    assert_int_equal(count_wrong_hashes(t, GOLD "qwen36_strings.bin", &hash), 0);
    assert_int_equal(count_wrong_hashes(t, GOLD "qwen36_invalid.bin", &hash), 0);
    assert_ptr_equal(hash, file + size);
    free(file);
    fl_tokenizer_close(&t);
}

/* Lengths of pre-tokens in the normalised text, without any vocabulary. */
static void test_golden_splits(void **state)
{
    (void)state;
    fl_gold_items g = fl_gold_items_load(GOLD "splits.bin");
    assert_true(g.n >= 1000);
    for (uint32_t i = 0; i < g.n; i++) {
        size_t *ends, n, at = 0;
        ASSERT_OK(fl_tokenizer_split(tiny, g.item[i].text, g.item[i].n, &ends, &n, &err));
        assert_int_equal(n, g.item[i].n_ids);
        for (size_t k = 0; k < n; k++) {
            at += (size_t)fl_gold_id(&g.item[i], (uint32_t)k);
            assert_int_equal(ends[k], at);
        }
        free(ends);
    }
    fl_gold_items_free(&g);
}

/* `pieces` joined by '|' (which no text here holds). */
static void split_is(const char *text, const char *pieces)
{
    size_t *ends, n, at = 0;
    ASSERT_OK(fl_tokenizer_split(tiny, text, strlen(text), &ends, &n, &err));
    char got[512] = "";
    for (size_t k = 0; k < n; k++) {
        if (k) strcat(got, "|");
        strncat(got, text + at, ends[k] - at);
        at = ends[k];
    }
    free(ends);
    assert_string_equal(got, pieces);
}

static void test_splits_by_rule(void **state)
{
    (void)state;
    split_is("Hello, world!", "Hello|,| world|!");
    split_is("  multiple   spaces", " | multiple|  | spaces");
    split_is("123 + 456 = 579", "1|2|3| +| |4|5|6| =| |5|7|9");
    split_is("don't won't I'm you're", "don|'t| won|'t| I|'m| you|'re");
    split_is("I'LL 'Re 'x", "I|'LL| '|Re| '|x");
    split_is("Hello\nWorld", "Hello|\n|World");
    split_is("  a\n\nb  ", " | a|\n\n|b|  ");
    split_is("a  b", "a| | b");
    split_is("a  \n", "a|  \n");
    split_is("a \n \n  b", "a| \n \n| | b");
    split_is("你好，世界！", "你好|，世界|！");
    split_is("Qwen3.5：GPU 🚀\nnext\tline", "Qwen|3|.|5|：GPU| 🚀\n|next|\tline");
    split_is("\u0661\u06623", "\u0661|\u0662|3");
    split_is("a\uFE0F a\u0651 a\u093E", "a\uFE0F| a\u0651| a\u093E");
    split_is("!?\r\n\r\nx", "!?\r\n\r\n|x");
    split_is("\u00A0x\u3000\u2028y", "\u00A0x|\u3000|\u2028y");
    /* U+180E is no white space, and U+017F folds to s. */
    split_is("a \u180Eb", "a| \u180E|b");
    split_is("it'\u017F", "it|'\u017F");
    /* Letter, mark and digit of Unicode 15 and 16, unassigned. */
    split_is(".\U00031350a.\U0001611Eb", ".\U00031350a|.\U0001611Eb");
    split_is("\U0001E4F0a", "\U0001E4F0|a");
    split_is("a\U0003FFF0b", "a|\U0003FFF0b");
    split_is("a..\U0003FFF0b", "a|..\U0003FFF0|b");
}

static int32_t *encode(const fl_tokenizer *t, const char *s, size_t len, bool added, size_t *n)
{
    int32_t *ids;
    ASSERT_OK(fl_tokenizer_encode(t, s, len, added, &ids, n, &err));
    return ids;
}

/* The text that the ids stand for is `expect`. */
static void decodes_to(const fl_tokenizer *t, const int32_t *ids, size_t n, const char *expect,
                       size_t n_expect)
{
    fl_detok d;
    char buf[4096], *all = malloc(n_expect + 3 * n + 4096);
    size_t len = 0;
    assert_non_null(all);
    fl_detok_init(&d, t, true);
    for (size_t i = 0; i < n; i++) {
        const size_t k = fl_detok_push(&d, ids[i], buf, sizeof buf);
        memcpy(all + len, buf, k);
        len += k;
    }
    len += fl_detok_flush(&d, all + len, sizeof buf);
    assert_int_equal(len, n_expect);
    assert_memory_equal(all, expect, len);
    free(all);
}

static void test_normalisation(void **state)
{
    (void)state;
    /* text, its NFC; the last ones are beyond the table's Unicode 9 and stay */
    static const char *const pair[][2] = {
        {"e\u0301", "\u00E9"},
        {"q\u0323\u0301", "q\u0323\u0301"},
        {"q\u0301\u0323", "q\u0323\u0301"},
        {"\u212B \u2126", "\u00C5 \u03A9"},
        {"\u1100\u1161\u11A8", "\uAC01"},
        {"\u0958", "\u0915\u093C"},
        {"\u0344", "\u0308\u0301"},
        {"\u1E9B\u0323", "\u1E9B\u0323"},
        {"s\u0323\u0307", "\u1E69"},
        {"q\u0345\u1ABF\u0334", "q\u0345\u1ABF\u0334"},
        {"\U00011935\U00011930", "\U00011935\U00011930"},
        {"\U000105D2\u0307", "\U000105D2\u0307"},
    };
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        size_t n;
        int32_t *ids = encode(tiny, pair[i][0], strlen(pair[i][0]), true, &n);
        decodes_to(tiny, ids, n, pair[i][1], strlen(pair[i][1]));
        free(ids);
    }
}

static void test_added_tokens(void **state)
{
    (void)state;
    const int32_t start = fl_tokenizer_special(qwen, "<|im_start|>");
    const int32_t think = fl_tokenizer_special(qwen, "<think>");
    assert_int_equal(start, 248045);
    assert_int_equal(think, 248068);
    assert_int_equal(fl_tokenizer_special(qwen, "Hello"), -1);
    assert_int_equal(fl_tokenizer_special(qwen, "<|nothing|>"), -1);
    assert_int_equal(fl_tokenizer_kind(qwen, start), FL_TOKEN_CONTROL);
    assert_int_equal(fl_tokenizer_kind(qwen, think), FL_TOKEN_USER);
    assert_int_equal(fl_tokenizer_kind(qwen, fl_tokenizer_special(qwen, "<|fim_pad|>")),
                     FL_TOKEN_CONTROL);
    assert_int_equal(fl_tokenizer_kind(qwen, 9419), FL_TOKEN_NORMAL);
    assert_int_equal(fl_tokenizer_kind(qwen, -1), FL_TOKEN_UNUSED);
    assert_int_equal(fl_tokenizer_kind(qwen, fl_tokenizer_size(qwen)), FL_TOKEN_UNUSED);
    assert_int_equal(fl_tokenizer_size(qwen), 248077);

    /* As plain text no added token appears, and the text is the same. */
    static const char text[] = "a<|im_start|>user<think>\n";
    size_t n;
    int32_t *ids = encode(qwen, text, sizeof text - 1, false, &n);
    for (size_t i = 0; i < n; i++) assert_int_equal(fl_tokenizer_kind(qwen, ids[i]), 1);
    decodes_to(qwen, ids, n, text, sizeof text - 1);
    free(ids);
    ids = encode(qwen, text, sizeof text - 1, true, &n);
    assert_int_equal(ids[1], start);
    decodes_to(qwen, ids, n, text, sizeof text - 1);
    free(ids);
}

/* Longest match; a token that is sought in the normalised text; one that is not. */
static void test_added_matching(void **state)
{
    (void)state;
    size_t n;
    int32_t *ids = encode(tiny, "<a><a>>", 7, true, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], fl_tokenizer_special(tiny, "<a>"));
    assert_int_equal(ids[1], fl_tokenizer_special(tiny, "<a>>"));
    free(ids);
    /* ">" + U+0338 composes to U+226F: gone for the normalised token, still there for the raw. */
    ids = encode(tiny, "<n>\u0338", 5, true, &n);
    for (size_t i = 0; i < n; i++) assert_int_equal(fl_tokenizer_kind(tiny, ids[i]), 1);
    free(ids);
    ids = encode(tiny, "<n><a>\u0338", 8, true, &n);
    assert_int_equal(n, 4);
    assert_int_equal(ids[0], fl_tokenizer_special(tiny, "<n>"));
    assert_int_equal(ids[1], fl_tokenizer_special(tiny, "<a>"));
    free(ids);
}

static bool str_is(fl_str s, const char *want, size_t n)
{
    return s.n == n && !memcmp(s.p, want, n);
}

static void test_vocabulary(void **state)
{
    (void)state;
    assert_true(str_is(fl_tokenizer_piece(qwen, 1814), "\u0120world", 7));
    assert_true(str_is(fl_tokenizer_bytes(qwen, 1814), " world", 6));
    assert_true(str_is(fl_tokenizer_bytes(qwen, 248068), "<think>", 7));
    assert_true(str_is(fl_tokenizer_bytes(qwen, 271), "\n\n", 2));
    assert_int_equal(fl_tokenizer_bytes(qwen, -5).n, 0);
    assert_int_equal(fl_tokenizer_piece(qwen, 1 << 30).n, 0);
    assert_int_equal(fl_tokenizer_n_merges(qwen), 247587);
    assert_true(str_is(fl_tokenizer_merge(qwen, 0), "\u0120 \u0120", 5));
    assert_true(str_is(fl_tokenizer_merge(qwen, 2), "i n", 3));
    assert_int_equal(fl_tokenizer_merge(qwen, 247587).n, 0);
    assert_string_equal(fl_tokenizer_gguf_pre(tiny), "qwen35");
    assert_non_null(fl_pretok_pattern("qwen2"));
    assert_null(fl_pretok_pattern("llama-bpe"));
    /* Every byte has a token of its own. */
    bool seen[256] = {false};
    for (int32_t id = 0; id < 256; id++) {
        assert_int_equal(fl_tokenizer_bytes(qwen, id).n, 1);
        seen[(uint8_t)fl_tokenizer_bytes(qwen, id).p[0]] = true;
    }
    for (int b = 0; b < 256; b++) assert_true(seen[b]);
}

/* Merges as "a b" strings and as pairs are the same tokenizer. */
static void test_merge_spelling(void **state)
{
    (void)state;
    fl_tokenizer *t;
    ASSERT_OK(load_qwen(&t, true));
    fl_gold_items g = fl_gold_items_load(GOLD "qwen36_vectors.bin");
    assert_int_equal(count_differences(t, &g), 0);
    fl_gold_items_free(&g);
    fl_tokenizer_close(&t);
    assert_null(t);
}

/* Decoding what was encoded gives the text back (it is its own NFC here), at any cut. */
static void test_round_trip(void **state)
{
    (void)state;
    static const char text[] = "a\u00E9\u4F60\U0001F680 'll 12\n\n\u0915\u093F\0b\x7F";
    size_t n;
    for (size_t from = 0; from < sizeof text - 1; from++) {
        if (((uint8_t)text[from] & 0xC0) == 0x80) continue;
        int32_t *ids = encode(qwen, text + from, sizeof text - 1 - from, true, &n);
        decodes_to(qwen, ids, n, text + from, sizeof text - 1 - from);
        free(ids);
    }
}

/* Characters of 1..4 bytes given byte by byte: nothing comes out before the last byte, and each
 * ill-formed or unfinished part is one U+FFFD. */
static void test_streaming(void **state)
{
    (void)state;
    static const char *const chars[] = {"a", "\u00E9", "\u4F60", "\U0001F680"};
    char buf[4096];
    fl_detok d;
    fl_detok_init(&d, tiny, false);
    for (int c = 0; c < 4; c++) {
        const size_t n = strlen(chars[c]);
        for (size_t i = 0; i < n; i++) {
            const int32_t id = fl_test_vocab_byte((uint8_t)chars[c][i]);
            assert_int_equal(fl_detok_push(&d, id, buf, sizeof buf), i + 1 == n ? n : 0);
        }
        assert_memory_equal(buf, chars[c], n);
        for (size_t cut = 1; cut < n; cut++) {
            for (size_t i = 0; i < cut; i++)
                assert_int_equal(0, fl_detok_push(&d, fl_test_vocab_byte((uint8_t)chars[c][i]), buf,
                                                  sizeof buf));
            assert_int_equal(fl_detok_push(&d, fl_test_vocab_byte('x'), buf, sizeof buf), 4);
            assert_memory_equal(buf, "\uFFFDx", 4);
            for (size_t i = 0; i < cut; i++)
                (void)fl_detok_push(&d, fl_test_vocab_byte((uint8_t)chars[c][i]), buf, sizeof buf);
            assert_int_equal(fl_detok_flush(&d, buf, sizeof buf), 3);
            assert_memory_equal(buf, "\uFFFD", 3);
            assert_int_equal(fl_detok_flush(&d, buf, sizeof buf), 0);
        }
    }
    /* A hidden control token does not tear a character; a visible one ends it. */
    const int32_t control = fl_tokenizer_special(tiny, "<|c|>");
    assert_int_equal(fl_detok_push(&d, fl_test_vocab_byte(0xC3), buf, sizeof buf), 0);
    assert_int_equal(fl_detok_push(&d, control, buf, sizeof buf), 0);
    assert_int_equal(fl_detok_push(&d, fl_test_vocab_byte(0xA9), buf, sizeof buf), 2);
    assert_memory_equal(buf, "\u00E9", 2);
    d.show_control = true;
    assert_int_equal(fl_detok_push(&d, fl_test_vocab_byte(0xC3), buf, sizeof buf), 0);
    assert_int_equal(fl_detok_push(&d, control, buf, sizeof buf), 8);
    assert_memory_equal(buf, "\uFFFD<|c|>", 8);
    /* Ids outside the vocabulary are silent. */
    assert_int_equal(fl_detok_push(&d, -1, buf, sizeof buf), 0);
    assert_int_equal(fl_detok_push(&d, 1 << 30, buf, sizeof buf), 0);
}

/* Long words and runs, each well under a second; quadratic work would take minutes. */
static void test_long_words(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static const char *const unit[] = {"a",  " ",   "\n",           "<",
                                       "'s", "\t ", "\u0316\u0301", "\u4F60\u597D"};
    char *s = malloc(N + 8);
    assert_non_null(s);
    const clock_t start = clock();
    for (size_t u = 0; u < sizeof unit / sizeof unit[0]; u++) {
        const size_t k = strlen(unit[u]);
        size_t n = 0, n_ids;
        while (n + k <= N) {
            memcpy(s + n, unit[u], k);
            n += k;
        }
        int32_t *ids = encode(qwen, s, n, true, &n_ids);
        if (u == 0) assert_int_equal(n_ids, N / 8); /* "aaaaaaaa" is a token */
        free(ids);
    }
    free(s);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 60);
}

/* Short and long pieces take two ways through BPE; both must give the same ids. */
static void test_both_ways_of_merging(void **state)
{
    (void)state;
    char word[600];
    uint32_t x = 7;
    for (int round = 0; round < 300; round++) {
        /* 36 letters of 5 kinds, alone and behind 564 others with no merge across the border. */
        for (int i = 0; i < 600; i++) {
            x = x * 1664525 + 1013904223;
            word[i] = "abcab"[(x >> 24) % 5];
        }
        word[563] = 'z';
        size_t n_long, n_short;
        int32_t *a = encode(tiny, word, 600, true, &n_long);
        int32_t *b = encode(tiny, word + 564, 36, true, &n_short);
        assert_true(n_long > n_short);
        assert_memory_equal(a + n_long - n_short, b, n_short * sizeof *b);
        assert_int_equal(a[n_long - n_short - 1], fl_test_vocab_byte('z'));
        free(a);
        free(b);
    }
}

typedef struct worker {
    pthread_t thread;
    const fl_gold_items *g;
    int bad;
} worker;

static void *encode_some(void *arg)
{
    worker *w = arg;
    for (uint32_t i = 0; i < 2000; i++) {
        fl_err e = {0};
        int32_t *ids = NULL;
        size_t n = 0;
        if (fl_tokenizer_encode(qwen, w->g->item[i].text, w->g->item[i].n, true, &ids, &n, &e) ||
            !same_ids(&w->g->item[i], ids, n))
            w->bad++;
        free(ids);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    worker w[4];
    fl_gold_items g = fl_gold_items_load(GOLD "qwen36_strings.bin");
    for (int i = 0; i < 4; i++) {
        w[i] = (worker){.g = &g};
        assert_int_equal(pthread_create(&w[i].thread, NULL, encode_some, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].bad, 0);
    }
    fl_gold_items_free(&g);
}

static void test_empty_text(void **state)
{
    (void)state;
    size_t n = 9, *ends;
    int32_t *ids = encode(tiny, "", 0, true, &n);
    assert_non_null(ids);
    assert_int_equal(n, 0);
    free(ids);
    ASSERT_OK(fl_tokenizer_split(tiny, "", 0, &ends, &n, &err));
    assert_int_equal(n, 0);
    free(ends);
}

/* ---- GGUF --------------------------------------------------------------------------------- */

typedef struct gguf_parts {
    const char *model, *pre;
    const fl_str *piece, *merge;
    const int32_t *kind;
    uint64_t n, n_kind, n_merge;
} gguf_parts;

static fl_gguf *write_and_read(const char *path, const gguf_parts *p)
{
    static const float zeros[32];
    const int64_t ne[1] = {32};
    fl_gguf_writer *w;
    fl_gguf *g;
    uint64_t size;
    int fd;
    ASSERT_OK(fl_gguf_writer_create(&w, path, 32, &err));
    if (p->model) fl_gguf_put_str(w, "tokenizer.ggml.model", p->model, strlen(p->model));
    if (p->pre) fl_gguf_put_str(w, "tokenizer.ggml.pre", p->pre, strlen(p->pre));
    if (p->piece) fl_gguf_put_strings(w, "tokenizer.ggml.tokens", p->piece, p->n);
    if (p->kind) fl_gguf_put_i32s(w, "tokenizer.ggml.token_type", p->kind, p->n_kind);
    if (p->merge) fl_gguf_put_strings(w, "tokenizer.ggml.merges", p->merge, p->n_merge);
    ASSERT_OK(fl_gguf_add_tensor(w, "x", 0, 1, ne, &err));
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    ASSERT_OK(fl_gguf_writer_write(w, zeros, sizeof zeros, &err));
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    ASSERT_OK(fl_file_open(path, &fd, &size, &err));
    ASSERT_OK(fl_gguf_open(&g, fd, size, path, &err));
    close(fd);
    return g;
}

/* The full vocabulary written to a GGUF and read back is the same tokenizer. */
static void test_gguf_round_trip(void **state)
{
    (void)state;
    const uint64_t n = (uint64_t)fl_tokenizer_size(qwen), n_merge = fl_tokenizer_n_merges(qwen);
    fl_str *piece = calloc(n, sizeof *piece), *merge = calloc(n_merge, sizeof *merge);
    int32_t *kind = calloc(n, sizeof *kind);
    char *path = fl_tmp_path(dir, "vocab.gguf");
    fl_tokenizer *t;
    assert_true(piece && merge && kind);
    for (uint64_t i = 0; i < n; i++) {
        piece[i] = fl_tokenizer_piece(qwen, (int32_t)i);
        kind[i] = (int32_t)fl_tokenizer_kind(qwen, (int32_t)i);
    }
    for (uint64_t i = 0; i < n_merge; i++) merge[i] = fl_tokenizer_merge(qwen, i);
    const char *pre = fl_tokenizer_gguf_pre(qwen);
    assert_string_equal(pre, "qwen35");
    fl_gguf *g =
        write_and_read(path, &(gguf_parts){"gpt2", pre, piece, merge, kind, n, n, n_merge});
    ASSERT_OK(fl_tokenizer_from_gguf(&t, g, path, &err));
    fl_gguf_close(&g);
    assert_int_equal(fl_tokenizer_size(t), n);
    for (int32_t i = 0; i < fl_tokenizer_size(t); i++) {
        const fl_str s = fl_tokenizer_bytes(t, i);
        assert_true(str_is(fl_tokenizer_bytes(qwen, i), s.p, s.n));
        assert_int_equal(fl_tokenizer_kind(t, i), kind[i]);
    }
    fl_gold_items v = fl_gold_items_load(GOLD "qwen36_vectors.bin");
    fl_gold_items s = fl_gold_items_load(GOLD "qwen36_strings.bin");
    if (s.n > 2000) s.n = 2000;
    assert_int_equal(count_differences(t, &v), 0);
    assert_int_equal(count_differences(t, &s), 0);
    fl_gold_items_free(&v);
    fl_gold_items_free(&s);
    fl_tokenizer_close(&t);
    free(piece);
    free(merge);
    free(kind);
    free(path);
}

static void gguf_refused(gguf_parts p, fl_status st, const char *words)
{
    char *path = fl_tmp_path(dir, "bad.gguf");
    fl_gguf *g = write_and_read(path, &p);
    fl_tokenizer *t = tiny;
    ASSERT_FAILS(fl_tokenizer_from_gguf(&t, g, path, &err), st, words);
    assert_null(t);
    fl_gguf_close(&g);
    free(path);
}

#define STR(s) ((fl_str){(s), sizeof(s) - 1})

static void test_bad_gguf(void **state)
{
    (void)state;
    static const char huge[FL_MAX_TOKEN_BYTES + 1] = "x";
    const fl_str piece[] = {STR("a"), STR("b"), STR("ab")}, merge[] = {STR("a b")};
    const int32_t kind[] = {1, 1, 1}, odd[] = {1, 7, 1}, negative[] = {1, -1, 1};
    const gguf_parts good = {"gpt2", "qwen2", piece, merge, kind, 3, 3, 1};
    gguf_parts p = good;
    p.model = "llama", gguf_refused(p, FL_E_UNSUPPORTED, "llama");
    p.model = NULL, gguf_refused(p, FL_E_UNSUPPORTED, "tokenizer.ggml.model");
    p = good, p.pre = "llama-bpe", gguf_refused(p, FL_E_UNSUPPORTED, "llama-bpe");
    p = good, p.piece = NULL, gguf_refused(p, FL_E_FORMAT, "no tokenizer");
    p = good, p.n = 0, p.n_kind = 0, gguf_refused(p, FL_E_FORMAT, "0 tokens");
    p = good, p.n_kind = 2, gguf_refused(p, FL_E_FORMAT, "token_type");
    p = good, p.kind = odd, gguf_refused(p, FL_E_FORMAT, "token 1 has type 7");
    p = good, p.kind = negative, gguf_refused(p, FL_E_FORMAT, "token 1");
    const fl_str one_part[] = {STR("ab")}, unknown[] = {STR("a c")};
    p = good, p.merge = one_part, gguf_refused(p, FL_E_FORMAT, "two parts");
    p = good, p.merge = unknown, gguf_refused(p, FL_E_FORMAT, "\"c\"");
    const fl_str long_piece[] = {STR("a"), STR("b"), {huge, sizeof huge}};
    p = good, p.piece = long_piece, gguf_refused(p, FL_E_FORMAT, "1025 bytes");
}

/* A file without type list, pre-tokenizer name or merges still has a tokenizer. */
static void test_sparse_gguf(void **state)
{
    (void)state;
    const fl_str piece[] = {STR("a"), STR("b"), STR("<0x63>"), STR("[PAD]")};
    const int32_t kind[] = {1, 1, 6, 5};
    char *path = fl_tmp_path(dir, "sparse.gguf");
    fl_gguf *g = write_and_read(path, &(gguf_parts){.model = "gpt2", .piece = piece, .n = 4});
    fl_tokenizer *t;
    size_t n;
    ASSERT_OK(fl_tokenizer_from_gguf(&t, g, path, &err));
    int32_t *ids = encode(t, "ba", 2, true, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 1);
    free(ids);
    fl_tokenizer_close(&t);
    fl_gguf_close(&g);
    g = write_and_read(path, &(gguf_parts){"gpt2", NULL, piece, NULL, kind, 4, 4, 0});
    ASSERT_OK(fl_tokenizer_from_gguf(&t, g, path, &err));
    assert_true(str_is(fl_tokenizer_bytes(t, 2), "c", 1));
    assert_int_equal(fl_tokenizer_bytes(t, 3).n, 0);
    assert_int_equal(fl_tokenizer_kind(t, 3), FL_TOKEN_UNUSED);
    fl_tokenizer_close(&t);
    fl_gguf_close(&g);
    free(path);
}

/* The same model as safetensors and as GGUF: the same ids, through the source. */
static void test_open_source(void **state)
{
    (void)state;
    static const char *const path[] = {"tests/golden/model/hf", "tests/golden/model/tiny-f32.gguf"};
    static const char text[] = "<|im_start|>user\nA cafe\u0301, 42!<|im_end|>\n<think>";
    int32_t *ids[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        fl_source *src;
        fl_tokenizer *t;
        ASSERT_OK(fl_source_open(&src, path[i], &err));
        ASSERT_OK(fl_tokenizer_open(&t, src, &err));
        ids[i] = encode(t, text, sizeof text - 1, true, &n[i]);
        assert_int_equal(ids[i][0], fl_tokenizer_special(t, "<|im_start|>"));
        fl_tokenizer_close(&t);
        fl_source_close(&src);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(ids[0], ids[1], n[0] * sizeof(int32_t));
    free(ids[0]);
    free(ids[1]);
}

/* ---- what the loaders refuse -------------------------------------------------------------- */

static void refused(const char *json, fl_status st, const char *words)
{
    fl_tokenizer *t = tiny;
    ASSERT_FAILS(fl_tokenizer_parse_json(&t, json, strlen(json), "t.json", &err), st, words);
    assert_null(t);
}

#define PRE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define MODEL(v, m) "\"model\":{\"type\":\"BPE\",\"vocab\":{" v "},\"merges\":[" m "]}"

static void test_bad_json(void **state)
{
    (void)state;
    refused("", FL_E_FORMAT, "t.json");
    refused("{", FL_E_FORMAT, "t.json");
    refused("{}", FL_E_UNSUPPORTED, "model");
    refused("{\"model\":{\"type\":\"Unigram\"}}", FL_E_UNSUPPORTED, "Unigram");
    refused("{\"model\":{\"type\":\"BPE\"}}", FL_E_FORMAT, "vocab");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", FL_E_FORMAT, "merges");
    refused("{" MODEL("\"a\":0", "") "}", FL_E_UNSUPPORTED, "pre-tokenizer");
    refused("{" PRE "," MODEL("", "") "}", FL_E_FORMAT, "0 tokens");
    refused("{" PRE "," MODEL("\"a\":-1", "") "}", FL_E_FORMAT, "-1");
    refused("{" PRE "," MODEL("\"a\":99999999", "") "}", FL_E_FORMAT, "99999999");
    refused("{" PRE "," MODEL("\"a\":0.5", "") "}", FL_E_FORMAT, "token id");
    refused("{" PRE "," MODEL("\"a\":0,\"b\":0", "") "}", FL_E_FORMAT, "both");
    refused("{" PRE "," MODEL("\"a\":0", "\"a\"") "}", FL_E_FORMAT, "merge 0");
    refused("{" PRE "," MODEL("\"a\":0", "[\"a\"]") "}", FL_E_FORMAT, "merge 0");
    refused("{" PRE "," MODEL("\"a\":0", "7") "}", FL_E_FORMAT, "merge 0");
    refused("{" PRE "," MODEL("\"a\":0", "\"a a a\"") "}", FL_E_FORMAT, "merge 0");
    refused("{" PRE "," MODEL("\"a\":0", "\"a b\"") "}", FL_E_FORMAT, "\"b\"");
    refused("{" PRE "," MODEL("\"a\":0", "\"a a\"") "}", FL_E_FORMAT, "\"aa\"");
    refused("{\"normalizer\":{\"type\":\"NFKC\"}," PRE "," MODEL("\"a\":0", "") "}",
            FL_E_UNSUPPORTED, "NFKC");
    refused("{\"added_tokens\":[{\"id\":1}]," PRE "," MODEL("\"a\":0", "") "}", FL_E_FORMAT,
            "added token 0");
    refused("{\"added_tokens\":[{\"content\":\"x\"}]," PRE "," MODEL("\"a\":0", "") "}",
            FL_E_FORMAT, "id");
    refused("{\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]," PRE "," MODEL("\"a\":0", "") "}",
            FL_E_FORMAT, "both");
    refused("{\"added_tokens\":[{\"id\":1,\"content\":\"x\",\"lstrip\":true}]," PRE
            "," MODEL("\"a\":0", "") "}",
            FL_E_UNSUPPORTED, "lstrip");
    refused("{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," MODEL("\"a\":0", "") "}",
            FL_E_UNSUPPORTED, "add_prefix_space");
    refused("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
            "\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
            "\"use_regex\":false,\"add_prefix_space\":false}]}," MODEL("\"a\":0", "") "}",
            FL_E_FORMAT, "expression");
    refused("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
            "\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}]}," MODEL("\"a\":0", "") "}",
            FL_E_UNSUPPORTED, "Removed");
    refused("{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," MODEL("\"a\":0", "") "}",
            FL_E_UNSUPPORTED, "Whitespace");
}

static void test_missing_byte(void **state)
{
    (void)state;
    static const char json[] = "{" PRE "," MODEL("\"a\":0,\"b\":1,\"ab\":2", "\"a b\"") "}";
    fl_tokenizer *t;
    size_t n;
    int32_t *ids;
    ASSERT_OK(fl_tokenizer_parse_json(&t, json, sizeof json - 1, "t.json", &err));
    ids = encode(t, "ab", 2, true, &n);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 2);
    free(ids);
    ASSERT_FAILS(fl_tokenizer_encode(t, "abc", 3, true, &ids, &n, &err), FL_E_UNSUPPORTED, "0x63");
    assert_null(ids);
    fl_tokenizer_close(&t);
}

static void test_file(void **state)
{
    (void)state;
    char *path = fl_tmp_path(dir, "tokenizer.json");
    fl_tokenizer *t;
    size_t n;
    ASSERT_FAILS(fl_tokenizer_from_json(&t, path, &err), FL_E_IO, path);
    assert_null(t);
    char *json = fl_test_vocab_json(&n);
    fl_tmp_write(path, json, n);
    free(json);
    ASSERT_OK(fl_tokenizer_from_json(&t, path, &err));
    assert_int_equal(fl_tokenizer_size(t), fl_tokenizer_size(tiny));
    fl_tokenizer_close(&t);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_clover_tiny),
        cmocka_unit_test(test_golden_splits),
        cmocka_unit_test(test_splits_by_rule),
        cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_added_matching),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_merge_spelling),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_both_ways_of_merging),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_empty_text),
        cmocka_unit_test(test_gguf_round_trip),
        cmocka_unit_test(test_bad_gguf),
        cmocka_unit_test(test_sparse_gguf),
        cmocka_unit_test(test_open_source),
        cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_missing_byte),
        cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
