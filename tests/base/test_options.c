#include <math.h>
#include <stdlib.h>

#include "runtime/base/options.h"
#include "tests/support/test.h"

static fl_options o;
static fl_err err;

/* Parses "fourleaf WORDS..." (words separated by single spaces). */
static fl_status parse(const char *words)
{
    static char copy[512];
    static char *argv[64];
    int argc = 0;
    snprintf(copy, sizeof copy, "fourleaf %s", words);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) argv[argc++] = p;
    argv[argc] = NULL;
    return fl_options_parse(&o, argc, argv, &err);
}

static void values_land_in_their_fields(void **state)
{
    (void)state;
    ASSERT_OK(
        parse("run m.gguf -p hi --mode block --think off --max-tokens 5 --temp 0.5 --vram 1.5GiB "
              "--threads 2 --seed 18446744073709551615 --stop a --stop b --stats --raw"));
    assert_string_equal(o.command, "run");
    assert_int_equal(o.n_args, 1);
    assert_string_equal(o.args[0], "m.gguf");
    assert_string_equal(o.prompt, "hi");
    assert_string_equal(o.mode, "block");
    assert_int_equal(o.think, 0);
    assert_int_equal(o.max_tokens, 5);
    assert_true(o.temp == 0.5 && o.seed == UINT64_MAX && o.seed_given);
    assert_int_equal(o.vram, 1610612736);
    assert_int_equal(o.threads, 2);
    assert_int_equal(o.n_stop, 2);
    assert_string_equal(o.stop[1], "b");
    assert_true(o.stats && o.raw && !o.json && !o.help);
    ASSERT_OK(parse("run m --logit-bias 1:2,3:-inf --repeat-stop off --soft-end on --soft-think 0 "
                    "--soft-answer 50 --soft-slope 0.5"));
    assert_string_equal(o.logit_bias, "1:2,3:-inf");
    assert_int_equal(o.repeat_stop, 0);
    assert_true(o.soft_end == 1 && o.soft_think == 0 && o.soft_answer == 50 && o.soft_slope == 0.5);
    ASSERT_OK(parse("run m --soft-end off"));
    assert_true(o.soft_end == 0 && o.soft_think == -1 && o.soft_answer == -1);
    assert_true(isnan(o.soft_slope) && o.repeat_stop == -1 && !o.logit_bias);
    ASSERT_OK(parse("run m --profile code --trace a --trace-out b"));
    assert_string_equal(o.profile, "code");
    assert_true(!strcmp(o.trace, "a") && !strcmp(o.trace_out, "b"));
    ASSERT_OK(parse("eval m t u --windows 3 --passes masked --against r --save-logits s --all"));
    assert_true(o.n_args == 3 && o.windows == 3 && o.all);
    assert_string_equal(o.passes, "masked");
    assert_string_equal(o.against, "r");
    assert_string_equal(o.save_logits, "s");
    ASSERT_OK(parse("run -p=x m --ctx=77"));
    assert_int_equal(o.ctx, 77);
    ASSERT_OK(parse("run m --ctx 78 -p -x"));
    assert_int_equal(o.ctx, 78);
    assert_string_equal(o.prompt, "-x");
    ASSERT_OK(parse("run --stop --stop m --top-p 1 --threshold 1"));
    assert_string_equal(o.stop[0], "--stop");
    ASSERT_OK(parse("plan m --mode block --act f32 --threads 3 --cpu reference --chunk 8192"));
    ASSERT_OK(parse("plan --shape clover-35b-a3b --vram 16G"));
    assert_true(o.n_args == 0);
    assert_string_equal(o.shape, "clover-35b-a3b");
    ASSERT_OK(parse("run m -p x --gpu-layers 30 --gpu-experts 12"));
    assert_true(o.gpu_layers == 30 && o.gpu_experts == 12);
    ASSERT_OK(parse("importance m a.txt b.jsonl -o f --ctx 256 --tokens 1000"));
    assert_true(o.n_args == 3 && o.ctx == 256 && o.tokens == 1000 && !o.merge);
    ASSERT_OK(parse("importance --merge a b -o f"));
    assert_true(o.merge && o.n_args == 2);
    ASSERT_OK(parse("run m"));
    assert_true(isnan(o.temp) && isnan(o.top_p) && isnan(o.threshold));
    assert_int_equal(o.think, -1);
    assert_int_equal(o.max_tokens, -1);
    ASSERT_OK(parse("logits m --ids 1,2 --all -o x.npy --chunk 64 --act f32 --kv f32"));
    assert_true(o.all);
    assert_int_equal(o.chunk, 64);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    ASSERT_FAILS(parse("importance m -o x"), FL_E_ARG, "over which text");
    ASSERT_FAILS(parse("importance m t.txt"), FL_E_ARG, "-o FILE");
    ASSERT_FAILS(parse("importance m t.txt -o x --tokens 0"), FL_E_ARG, "--tokens 0");
    ASSERT_FAILS(parse("plan --shape llama"), FL_E_ARG, "qwen3.6-35b-a3b");
    ASSERT_FAILS(parse("plan m --shape clover-35b-a3b"), FL_E_ARG, "unexpected 'm'");
    ASSERT_FAILS(parse("fly m"), FL_E_ARG, "unknown command 'fly'");
    ASSERT_FAILS(parse("run m --foo"), FL_E_ARG, "unknown option --foo");
    ASSERT_FAILS(parse("run m --foo=3"), FL_E_ARG, "unknown option --foo=3");
    ASSERT_FAILS(parse("run m -Z"), FL_E_ARG, "unknown option -Z");
    ASSERT_FAILS(parse("run m --all"), FL_E_ARG, "run does not take --all");
    ASSERT_FAILS(parse("run m --prompt"), FL_E_ARG, "needs a value");
    ASSERT_FAILS(parse("run m --mode fast"), FL_E_ARG, "one of auto|ar|block");
    ASSERT_FAILS(parse("run m --kv q4_0"), FL_E_ARG, "one of f16|q8_0|f32");
    ASSERT_FAILS(parse("run m --mode a"), FL_E_ARG, "one of auto|ar|block");
    ASSERT_FAILS(parse("run m --think maybe"), FL_E_ARG, "on or off");
    ASSERT_FAILS(parse("run m --ctx 0"), FL_E_ARG, "from 1 to 131072");
    ASSERT_FAILS(parse("run m --ctx 131073"), FL_E_ARG, "131072");
    ASSERT_FAILS(parse("run m --ctx 12x"), FL_E_ARG, "whole number");
    ASSERT_FAILS(parse("run m --temp nan"), FL_E_ARG, "--temp nan");
    ASSERT_FAILS(parse("run m --seed -1"), FL_E_ARG, "--seed -1");
    ASSERT_FAILS(parse("run"), FL_E_ARG, "needs a model");
    ASSERT_FAILS(parse("eval m"), FL_E_ARG, "needs a model and a text");
    ASSERT_FAILS(parse("eval m t --passes block"), FL_E_ARG, "one of all|causal|masked");
    ASSERT_FAILS(parse("eval m t --ctx 7"), FL_E_ARG, "from 8 to 131072");
    ASSERT_FAILS(parse("quantize a"), FL_E_ARG, "an input and an output");
    ASSERT_FAILS(parse("run a b"), FL_E_ARG, "unexpected 'b'");
    ASSERT_FAILS(parse("run m --prom x"), FL_E_ARG, "unknown option --prom");
    ASSERT_FAILS(parse("run m --prom=x"), FL_E_ARG, "unknown option --prom=x");
    ASSERT_FAILS(parse("run --js m"), FL_E_ARG, "unknown option --js");
    ASSERT_FAILS(parse("run m --prom"), FL_E_ARG, "unknown option --prom");
    ASSERT_FAILS(parse("run m --json=3"), FL_E_ARG, "--json takes no value");
    ASSERT_FAILS(parse("run m --top-p 0"), FL_E_ARG, "above 0, at most 1");
    ASSERT_FAILS(parse("run m --threshold 0"), FL_E_ARG, "above 0, at most 1");
    ASSERT_FAILS(parse("run m --top-p 1.5"), FL_E_ARG, "--top-p 1.5: expected a number above 0,");
    ASSERT_FAILS(parse("run m --top-p x"), FL_E_ARG, "--top-p x: expected a number above 0,");
    assert_int_equal(parse("run m --ram 0"), FL_OK);
    assert_int_equal(o.ram, 0);
    assert_int_equal(parse("run m --ram 3M --lanes device"), FL_OK);
    assert_int_equal(o.ram, 3 << 20);
    assert_string_equal(o.lanes, "device");
    assert_int_equal(parse("run m"), FL_OK);
    assert_int_equal(o.ram, UINT64_MAX);
    assert_int_equal(o.prefetch, -1);
    assert_int_equal(parse("run m --prefetch off --cache-policy lfu --link-rate 250MB"), FL_OK);
    assert_int_equal(o.prefetch, 0);
    assert_int_equal(o.link_rate, 250000000);
    assert_string_equal(o.policy, "lfu");
    ASSERT_FAILS(parse("run m --ram none"), FL_E_ARG, "--ram none: expected 0, or bytes above 0");
    ASSERT_FAILS(parse("run m --vram 0"), FL_E_ARG, "--vram 0: expected bytes above 0 and below");
    ASSERT_FAILS(parse("run m --state-budget 9T"), FL_E_ARG, "--state-budget 9T: expected bytes");
    ASSERT_FAILS(parse("run m --soft-end off --soft-think 5"), FL_E_ARG, "--soft-end off");
    ASSERT_FAILS(parse("run m --soft-answer 0 --soft-end off"), FL_E_ARG, "--soft-end off");
    ASSERT_FAILS(parse("run m --soft-slope 1 --soft-end off"), FL_E_ARG, "--soft-end off");
    ASSERT_FAILS(parse("run m -p x --session s --trace t"), FL_E_ARG, "--session: what --trace");
    ASSERT_FAILS(parse("run m --soft-slope 11"), FL_E_ARG, "from 0 to 10");
    ASSERT_FAILS(parse("run m --soft-think -1"), FL_E_ARG, "whole number");
    ASSERT_FAILS(parse("run m --chunk 8193"), FL_E_ARG, "from 1 to 8192");
    ASSERT_FAILS(parse("run m -p x -f y"), FL_E_ARG, "once");
    ASSERT_FAILS(parse("logits m -o x"), FL_E_ARG, "either --ids");
    ASSERT_FAILS(parse("logits m --ids 1 --text a -o x"), FL_E_ARG, "either --ids");
    ASSERT_FAILS(parse("logits m --ids 1"), FL_E_ARG, "-o FILE");
    ASSERT_FAILS(parse("logits m --ids 1 -o x --denoise 1 --all"), FL_E_ARG, "leave --all out");
    setenv("FL_VRAM", "16G", 1);
    ASSERT_FAILS(parse("run a"), FL_E_ARG, "FL_VRAM");
    unsetenv("FL_VRAM");
}

static void help_is_known(void **state)
{
    (void)state;
    ASSERT_OK(parse("--version"));
    assert_true(o.version && !o.help);
    ASSERT_OK(parse("--help"));
    assert_true(o.help && !o.command);
    ASSERT_OK(parse(""));
    assert_true(o.help);
    ASSERT_OK(parse("run --help"));
    assert_true(o.help);
    assert_string_equal(o.command, "run");
}

static void sizes_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1},
                {"4096", 4096},
                {"1K", 1024},
                {"1KiB", 1024},
                {"1kB", 1000},
                {"2M", 2 << 20},
                {"2MB", 2000000},
                {"16G", 16ull << 30},
                {"16GB", 16000000000ull},
                {"1.5GiB", 3ull << 29},
                {".5K", 512}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t b = 0;
        ASSERT_OK(fl_size_parse(good[i].text, &b, &err));
        assert_true(b == good[i].bytes);
    }
    static const char *bad[] = {"",       "-1",  "0",   "1.5",  "1X",           "1 G", "G",
                                "1e400G", "nan", "inf", "0x10", "99999999999G", "1gb", "1mb"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t b = 0;
        ASSERT_FAILS(fl_size_parse(bad[i], &b, &err), FL_E_ARG, "is not a size");
    }
    char buf[32];
    assert_string_equal(fl_size_format(buf, 16ull << 30), "16.00 GiB");
    assert_string_equal(fl_size_format(buf, 1536 << 10), "1.5 MiB");
    assert_string_equal(fl_size_format(buf, 1024), "1.0 KiB");
    assert_string_equal(fl_size_format(buf, 7), "7 B");
}

static void what_a_command_takes(void **state)
{
    (void)state;
    assert_true(fl_options_takes("run", "ctx"));
    assert_true(fl_options_takes("probe", "vram"));
    assert_false(fl_options_takes("probe", "ctx"));
    assert_false(fl_options_takes("run", "nothing"));
    assert_false(fl_options_takes("fly", "ctx"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_land_in_their_fields),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(help_is_known),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(what_a_command_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
