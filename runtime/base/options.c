#include "runtime/base/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

const char fl_version[] = "0.1.0";

/* ---- commands ---- */

enum {
    C_RUN = 1 << 0,
    C_PLAN = 1 << 1,
    C_INSPECT = 1 << 2,
    C_LOGITS = 1 << 3,
    C_QUANTIZE = 1 << 4,
    C_CALIBRATE = 1 << 5,
    C_PATCH = 1 << 6,
    C_PROBE = 1 << 7,
    C_IMPORTANCE = 1 << 8,
    C_EVAL = 1 << 9,
    C_SENSITIVITY = 1 << 10,
    C_DOCTOR = 1 << 11
};

typedef struct command {
    const char *name;
    unsigned bit;
    int min_args, max_args;
    const char *usage, *what;
} command;

static const command commands[] = {
    {"run", C_RUN, 1, 1, "run MODEL -p TEXT [options]",
     "answer one prompt; the text streams to stdout"},
    {"plan", C_PLAN, 1, 1,
     "plan MODEL | --shape NAME [--vram SIZE] [--ctx N] [--mode MODE] [--json]",
     "show what goes where, in bytes, without loading"},
    {"inspect", C_INSPECT, 1, 1, "inspect MODEL [--json]", "show what a model file holds"},
    {"logits", C_LOGITS, 1, 1, "logits MODEL --ids 1,2,3 | --text TEXT -o FILE.npy [options]",
     "write next-token logits as a NumPy file"},
    {"calibrate", C_CALIBRATE, 1, 1, "calibrate MODEL [options of run] [--json]",
     "measure how fast this machine and the ways of decoding are, for plans and --mode auto"},
    {"doctor", C_DOCTOR, 0, 1, "doctor [MODEL] [options of plan] [--json]",
     "show what this machine has, what slows it down and how to mend that"},
    {"quantize", C_QUANTIZE, 2, 2,
     "quantize IN OUT.gguf [--type T | --recipe R] [--dry-run] [options]",
     "write a GGUF file from a safetensors folder or an F32/F16/BF16 GGUF"},
    {"patch", C_PATCH, 2, 2, "patch IN.gguf OUT.gguf [--v-heads V] [--map FILE]",
     "write a GGUF file that other programs read, its weights copied as they are"},
    {"probe", C_PROBE, 1, 1, "probe MODEL [--json] [--map FILE] [options]",
     "measure how a model is wired and whether its block mode is earned; remembered"},
    {"importance", C_IMPORTANCE, 1, 4096,
     "importance MODEL TEXT... -o FILE [options] | --merge FILE... -o FILE",
     "measure the inputs of a model's matrices over text, for quantize"},
    {"sensitivity", C_SENSITIVITY, 2, 4096, "sensitivity MODEL TEXT... -o FILE [options]",
     "measure what rounding costs where, for quantize --size"},
    {"eval", C_EVAL, 2, 1 << 10, "eval MODEL TEXT... [--against REFERENCE] [--json] [options]",
     "measure perplexity, masked likelihood and the distance to another model, over text"},
};

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* ---- the one table of options ---- */

typedef enum kind {
    K_FLAG,
    K_TEXT,
    K_CHOICE,
    K_SIZE,
    K_SIZE_OR_0,
    K_INT,
    K_REAL,
    K_SHARE,
    K_ONOFF,
    K_SEED,
    K_STOP
} kind;

typedef struct option_row {
    const char *name;
    char letter; /* 0: none */
    kind kind;
    unsigned in; /* commands that take it */
    size_t offset;
    double min, max;     /* K_INT, K_REAL; K_SHARE is above 0, at most 1 */
    const char *allowed; /* K_CHOICE: words separated by '|' */
    const char *metavar, *help;
} option_row;

#define AT(field) offsetof(fl_options, field)
#define C_MODEL (C_RUN | C_LOGITS | C_CALIBRATE | C_PROBE | C_EVAL | C_SENSITIVITY | C_DOCTOR)
#define C_ALL (C_MODEL | C_PLAN | C_INSPECT | C_QUANTIZE | C_PATCH | C_IMPORTANCE)

static const option_row rows[] = {
    {"prompt", 'p', K_TEXT, C_RUN, AT(prompt), 0, 0, NULL, "TEXT", "the user's message"},
    {"file", 'f', K_TEXT, C_RUN, AT(prompt_file), 0, 0, NULL, "FILE",
     "read the message from FILE; - is standard input"},
    {"session", 0, K_TEXT, C_RUN, AT(session), 0, 0, NULL, "FILE",
     "go on with the chat in FILE, if there is one, and keep it there"},
    {"system", 0, K_TEXT, C_RUN, AT(system), 0, 0, NULL, "TEXT", "system message"},
    {"raw", 0, K_FLAG, C_RUN, AT(raw), 0, 0, NULL, NULL,
     "give the text to the model as it is, without the chat format"},
    {"mode", 0, K_CHOICE, C_RUN | C_PLAN | C_DOCTOR, AT(mode), 0, 0, "auto|ar|block|spec", "MODE",
     "block: block diffusion; spec: the text of ar in fewer passes; auto: spec, or the fastest by "
     "stored rates (calibrate), block only where it is earned"},
    {"think", 0, K_ONOFF, C_RUN | C_CALIBRATE, AT(think), 0, 0, NULL, "on|off",
     "thinking (default on): the reasoning goes to stderr"},
    {"max-tokens", 0, K_INT, C_RUN, AT(max_tokens), 0, 131072, NULL, "N", "stop after N tokens"},
    {"stop", 0, K_STOP, C_RUN, AT(stop), 0, 0, NULL, "TEXT", "stop before TEXT; may be repeated"},
    {"ignore-eos", 0, K_FLAG, C_RUN, AT(ignore_eos), 0, 0, NULL, NULL, "go on past stop tokens"},
    {"repeat-stop", 0, K_ONOFF, C_RUN, AT(repeat_stop), 0, 0, NULL, "on|off",
     "end an answer that runs in circles: a phrase of up to 64 tokens that fills 256, or a second "
     "</think> (default on)"},
    {"temp", 0, K_REAL, C_RUN, AT(temp), 0, 100, NULL, "X", "temperature; 0 is greedy"},
    {"top-k", 0, K_INT, C_RUN, AT(top_k), 0, 1e9, NULL, "N", "keep the N likeliest; 0 keeps all"},
    {"top-p", 0, K_SHARE, C_RUN, AT(top_p), 0, 1, NULL, "X", "nucleus sampling; 1 is off"},
    {"min-p", 0, K_REAL, C_RUN, AT(min_p), 0, 1, NULL, "X", "drop tokens below X times the best"},
    {"presence", 0, K_REAL, C_RUN, AT(presence), -2, 2, NULL, "X",
     "taken from the logit of a token that the answer holds already"},
    {"frequency", 0, K_REAL, C_RUN, AT(frequency), -2, 2, NULL, "X", "the same, for each time"},
    {"repetition", 0, K_REAL, C_RUN, AT(repetition), 0.1, 10, NULL, "X",
     "divides the logit of such a token (a negative one is multiplied); 1 is off"},
    {"logit-bias", 0, K_TEXT, C_RUN, AT(logit_bias), 0, 0, NULL, "ID:X,...",
     "added to the logits of up to 256 tokens: -100 to 100, or -inf for never"},
    {"soft-end", 0, K_ONOFF, C_RUN, AT(soft_end), 0, 0, NULL, "on|off",
     "push long thoughts and answers to their end: a growing bias on </think> and on the end token "
     "(default: on for clover_moe)"},
    {"soft-think", 0, K_INT, C_RUN, AT(soft_think), 0, 131072, NULL, "N",
     "tokens of thinking from which on (4096); 0: never"},
    {"soft-answer", 0, K_INT, C_RUN, AT(soft_answer), 0, 131072, NULL, "N",
     "tokens of the answer from which on (8192); 0: never"},
    {"soft-slope", 0, K_REAL, C_RUN, AT(soft_slope), 0, 10, NULL, "X",
     "what each token more adds to the logit (0.01)"},
    {"seed", 0, K_SEED, C_RUN, AT(seed), 0, 0, NULL, "N", "seed of the sampler (default 0)"},
    {"threshold", 0, K_SHARE, C_RUN, AT(threshold), 0, 1, NULL, "X",
     "block mode: confidence that commits a token; default: the file's, else 0.95"},
    {"block-mode", 0, K_CHOICE, C_RUN | C_LOGITS | C_CALIBRATE | C_IMPORTANCE | C_EVAL,
     AT(block_mode), 0, 0, "causal|blockend|mixed|bidir", "M",
     "how GDN layers work inside a block; default: as the file says"},
    {"vram", 0, K_SIZE, C_MODEL | C_PLAN, AT(vram), 0, 0, NULL, "SIZE",
     "cap of device memory, as 16G or 900MiB; default: what the model wants"},
    {"ram", 0, K_SIZE_OR_0, C_MODEL | C_PLAN, AT(ram), 0, 0, NULL, "SIZE",
     "cap of host memory for experts; 0 keeps none there; default: what is free, less an eighth"},
    {"ctx", 0, K_INT, C_RUN | C_LOGITS | C_CALIBRATE | C_PLAN | C_DOCTOR, AT(ctx), 1, 131072, NULL,
     "N", "tokens of prompt and answer together; default: 4096, or what the model takes if less"},
    {"ctx", 0, K_INT, C_EVAL, AT(ctx), 8, 131072, NULL, "N",
     "tokens of a window, of which the second half is scored (default 512)"},
    {"windows", 0, K_INT, C_EVAL | C_SENSITIVITY, AT(windows), 1, 1e9, NULL, "N",
     "at most N windows"},
    {"passes", 0, K_CHOICE, C_EVAL, AT(passes), 0, 0, "all|causal|masked", "WHICH",
     "what to measure (default all: the causal path, and block passes if the model has masks)"},
    {"against", 0, K_TEXT, C_EVAL, AT(against), 0, 0, NULL, "REFERENCE",
     "compare with a model, which runs first, or with the rows in a file of --save-logits"},
    {"save-logits", 0, K_TEXT, C_EVAL, AT(save_logits), 0, 0, NULL, "FILE",
     "keep this model's rows, to compare others with"},
    {"gpu-layers", 0, K_INT, C_MODEL | C_PLAN, AT(gpu_layers), 0, 1e6, NULL, "N",
     "keep all experts of the first N layers in device memory; dense weights are there anyway"},
    {"gpu-experts", 0, K_INT, C_MODEL | C_PLAN, AT(gpu_experts), 0, 1e6, NULL, "N",
     "keep the N hottest experts of each layer in device memory"},
    {"shape", 0, K_CHOICE, C_PLAN, AT(shape), 0, 0, "clover-35b-a3b|qwen3.6-35b-a3b", "NAME",
     "instead of MODEL: plan for this one by its sizes alone, rounded by the recipe q4"},
    {"svg", 0, K_TEXT, C_PLAN, AT(svg), 0, 0, NULL, "FILE",
     "draw where each expert of each layer is kept"},
    {"state-budget", 0, K_SIZE, C_RUN | C_PLAN | C_DOCTOR, AT(state_budget), 0, 0, NULL, "SIZE",
     "host memory for checkpoints of the model's state; default: a tenth of this machine's"},
    {"kv", 0, K_CHOICE, C_MODEL | C_PLAN, AT(kv), 0, 0, "f16|q8_0|f32", "TYPE",
     "type of the KV cache"},
    {"device", 0, K_CHOICE, C_MODEL | C_PLAN, AT(device), 0, 0, "host|cuda", "NAME",
     "where to compute (default host)"},
    {"threads", 0, K_INT, C_MODEL | C_PLAN | C_QUANTIZE | C_IMPORTANCE, AT(threads), 1, 256, NULL,
     "N", "CPU threads; default: physical cores"},
    {"cpu", 0, K_CHOICE, C_MODEL | C_PLAN | C_IMPORTANCE, AT(cpu), 0, 0,
     "reference|avx2|avxvnni|avx512vnni|amx", "TIER", "best instruction tier to use"},
    {"chunk", 0, K_INT, C_RUN | C_LOGITS | C_CALIBRATE | C_PLAN | C_EVAL | C_DOCTOR, AT(chunk), 1,
     8192, NULL, "N", "rows per prefill pass (default 512); the text does not depend on it"},
    {"act", 0, K_CHOICE, C_MODEL | C_PLAN | C_IMPORTANCE, AT(act), 0, 0, "law|f32", "KIND",
     "law: the numeric law; f32: float activations, for comparisons"},
    {"io", 0, K_CHOICE, C_MODEL | C_QUANTIZE | C_IMPORTANCE, AT(io), 0, 0, "uring|pread|fake",
     "BACKEND",
     "how weights are read; default: the best that works; fake: one read at a time, for tests"},
    {"lanes", 0, K_CHOICE, C_MODEL | C_PLAN, AT(lanes), 0, 0, "auto|cpu|device", "LANE",
     "where experts of host memory are computed: there, or on the device behind a copy (default "
     "auto: as measured)"},
    {"profile", 0, K_TEXT, C_RUN | C_PLAN, AT(profile), 0, 0, NULL, "NAME",
     "which experts are kept at hand: those that runs of this NAME used, one for each kind of "
     "text; "
     "none: all are alike and nothing is kept (default: default)"},
    {"trace", 0, K_TEXT, C_RUN, AT(trace), 0, 0, NULL, "FILE",
     "for measuring models of made-up weights: route, commit and accept as this trace says"},
    {"trace-out", 0, K_TEXT, C_RUN, AT(trace_out), 0, 0, NULL, "FILE",
     "write which experts each row of each pass went to"},
    {"cache-policy", 0, K_CHOICE, C_MODEL, AT(policy), 0, 0, "lru|lfu|block", "POLICY",
     "which expert makes room for another (default block)"},
    {"prefetch", 0, K_ONOFF, C_MODEL | C_PLAN, AT(prefetch), 0, 0, NULL, "on|off",
     "bring experts before they are asked for (default on)"},
    {"link-rate", 0, K_SIZE, C_MODEL | C_PLAN, AT(link_rate), 0, 0, NULL, "SIZE",
     "bytes per second that the host device copies at most, to stand for a slower link"},
    {"stats", 0, K_FLAG, C_RUN, AT(stats), 0, 0, NULL, NULL, "statistics on stderr"},
    {"v-heads", 0, K_CHOICE, C_ALL, AT(v_heads), 0, 0, "grouped|tiled", "V",
     "how a GGUF file orders the value heads of GDN layers; default: as it says"},
    {"map", 0, K_TEXT, C_ALL, AT(map), 0, 0, NULL, "FILE",
     "lines of ROLE NAME: which tensor plays which role, * for the layer's number"},
    {"json", 0, K_FLAG,
     C_RUN | C_PLAN | C_INSPECT | C_CALIBRATE | C_PROBE | C_QUANTIZE | C_IMPORTANCE | C_EVAL |
         C_DOCTOR,
     AT(json), 0, 0, NULL, NULL, "one JSON object on stdout"},
    {"ctx", 0, K_INT, C_IMPORTANCE, AT(ctx), 2, 131072, NULL, "N",
     "tokens of a window, which is a sequence of its own (default 512)"},
    {"tokens", 0, K_INT, C_IMPORTANCE, AT(tokens), 1, 1e9, NULL, "N",
     "take the first N tokens of the text; default: all"},
    {"merge", 0, K_FLAG, C_IMPORTANCE, AT(merge), 0, 0, NULL, NULL,
     "make one file of several that were measured on the same model"},
    {"ids", 0, K_TEXT, C_LOGITS, AT(ids), 0, 0, NULL, "1,2,3", "token ids"},
    {"text", 0, K_TEXT, C_LOGITS, AT(text), 0, 0, NULL, "TEXT", "text to tokenize"},
    {"all", 0, K_FLAG, C_EVAL, AT(all), 0, 0, NULL, NULL,
     "score the prompts of JSON lines too, not only what follows them"},
    {"all", 0, K_FLAG, C_LOGITS, AT(all), 0, 0, NULL, NULL,
     "every row, not only the last (--denoise gives every row of the block)"},
    {"denoise", 0, K_TEXT, C_LOGITS, AT(denoise), 0, 0, NULL, "MASKS",
     "positions to mask, as 40-47,50: logits of the block pass"},
    {"out", 'o', K_TEXT, C_LOGITS | C_IMPORTANCE | C_SENSITIVITY, AT(out), 0, 0, NULL, "FILE",
     "output file"},
    {"arch", 0, K_CHOICE, C_QUANTIZE, AT(arch), 0, 0, "clover_moe|qwen35moe", "ARCH",
     "architecture to write; qwen35moe drops the bidirectional tensors"},
    {"type", 0, K_CHOICE, C_QUANTIZE, AT(type), 0, 0,
     "q4_k|q5_k|q6_k|q8_0|q4_0|iq4_xs|bf16|f16|f32", "TYPE",
     "type of the large matrices (default q4_k)"},
    {"recipe", 0, K_TEXT, C_QUANTIZE, AT(recipe), 0, 0, NULL, "NAME|FILE",
     "which tensor gets which type: q4, q4_k_m, q5, q6, q8, q4_0, iq4_xs, bf16, f16, f32, keep, or "
     "a file of lines PATTERN TYPE"},
    {"importance", 0, K_TEXT, C_QUANTIZE, AT(importance), 0, 0, NULL, "FILE",
     "lead the rounding by what the matrices' inputs look like: a file of fourleaf importance, or "
     "an imatrix GGUF of llama.cpp"},
    {"size", 0, K_SIZE, C_QUANTIZE, AT(size), 0, 0, NULL, "SIZE",
     "choose the types so that the file has at most SIZE bytes, with the least expected loss; "
     "lines "
     "of a --recipe file come first"},
    {"sensitivity", 0, K_TEXT, C_QUANTIZE, AT(sensitivity), 0, 0, NULL, "FILE",
     "with --size: what rounding costs where, a file of fourleaf sensitivity"},
    {"requantize", 0, K_FLAG, C_QUANTIZE, AT(requantize), 0, 0, NULL, NULL,
     "round tensors again that are quantized already"},
    {"resume", 0, K_FLAG, C_QUANTIZE, AT(resume), 0, 0, NULL, NULL,
     "go on with a run that was killed or interrupted, behind its last whole tensor"},
    {"split-size", 0, K_SIZE, C_QUANTIZE, AT(split_size), 0, 0, NULL, "SIZE",
     "files of at most SIZE, OUT-00001-of-00003.gguf and so on, as other programs split them"},
    {"dry-run", 0, K_FLAG, C_QUANTIZE, AT(dry_run), 0, 0, NULL, NULL,
     "print the sizes and write nothing"},
    {"help", 'h', K_FLAG, C_ALL, AT(help), 0, 0, NULL, NULL, "this text"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

bool fl_options_takes(const char *command_name, const char *name)
{
    const command *c = find_command(command_name);
    for (int i = 0; c && i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return (rows[i].in & c->bit) != 0;
    return false;
}

/* ---- values ---- */

#define SIZE_FORM                                                                                \
    "bytes above 0 and below 2^63, as a number with K, M, G, KiB, MiB, GiB (powers of 1024) or " \
    "kB, MB, GB (powers of 1000): 15.5GiB"

fl_status fl_size_parse(const char *text, uint64_t *bytes, fl_err *err)
{
    static const struct {
        const char *suffix;
        double factor;
    } unit[] = {{"", 1},       {"B", 1},        {"K", 0x1p10}, {"KiB", 0x1p10},
                {"M", 0x1p20}, {"MiB", 0x1p20}, {"G", 0x1p30}, {"GiB", 0x1p30},
                {"kB", 1e3},   {"MB", 1e6},     {"GB", 1e9}};
    char *end = NULL;
    errno = 0;
    const bool digit = isdigit((unsigned char)text[0]) || text[0] == '.';
    const bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const double v = digit && !hex ? strtod(text, &end) : -1;
    if (end && v >= 0 && errno == 0)
        for (size_t i = 0; i < sizeof unit / sizeof *unit; i++)
            if (strcmp(end, unit[i].suffix) == 0) {
                const double b = v * unit[i].factor;
                if (b >= 0x1p63) break;
                if (b < 1 || (unit[i].factor == 1 && b != floor(b))) break;
                *bytes = (uint64_t)b;
                return FL_OK;
            }
    return FL_FAIL(err, FL_E_ARG, 0, "'%s' is not a size; expected " SIZE_FORM, text);
}

const char *fl_size_format(char buf[32], uint64_t bytes)
{
    if (bytes >= 1ull << 30)
        snprintf(buf, 32, "%.2f GiB", (double)bytes / 0x1p30);
    else if (bytes >= 1ull << 20)
        snprintf(buf, 32, "%.1f MiB", (double)bytes / 0x1p20);
    else if (bytes >= 1ull << 10)
        snprintf(buf, 32, "%.1f KiB", (double)bytes / 0x1p10);
    else
        snprintf(buf, 32, "%" PRIu64 " B", bytes);
    return buf;
}

static bool word_in(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; n && p; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, word, n) == 0 && (p[n] == '|' || p[n] == 0)) return true;
    }
    return false;
}

static fl_status parse_number(const option_row *r, const char *v, double *out, fl_err *err)
{
    char *end = NULL;
    errno = 0;
    if (r->kind == K_INT)
        *out = (double)strtoll(v, &end, 10);
    else
        *out = strtod(v, &end);
    const bool number = end != v && !*end && !isspace((unsigned char)*v) && !errno;
    const bool inside = *out >= r->min && *out <= r->max;
    if (number && inside && (r->kind != K_SHARE || *out > 0.0)) return FL_OK;
    if (r->kind == K_SHARE)
        return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected a number above 0, at most 1", r->name,
                       v);
    return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected %s from %.10g to %.10g", r->name, v,
                   r->kind == K_INT ? "a whole number" : "a number", r->min, r->max);
}

static fl_status set_stop(fl_options *o, const char *v, fl_err *err)
{
    const int most = (int)(sizeof o->stop / sizeof *o->stop);
    if (!*v) return FL_FAIL(err, FL_E_ARG, 0, "--stop: an empty text would stop at once");
    if (o->n_stop == most)
        return FL_FAIL(err, FL_E_ARG, 0, "--stop %s: at most %d stop texts", v, most);
    o->stop[o->n_stop++] = v;
    return FL_OK;
}

static fl_status set_value(fl_options *o, const option_row *r, const char *v, fl_err *err)
{
    void *field = (char *)o + r->offset;
    double x;
    switch (r->kind) {
    case K_FLAG: *(bool *)field = true; return FL_OK;
    case K_TEXT: *(const char **)field = v; return FL_OK;
    case K_CHOICE:
        if (!word_in(r->allowed, v))
            return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected one of %s", r->name, v, r->allowed);
        *(const char **)field = v;
        return FL_OK;
    case K_SIZE:
        if (fl_size_parse(v, field, NULL) == FL_OK) return FL_OK;
        return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected " SIZE_FORM, r->name, v);
    case K_SIZE_OR_0:
        if (strcmp(v, "0") == 0)
            *(uint64_t *)field = 0;
        else if (fl_size_parse(v, field, NULL) != FL_OK)
            return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected 0, or " SIZE_FORM, r->name, v);
        return FL_OK;
    case K_INT:
        FL_TRY(parse_number(r, v, &x, err));
        if (r->offset == AT(threads))
            *(int *)field = (int)x;
        else
            *(int64_t *)field = (int64_t)x;
        return FL_OK;
    case K_REAL:
    case K_SHARE:
        FL_TRY(parse_number(r, v, &x, err));
        *(double *)field = x;
        return FL_OK;
    case K_ONOFF:
        if (strcmp(v, "on") != 0 && strcmp(v, "off") != 0)
            return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected on or off", r->name, v);
        *(int *)field = v[1] == 'n';
        return FL_OK;
    case K_SEED: {
        char *end = NULL;
        errno = 0;
        o->seed = strtoull(v, &end, 10);
        if (!isdigit((unsigned char)*v) || *end || errno)
            return FL_FAIL(err, FL_E_ARG, 0, "--seed %s: expected a whole number from 0 to 2^64-1",
                           v);
        o->seed_given = true;
        return FL_OK;
    }
    case K_STOP: return set_stop(o, v, err);
    }
    return FL_OK;
}

/* ---- parsing ---- */

static fl_status check_environment(fl_err *err)
{
    for (char **e = environ; e && *e; e++)
        if (strncmp(*e, "FL_", 3) == 0 && strncmp(*e, "FL_TEST_", 8) != 0) {
            const int n = (int)strcspn(*e, "=");
            return FL_FAIL(err, FL_E_ARG, 0,
                           "environment variable %.*s: no FL_ variable is read; use the option of "
                           "that name (fourleaf --help)",
                           n, *e);
        }
    return FL_OK;
}

static void defaults(fl_options *o)
{
    memset(o, 0, sizeof *o);
    o->think = o->repeat_stop = o->soft_end = -1;
    o->soft_think = o->soft_answer = -1;
    o->ram = UINT64_MAX;
    o->prefetch = -1;
    o->max_tokens = -1;
    o->top_k = -1;
    o->temp = o->top_p = o->min_p = o->threshold = NAN;
    o->presence = o->frequency = o->repetition = o->soft_slope = NAN;
}

static fl_status unknown_option(const command *c, char **argv, int at, fl_err *err)
{
    const char *word = at > 0 ? argv[at] : "?";
    const char *bare = word + strspn(word, "-");
    const int len = (int)strcspn(bare, "=");
    for (int i = 0; i < N_ROWS; i++)
        if ((int)strlen(rows[i].name) == len && strncmp(rows[i].name, bare, (size_t)len) == 0)
            return FL_FAIL(err, FL_E_ARG, 0, "%s does not take --%s (fourleaf %s --help)", c->name,
                           rows[i].name, c->name);
    return FL_FAIL(err, FL_E_ARG, 0, "unknown option %s (fourleaf %s --help lists them)", word,
                   c->name);
}

static const option_row *row_of(int got)
{
    if (got >= 256) return &rows[got - 256];
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].letter && rows[i].letter == got) return &rows[i];
    return NULL;
}

/* getopt takes any beginning of a name that only one option has: a name that grows a sister later
 * would change what a script means. `word` is the argument as written. */
static bool is_shortened(const option_row *r, const char *word)
{
    if (strncmp(word, "--", 2) != 0) return false; /* a letter */
    const size_t n = strcspn(word + 2, "=");
    return n != strlen(r->name) || strncmp(word + 2, r->name, n) != 0;
}

/* What getopt could not take: `got` is '?' or ':', optopt the option's value where it knew one. */
static fl_status refuse(const command *c, char **av, int at, int got, fl_err *err)
{
    const option_row *r = optopt ? row_of(optopt) : NULL;
    const int last = optind > at ? optind - 1 : at;
    if (r && is_shortened(r, av[last])) return unknown_option(c, av, last, err);
    if (got == ':')
        return FL_FAIL(err, FL_E_ARG, 0, "%s needs a value (fourleaf %s --help)", av[last],
                       c->name);
    if (r && r->kind == K_FLAG && (r->in & c->bit))
        return FL_FAIL(err, FL_E_ARG, 0, "--%s takes no value (fourleaf %s --help)", r->name,
                       c->name);
    return unknown_option(c, av, last, err);
}

static fl_status check_importance(const fl_options *o, fl_err *err)
{
    if (!o->out) return FL_FAIL(err, FL_E_ARG, 0, "importance: where to? Give -o FILE");
    if (!o->merge && o->n_args < 2)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "importance: over which text? Give text files behind the model");
    return FL_OK;
}

/* Options that exclude or need each other. */
static fl_status check_together(const fl_options *o, const command *c, fl_err *err)
{
    if (o->prompt && o->prompt_file)
        return FL_FAIL(err, FL_E_ARG, 0, "give the prompt once: -p TEXT or -f FILE");
    if (o->soft_end == 0 && (o->soft_think >= 0 || o->soft_answer >= 0 || !isnan(o->soft_slope)))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--soft-end off: --soft-think, --soft-answer and --soft-slope have no use "
                       "then; leave them out");
    if (o->session && o->raw)
        return FL_FAIL(err, FL_E_ARG, 0, "--session keeps a chat: leave --raw out");
    if (o->session && o->trace)
        return FL_FAIL(err, FL_E_ARG, 0, "--session: what --trace makes is no chat to keep");
    if (c->bit == C_QUANTIZE && o->json && !o->dry_run)
        return FL_FAIL(err, FL_E_ARG, 0, "--json: quantize has an object with --dry-run alone");
    if (c->bit == C_SENSITIVITY && !o->out)
        return FL_FAIL(err, FL_E_ARG, 0, "sensitivity: where to? Give -o FILE");
    if (c->bit == C_IMPORTANCE) return check_importance(o, err);
    if (o->size && o->type)
        return FL_FAIL(err, FL_E_ARG, 0, "--size chooses the types: leave --type out");
    if (o->sensitivity && !o->size)
        return FL_FAIL(err, FL_E_ARG, 0, "--sensitivity has a use with --size alone");
    if (c->bit != C_LOGITS) return FL_OK;
    if ((o->ids != NULL) == (o->text != NULL))
        return FL_FAIL(err, FL_E_ARG, 0, "logits: give either --ids 1,2,3 or --text TEXT");
    if (!o->out) return FL_FAIL(err, FL_E_ARG, 0, "logits: where to? Give -o FILE.npy");
    if (o->all && o->denoise)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--all: --denoise gives every row of its block; leave --all out");
    return FL_OK;
}

/* getopt's tables for one command. */
static void build_tables(const command *c, struct option *longs, char *shorts)
{
    int n = 0;
    *shorts++ = ':';
    for (int i = 0; i < N_ROWS; i++) {
        if (!(rows[i].in & c->bit)) continue;
        const int has_arg = rows[i].kind != K_FLAG;
        longs[n++] = (struct option){rows[i].name, has_arg, NULL, 256 + i};
        if (rows[i].letter) {
            *shorts++ = rows[i].letter;
            if (has_arg) *shorts++ = ':';
        }
    }
    longs[n] = (struct option){0};
    *shorts = 0;
}

fl_status fl_options_parse(fl_options *o, int argc, char **argv, fl_err *err)
{
    defaults(o);
    FL_TRY(check_environment(err));
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        o->help = true;
        return FL_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        o->version = true;
        return FL_OK;
    }
    const command *c = find_command(argv[1]);
    if (!c)
        return FL_FAIL(err, FL_E_ARG, 0, "unknown command '%s' (fourleaf --help lists them)",
                       argv[1]);
    o->command = c->name;

    struct option longs[N_ROWS + 1];
    char shorts[3 * N_ROWS + 2];
    build_tables(c, longs, shorts);
    optind = 0; /* full restart: tests parse more than once */
    opterr = 0;
    char **av = argv + 1;
    const int ac = argc - 1;
    for (;;) {
        const int at = optind ? optind : 1;
        const int got = getopt_long(ac, av, shorts, longs, NULL);
        if (got == -1) break;
        if (got == ':' || got == '?') return refuse(c, av, at, got, err);
        const option_row *r = row_of(got);
        const int word = optind - (got >= 256 && optarg == av[optind - 1] ? 2 : 1);
        if (got >= 256 && is_shortened(r, av[word])) return unknown_option(c, av, word, err);
        FL_TRY(set_value(o, r, optarg, err));
    }
    o->args = (const char *const *)(av + optind);
    o->n_args = ac - optind;
    if (o->help) return FL_OK;
    const int least = o->shape ? 0 : c->min_args, most = o->shape ? 0 : c->max_args;
    if (o->n_args < least)
        return FL_FAIL(err, FL_E_ARG, 0, "%s needs %s: fourleaf %s", c->name,
                       c->min_args == 1   ? "a model"
                       : c->max_args == 2 ? "an input and an output"
                                          : "a model and a text",
                       c->usage);
    if (o->n_args > most)
        return FL_FAIL(err, FL_E_ARG, 0, "%s: unexpected '%s': fourleaf %s", c->name, o->args[most],
                       c->usage);
    return check_together(o, c, err);
}

/* ---- help ---- */

void fl_options_help(const char *name)
{
    const command *c = name ? find_command(name) : NULL;
    if (!c) {
        puts("Fourleaf runs Clover-35B-A3B and its base model on one consumer GPU.\n\nCommands:");
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
            printf("  %-10s %s\n", commands[i].name, commands[i].what);
        puts("\nfourleaf COMMAND --help lists a command's options; fourleaf --version names the "
             "version.");
        return;
    }
    printf("fourleaf %s\n  %s\n\nOptions:\n", c->usage, c->what);
    for (int i = 0; i < N_ROWS; i++) {
        const option_row *r = &rows[i];
        if (!(r->in & c->bit)) continue;
        char left[64];
        snprintf(left, sizeof left, "%s%c%s--%s%s%s", r->letter ? "-" : " ",
                 r->letter ? r->letter : ' ', r->letter ? ", " : "  ", r->name,
                 r->metavar ? " " : "", r->metavar ? r->metavar : "");
        printf("  %-26s %s%s%s\n", left, r->help, r->allowed ? ": " : "",
               r->allowed ? r->allowed : "");
    }
}
