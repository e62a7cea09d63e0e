/* Text for eval and importance: plain files and JSON lines become the ids that they should. */
#include <stdlib.h>

#include "runtime/model/chat.h"
#include "runtime/model/model.h"
#include "runtime/tools/corpus.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;
static char *dir, *path[2];
static fl_model *model;

static int setup(void **state)
{
    (void)state;
    dir = fl_tmp_make();
    path[0] = fl_tmp_path(dir, "a.txt");
    path[1] = fl_tmp_path(dir, "b.jsonl");
    return fl_model_open(&model, "tests/clover_tiny/model", &err);
}

static int teardown(void **state)
{
    (void)state;
    fl_model_close(&model);
    free(path[0]);
    free(path[1]);
    fl_tmp_remove(dir);
    return 0;
}

static void write_text(int i, const char *text) { fl_tmp_write(path[i], text, strlen(text)); }

static void expect(const fl_corpus *c, int part, const int32_t *ids, size_t n)
{
    assert_int_equal(c->doc[part].n, n);
    assert_memory_equal(c->ids + c->doc[part].start, ids, n * sizeof *ids);
}

static void plain_text_has_no_control_tokens(void **state)
{
    (void)state;
    static const char text[] = "Hello<|im_end|> w\xffrld";
    static const char fixed[] = "Hello<|im_end|> w\xef\xbf\xbdrld";
    fl_corpus c;
    int32_t *ids;
    size_t n;
    write_text(0, text);
    ASSERT_OK(fl_corpus_open(&c, model->tokenizer, (const char *const *)path, 1, &err));
    ASSERT_OK(fl_tokenizer_encode(model->tokenizer, fixed, strlen(fixed), false, &ids, &n, &err));
    expect(&c, 0, ids, n);
    const int32_t end = fl_tokenizer_special(model->tokenizer, "<|im_end|>");
    for (int64_t i = 0; i < c.n; i++) assert_int_not_equal(c.ids[i], end);
    free(ids);
    fl_corpus_close(&c);
}

static void lines_of_each_form(void **state)
{
    (void)state;
    int32_t *turn, *chat, *plain;
    size_t n_turn, n_chat, n_plain;
    fl_corpus c;
    fl_json *messages = NULL;
    static const char said[] = "[{\"role\":\"user\",\"content\":\"Hi\"},"
                               "{\"role\":\"assistant\",\"content\":\"Ho\"}]";
    char lines[1024];
    snprintf(lines, sizeof lines,
             "{\"prompt\": \"<|im_start|>a\", \"completion\": \"b<|im_end|>\", \"messages\": 1}\n"
             "\n{\"task\": 1, \"messages\": %s}\r\n{\"text\": \"<|im_end|>\"}",
             said);
    write_text(0, "x");
    write_text(1, lines);
    ASSERT_OK(fl_corpus_open(&c, model->tokenizer, (const char *const *)path, 2, &err));
    const fl_tokenizer *t = model->tokenizer;
    ASSERT_OK(fl_json_parse(said, strlen(said), "", &messages, &err));
    const fl_chat_params p = {
        .messages = messages, .enable_thinking = -1, .preserve_thinking = true};
    ASSERT_OK(fl_chat_encode(&p, t, &chat, &n_chat, &err));
    ASSERT_OK(fl_tokenizer_encode(t, "<|im_start|>ab<|im_end|>", 24, true, &turn, &n_turn, &err));
    ASSERT_OK(fl_tokenizer_encode(t, "<|im_end|>", 10, false, &plain, &n_plain, &err));
    assert_int_equal(c.n_docs, 4);
    assert_int_equal(c.doc[1].start, c.doc[0].n);
    assert_true(c.doc[0].line == 0 && c.doc[1].line == 1 && c.doc[2].line == 3);
    assert_int_equal(c.doc[3].line, 4);
    expect(&c, 1, turn, n_turn);
    expect(&c, 2, chat, n_chat);
    expect(&c, 3, plain, n_plain);
    /* "ab" may be one token: then the prompt is what stands before it. */
    assert_true(c.doc[1].prompt == 1 || c.doc[1].prompt == 2);
    const int32_t *answer = c.ids + c.doc[2].start + c.doc[2].prompt;
    assert_int_equal(c.doc[3].prompt, 0);
    const int32_t opening = fl_tokenizer_special(t, "<|im_start|>");
    int opened = 0;
    for (const int32_t *at = c.ids + c.doc[2].start; at < answer; at++) opened += *at == opening;
    assert_int_equal(opened, 2); /* the user's turn and the head of the answer */
    fl_json_free(&messages);
    free(turn);
    free(chat);
    free(plain);
    fl_corpus_close(&c);
}

static void the_hash_sees_tokens_and_files(void **state)
{
    (void)state;
    fl_corpus a, b;
    write_text(0, "one two");
    ASSERT_OK(fl_corpus_open(&a, model->tokenizer, (const char *const *)path, 1, &err));
    ASSERT_OK(fl_corpus_open(&b, model->tokenizer, (const char *const *)path, 1, &err));
    assert_true(fl_corpus_hash(&a) == fl_corpus_hash(&b));
    const uint64_t before = fl_corpus_hash(&a);
    a.ids[0]++;
    assert_true(fl_corpus_hash(&a) != before);
    b.doc[0].n--;
    assert_true(fl_corpus_hash(&b) != before);
    b.doc[0].n++;
    assert_true(fl_corpus_hash(&b) == before);
    b.doc[0].prompt++;
    assert_true(fl_corpus_hash(&b) != before);
    fl_corpus_close(&a);
    fl_corpus_close(&b);
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
        fl_status status;
    } bad[] = {{"", "holds no text", FL_E_ARG},
               {"\n \n", "holds no text", FL_E_ARG},
               {"{\"text\": \"a\"}\n{", "b.jsonl line 2", FL_E_FORMAT},
               {"{\"text\": 5}", "b.jsonl line 1: expected \"text\"", FL_E_FORMAT},
               {"\n{\"messages\": 5}", "b.jsonl line 2: ", FL_E_ARG}};
    fl_corpus c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(1, bad[i].text);
        ASSERT_FAILS(fl_corpus_open(&c, model->tokenizer, (const char *const *)path + 1, 1, &err),
                     bad[i].status, bad[i].words);
        assert_null(c.ids);
    }
    const char *missing = "/nowhere/at/all";
    ASSERT_FAILS(fl_corpus_open(&c, model->tokenizer, &missing, 1, &err), FL_E_IO, missing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_has_no_control_tokens),
        cmocka_unit_test(lines_of_each_form),
        cmocka_unit_test(the_hash_sees_tokens_and_files),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("corpus", tests, setup, teardown);
}
