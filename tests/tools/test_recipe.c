/* fourleaf quantize: recipes and their files, the dry run, what is copied from a quantized file and
 * what is rounded again. */
#include <stdlib.h>

#include "runtime/base/json.h"
#include "runtime/tools/quantize.h"
#include "runtime/tools/types.h"
#include "tests/support/command.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

/* ---- rules ---- */

static fl_status parse(fl_recipe *r, const char *text)
{
    return fl_recipe_parse(r, "x.rules", text, strlen(text), &err);
}

static void patterns_match_whole_names(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool match;
    } t[] = {{"*", "a.b", true},
             {"*", "", true},
             {"a", "a", true},
             {"a", "ab", false},
             {"?b", "ab", true},
             {"?", "", false},
             {"blk.*.ffn_down_exps.weight", "blk.12.ffn_down_exps.weight", true},
             {"blk.*.ffn_down_exps.weight", "blk.12.ffn_down_shexp.weight", false},
             {"blk.1.*", "blk.11.attn_q.weight", false},
             {"*_exps*", "blk.0.ffn_up_exps.weight", true},
             {"*a*b*c", "xaybzbc", true},
             {"*a*b*c", "xaybzb", false},
             {"**", "x", true},
             {"", "", true},
             {"", "a", false}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (fl_recipe_matches(t[i].pattern, t[i].name) != t[i].match)
            fail_msg("'%s' and '%s'", t[i].pattern, t[i].name);
}

static void a_file_is_lines_of_pattern_and_type(void **state)
{
    (void)state;
    fl_recipe r;
    ASSERT_OK(parse(&r, "# head\n\n token_embd.weight\tQ8_0  # why\r\n*_exps.* q4_k\n* keep"));
    assert_int_equal(r.n, 3);
    assert_string_equal(r.rule[0].pattern, "token_embd.weight");
    assert_int_equal(r.rule[0].type, FL_TYPE_Q8_0);
    assert_int_equal(r.rule[0].line, 3);
    assert_int_equal(r.rule[1].type, FL_TYPE_Q4_K);
    assert_int_equal(r.rule[2].type, FL_RECIPE_KEEP);
    assert_int_equal(r.rule[2].line, 5);
    fl_recipe_fini(&r);
    ASSERT_OK(parse(&r, ""));
    assert_int_equal(r.n, 0);
    fl_recipe_fini(&r);
}

static void a_bad_line_is_named(void **state)
{
    (void)state;
    fl_recipe r;
    ASSERT_FAILS(parse(&r, "* q4_k\n* q9_k\n"), FL_E_ARG, "x.rules line 2: 'q9_k' is no type");
    ASSERT_FAILS(parse(&r, "* q2_k\n"), FL_E_ARG, "expected one of q4_k, q5_k");
    ASSERT_FAILS(parse(&r, "* k\n"), FL_E_ARG, "'k' is no type");
    ASSERT_FAILS(parse(&r, "* f1\n"), FL_E_ARG, "'f1' is no type");
    ASSERT_FAILS(parse(&r, "\n\n*\n"), FL_E_ARG,
                 "line 3: expected PATTERN TYPE, found one word: *");
    ASSERT_FAILS(parse(&r, "* q4_k q5_k\n"), FL_E_ARG,
                 "line 1: expected PATTERN TYPE, found a third");
    ASSERT_FAILS(parse(&r, "a\001b q4_k\n"), FL_E_ARG, "line 1: characters that are not plain");
    ASSERT_FAILS(fl_recipe_parse(&r, "x.rules", "a\0b q4_k", 8, &err), FL_E_ARG, "not plain text");
    char line[6000];
    memset(line, 'a', sizeof line);
    memcpy(line + sizeof line - 6, " q4_k", 6);
    ASSERT_FAILS(parse(&r, line), FL_E_ARG, "line 1: thousands of characters");
    line[100] = ' ';
    memcpy(line + 101, "q4_k", 5);
    ASSERT_FAILS(parse(&r, line), FL_E_ARG, "line 1: a pattern of 100 characters");
}

/* ---- on a model ---- */

static fl_make wide(void)
{
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.n_layer = m.interval = 2;
    m.n_expert = 4;
    m.type = FL_TYPE_F32;
    return m;
}

static fl_status quantize(const char *in, const char *out, const char *options)
{
    return fl_quantize_with(in, out, options, &err);
}

static void write_text(const char *path, const char *text)
{
    fl_tmp_write(path, text, strlen(text));
}

static uint32_t type_in(const char *path, const char *name)
{
    fl_source *s = fl_open_source(path);
    const uint32_t type = fl_need_tensor(s, name)->type;
    fl_source_close(&s);
    return type;
}

static void the_first_rule_wins_and_type_takes_the_rest(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = wide();
    char *rules = fl_tmp_path(f.dir, "r"), options[300];
    static const char text[] = "blk.1.ffn_down_exps.weight q6_k\n*_exps.weight q5_k\n"
                               "blk.?.ffn_up* q8_0\noutput_norm.weight q8_0\n";
    write_text(rules, text);
    fl_make_gguf(&m, f.gguf);
    snprintf(options, sizeof options, "--recipe %s --type bf16", rules);
    ASSERT_OK(quantize(f.gguf, f.out, options));
    assert_int_equal(type_in(f.out, "blk.1.ffn_down_exps.weight"), FL_TYPE_Q6_K);
    assert_int_equal(type_in(f.out, "blk.0.ffn_down_exps.weight"), FL_TYPE_Q5_K);
    assert_int_equal(type_in(f.out, "blk.0.ffn_up_exps.weight"), FL_TYPE_Q5_K);
    assert_int_equal(type_in(f.out, "blk.0.ffn_up_shexp.weight"), FL_TYPE_Q8_0);
    assert_int_equal(type_in(f.out, "blk.0.attn_gate.weight"), FL_TYPE_BF16);
    assert_int_equal(type_in(f.out, "output_norm.weight"), FL_TYPE_F32);
    write_text(rules, "* q4_k\nffn_norm q8_0\n");
    ASSERT_FAILS(quantize(f.gguf, f.out, options), FL_E_ARG,
                 "line 2: no tensor of the output is named like 'ffn_norm'");
    ASSERT_FAILS(quantize(f.gguf, f.out, "--recipe q7"), FL_E_IO,
                 "--recipe q7: none of q4, q4_k_m");
    free(rules);
    fl_workplace_remove(&f);
}

/* The notes that rules give rise to. */
static void notes_of(const char *model, const char *rules, bool requantize, const char *want)
{
    char *notes = NULL;
    fl_source *s = fl_open_source(model);
    fl_index *ix;
    fl_conv c;
    const fl_options o = {.recipe = rules, .requantize = requantize};
    ASSERT_OK(fl_index_build(&ix, s, &err));
    ASSERT_OK(fl_conv_plan(&c, ix, true, &err));
    ASSERT_OK(fl_types_choose(&c, ix, &o, "clover_moe", &notes, &err));
    if (want[0] ? !strstr(notes, want) : notes[0] != 0) fail_msg("'%s' is not in: %s", want, notes);
    free(notes);
    fl_conv_fini(&c);
    fl_index_free(&ix);
    fl_source_close(&s);
}

static void what_a_rule_cannot_do_is_said(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = wide();
    char *rules = fl_tmp_path(f.dir, "r");
    fl_make_gguf(&m, f.gguf);
    write_text(rules, "blk.*_norm.weight q8_0");
    notes_of(f.gguf, rules, false,
             "line 1: 7 of 7 tensors that 'blk.*_norm.weight' matches stay f32");
    write_text(rules, "");
    notes_of(f.gguf, rules, false, "");
    write_text(rules, "* q4_k\noutput.* q8_0\n");
    notes_of(f.gguf, rules, false, "line 2: earlier lines took all that 'output.*' matches");
    notes_of(f.gguf, "q4", false, "");
    free(rules);
    fl_workplace_remove(&f);
}

static uint64_t bytes_of(const char *path)
{
    fl_source *s = fl_open_source(path);
    const uint64_t n = fl_source_file_bytes(s, 0);
    fl_source_close(&s);
    return n;
}

static void the_dry_run_says_the_bytes_that_are_written(void **state)
{
    (void)state;
    static const char *const options[] = {"",
                                          "--recipe q4",
                                          "--recipe q4_k_m",
                                          "--recipe q5",
                                          "--recipe q6",
                                          "--recipe q8",
                                          "--recipe iq4_xs",
                                          "--type q4_0",
                                          "--recipe bf16",
                                          "--type f16",
                                          "--type f32",
                                          "--recipe keep",
                                          "--arch qwen35moe --type q6_k"};
    fl_workplace f = fl_workplace_make();
    const fl_make m = wide();
    fl_make_gguf(&m, f.gguf);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char words[1024];
        snprintf(words, sizeof words, "quantize %s %s --dry-run --json %s", f.gguf, f.out,
                 options[i]);
        char *text = fl_command_output(fl_tool_quantize, words);
        assert_int_equal(fl_tmp_count(f.dir), 1); /* nothing is written */
        fl_json *j = NULL;
        ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
        ASSERT_OK(quantize(f.gguf, f.out, options[i]));
        assert_int_equal(fl_json_int(fl_json_get(j, "file_bytes"), -1), bytes_of(f.out));
        fl_source *s = fl_open_source(f.out);
        const fl_json *list = fl_json_get(j, "list");
        assert_int_equal(fl_json_size(list), fl_source_n_tensors(s));
        int64_t sum = 0;
        for (size_t k = 0; k < fl_json_size(list); k++) {
            const fl_json *one = fl_json_at(list, k);
            const fl_tensor *t = fl_need_tensor(s, fl_json_str(fl_json_get(one, "name"), ""));
            assert_int_equal(fl_json_int(fl_json_get(one, "bytes"), -1), t->bytes);
            assert_string_equal(fl_json_str(fl_json_get(one, "type"), ""),
                                fl_type_get(t->type)->name);
            sum += (int64_t)t->bytes;
        }
        assert_int_equal(fl_json_int(fl_json_get(j, "bytes"), -1), sum);
        const fl_json *classes = fl_json_get(j, "classes");
        for (size_t k = 0; k < fl_json_size(classes); k++)
            sum -= fl_json_int(fl_json_get(fl_json_at(classes, k), "bytes"), 0);
        assert_int_equal(sum, 0);
        fl_source_close(&s);
        fl_json_free(&j);
        free(text);
        assert_int_equal(remove(f.out), 0);
    }
    fl_workplace_remove(&f);
}

static void the_table_of_the_dry_run(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = wide();
    char words[512];
    fl_make_gguf(&m, f.gguf);
    snprintf(words, sizeof words, "quantize %s %s --dry-run", f.gguf, f.out);
    char *text = fl_command_output(fl_tool_quantize, words);
    assert_non_null(strstr(text, "  experts down       q4_k        2 tensors"));
    assert_non_null(strstr(text, "4.500 bits"));
    assert_non_null(strstr(text, "  token embedding    q8_0 "));
    assert_non_null(strstr(text, "bytes, with header and padding"));
    free(text);
    fl_workplace_remove(&f);
}

/* ---- quantized sources ---- */

/* What llama.cpp's users have: Q4_K with some Q6_K and Q8_0. */
static fl_make stock(void)
{
    fl_make m = wide();
    m.type = FL_TYPE_Q4_K;
    m.mix[0].part = "ffn_down_exps";
    m.mix[0].type = FL_TYPE_Q6_K;
    m.mix[1].part = "token_embd";
    m.mix[1].type = FL_TYPE_Q8_0;
    return m;
}

static void same_blocks(const char *a_path, const char *b_path, const char *name)
{
    fl_source *a = fl_open_source(a_path), *b = fl_open_source(b_path);
    const fl_tensor *x = fl_need_tensor(a, name), *y = fl_need_tensor(b, name);
    assert_int_equal(x->type, y->type);
    assert_int_equal(x->bytes, y->bytes);
    uint8_t *p = malloc(x->bytes), *q = malloc(x->bytes);
    assert_true(p && q);
    ASSERT_OK(fl_source_read(a, x, 0, p, x->bytes, &err));
    ASSERT_OK(fl_source_read(b, y, 0, q, x->bytes, &err));
    if (memcmp(p, q, x->bytes) != 0) fail_msg("%s differs", name);
    free(p);
    free(q);
    fl_source_close(&a);
    fl_source_close(&b);
}

static void what_keeps_its_type_is_copied(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    fl_make m = stock();
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(quantize(f.gguf, f.out, "--recipe keep"));
    fl_source *s = fl_open_source(f.out);
    for (size_t i = 0; i < fl_source_n_tensors(s); i++)
        same_blocks(f.gguf, f.out, fl_source_tensor(s, i)->name);
    fl_source_close(&s);
    /* All of q4 that was Q4_K before stays bit for bit; the rest is rounded again, on request. */
    ASSERT_FAILS(quantize(f.gguf, f.out, "--recipe q4"), FL_E_UNSUPPORTED, "--requantize");
    notes_of(f.gguf, "q4", true, "tensors (q4_k, q6_k) are rounded a second time");
    notes_of(f.gguf, "q4", true, "quantized tensors are copied bit for bit");
    ASSERT_OK(quantize(f.gguf, f.out, "--recipe q4 --requantize"));
    same_blocks(f.gguf, f.out, "blk.0.ffn_gate_exps.weight");
    same_blocks(f.gguf, f.out, "token_embd.weight");
    assert_int_equal(type_in(f.out, "blk.0.ffn_down_exps.weight"), FL_TYPE_Q4_K);
    fl_compare_files(f.gguf, f.out, 0.12, true);
    /* Values as they are cost no second rounding. */
    ASSERT_OK(quantize(f.gguf, f.out, "--type f32"));
    fl_compare_files(f.gguf, f.out, 0, true);
    fl_workplace_remove(&f);
}

/* Heads in grouped order: rows move as whole blocks; columns of ssm_out can where a head holds
 * whole blocks. */
static void heads_move_without_rounding(void **state)
{
    (void)state;
    for (int q8 = 0; q8 < 2; q8++) {
        fl_workplace f = fl_workplace_make();
        fl_make m = wide();
        m.type = q8 ? FL_TYPE_Q8_0 : FL_TYPE_Q4_K;
        fl_make_gguf(&m, f.gguf);
        char *grouped = fl_tmp_path(f.dir, "grouped.gguf");
        m.v_grouped = true;
        fl_make_gguf(&m, grouped);
        if (q8) {
            ASSERT_OK(quantize(grouped, f.out, "--recipe keep"));
            same_blocks(f.gguf, f.out, "blk.0.ssm_out.weight");
        } else {
            ASSERT_FAILS(quantize(grouped, f.out, "--recipe keep"), FL_E_UNSUPPORTED,
                         "blk.0.ssm_out.weight is quantized already");
            ASSERT_OK(quantize(grouped, f.out, "--recipe keep --requantize"));
        }
        same_blocks(f.gguf, f.out, "blk.0.attn_qkv.weight");
        same_blocks(f.gguf, f.out, "blk.0.attn_gate.weight");
        same_blocks(f.gguf, f.out, "blk.0.ssm_alpha.weight");
        free(grouped);
        fl_workplace_remove(&f);
    }
}

/* Fused rows are parted as blocks; what has a scale beside it is read with it, and so not copied.
 */
static void fused_and_scaled_sources(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    fl_make m = stock();
    fl_make_gguf(&m, f.gguf);
    char *odd = fl_tmp_path(f.dir, "odd.gguf");
    m.fused = true;
    fl_make_gguf(&m, odd);
    ASSERT_OK(quantize(odd, f.out, "--recipe keep"));
    same_blocks(f.gguf, f.out, "blk.0.ffn_gate_exps.weight");
    same_blocks(f.gguf, f.out, "blk.1.ffn_up_exps.weight");
    m.fused = false;
    m.scales = true;
    fl_make_gguf(&m, odd);
    ASSERT_FAILS(quantize(odd, f.out, "--recipe keep"), FL_E_UNSUPPORTED, "quantized already");
    ASSERT_OK(quantize(odd, f.out, "--type f32"));
    fl_source *a = fl_open_source(f.gguf), *b = fl_open_source(f.out);
    const fl_tensor *x = fl_need_tensor(a, "blk.0.ffn_down_exps.weight");
    const fl_tensor *y = fl_need_tensor(b, "blk.0.ffn_down_exps.weight");
    const int64_t each = x->ne[0] * x->ne[1];
    uint8_t *raw = malloc(x->bytes);
    float *v = malloc((size_t)each * 4 * sizeof *v), *w = malloc(y->bytes);
    assert_true(raw && v && w);
    ASSERT_OK(fl_source_read(a, x, 0, raw, x->bytes, &err));
    ASSERT_OK(fl_source_read(b, y, 0, w, y->bytes, &err));
    fl_type_get(x->type)->dequantize(raw, v, each * 4);
    for (int64_t i = 0; i < each * 4; i++)
        assert_true(w[i] == v[i] * (1.0f + (float)(i / each) / 8));
    free(raw);
    free(v);
    free(w);
    fl_source_close(&a);
    fl_source_close(&b);
    free(odd);
    fl_workplace_remove(&f);
}

static void q4_k_m_is_the_mix_of_llama(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    fl_make m = wide();
    m.n_layer = 8;
    m.interval = 4;
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(quantize(f.gguf, f.out, "--recipe q4_k_m"));
    static const bool more[8] = {true, false, false, true, false, false, true, true};
    for (int i = 0; i < 8; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", i);
        assert_int_equal(type_in(f.out, name), more[i] ? FL_TYPE_Q6_K : FL_TYPE_Q4_K);
    }
    assert_int_equal(type_in(f.out, "output.weight"), FL_TYPE_Q6_K);
    assert_int_equal(type_in(f.out, "token_embd.weight"), FL_TYPE_Q4_K);
    assert_int_equal(type_in(f.out, "blk.0.attn_qkv.weight"), FL_TYPE_Q5_K);
    assert_int_equal(type_in(f.out, "blk.7.attn_v.weight"), FL_TYPE_Q6_K);
    assert_int_equal(type_in(f.out, "blk.3.attn_v.weight"), FL_TYPE_Q4_K);
    fl_workplace_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_whole_names),
        cmocka_unit_test(a_file_is_lines_of_pattern_and_type),
        cmocka_unit_test(a_bad_line_is_named),
        cmocka_unit_test(the_first_rule_wins_and_type_takes_the_rest),
        cmocka_unit_test(what_a_rule_cannot_do_is_said),
        cmocka_unit_test(the_dry_run_says_the_bytes_that_are_written),
        cmocka_unit_test(the_table_of_the_dry_run),
        cmocka_unit_test(what_keeps_its_type_is_copied),
        cmocka_unit_test(heads_move_without_rounding),
        cmocka_unit_test(fused_and_scaled_sources),
        cmocka_unit_test(q4_k_m_is_the_mix_of_llama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
