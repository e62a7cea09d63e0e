#ifndef FL_BASE_OPTIONS_H
#define FL_BASE_OPTIONS_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* Every option of every command, from one table (options.c). Strings point into argv.
 * 0 / NULL / -1 means "not given" where noted; defaults of decoding options come from the
 * model's generation config and are resolved by the decode layer. */
typedef struct fl_options {
    const char *command;
    const char *const *args; /* positional arguments behind the command */
    int n_args;

    /* text in and out */
    const char *prompt;      /* -p, --prompt */
    const char *prompt_file; /* -f */
    const char *system;      /* --system */
    const char *out;         /* -o */
    const char *session;     /* --session FILE */
    const char *ids;         /* --ids 1,2,3 */
    const char *text;        /* --text */
    const char *denoise;     /* --denoise MASKS */
    bool raw;                /* --raw: prompt is not wrapped in the chat format */
    bool all;                /* --all */
    bool json;               /* --json */
    bool stats;              /* --stats */
    bool help, version;

    /* decoding */
    const char *mode;   /* --mode auto|ar|block|spec; NULL = auto */
    int think;          /* --think on|off: 1, 0, -1 not given */
    int64_t max_tokens; /* -1 not given */
    const char *stop[16];
    int n_stop;
    bool ignore_eos;
    int repeat_stop;           /* --repeat-stop on|off: 1, 0, -1 not given */
    double temp, top_p, min_p; /* NAN not given */
    int64_t top_k;             /* -1 not given */
    uint64_t seed;
    bool seed_given;
    double presence, frequency, repetition; /* NAN not given */
    const char *logit_bias;                 /* --logit-bias ID:VALUE,... */
    int soft_end;                           /* --soft-end on|off: 1, 0, -1 not given */
    int64_t soft_think, soft_answer;        /* -1 not given */
    double soft_slope;                      /* NAN not given */
    double threshold;                       /* --threshold, NAN not given */

    /* memory and machine */
    uint64_t vram;         /* bytes; 0 not given */
    uint64_t ram;          /* bytes; UINT64_MAX not given */
    uint64_t state_budget; /* bytes; 0 not given */
    int64_t ctx;           /* tokens; 0 not given */
    const char *kv;        /* f16|q8_0|f32 */
    const char *device;    /* host */
    int threads;           /* 0 not given */
    const char *cpu;       /* tier name */

    int64_t gpu_layers;  /* --gpu-layers N; 0 not given */
    int64_t gpu_experts; /* --gpu-experts N, of each layer; 0 not given */
    const char *shape;   /* --shape NAME: plan for a known model without its file */
    const char *svg;     /* --svg FILE */

    const char *profile; /* --profile NAME; NULL not given */

    /* measuring and testing */
    const char *trace;      /* --trace FILE */
    const char *trace_out;  /* --trace-out FILE */
    int64_t chunk;          /* --chunk, 0 not given */
    const char *act;        /* law|f32 */
    const char *io;         /* uring|pread|fake */
    const char *lanes;      /* auto|cpu|device */
    const char *policy;     /* --cache-policy lru|lfu|block */
    int prefetch;           /* --prefetch on|off: 1, 0, -1 not given */
    uint64_t link_rate;     /* --link-rate, bytes per second; 0 not given */
    const char *block_mode; /* --block-mode causal|blockend|mixed|bidir: overrides the model's */

    /* eval */
    const char *against;     /* --against REFERENCE */
    const char *save_logits; /* --save-logits FILE */
    const char *passes;      /* all|causal|masked; NULL: all */
    int64_t windows;         /* 0 not given */

    /* how the model's files are to be read */
    const char *v_heads; /* --v-heads grouped|tiled */
    const char *map;     /* --map FILE */

    /* importance */
    int64_t tokens; /* --tokens, 0 not given */
    bool merge;     /* --merge */

    /* quantize */
    const char *arch;        /* --arch clover_moe|qwen35moe */
    const char *type;        /* --type q4_k|q5_k|...: type of the large matrices, default q4_k */
    const char *recipe;      /* --recipe NAME|FILE */
    const char *importance;  /* --importance FILE */
    uint64_t size;           /* --size, bytes; 0 not given */
    const char *sensitivity; /* --sensitivity FILE */
    bool requantize;         /* --requantize */
    bool dry_run;            /* --dry-run */
    bool resume;             /* --resume */
    uint64_t split_size;     /* --split-size, bytes; 0 not given */
} fl_options;

/* Parses argv. Unknown commands, unknown or shortened options, bad values, options that exclude
 * each other and FL_* environment variables are errors that name the word, what is allowed and how
 * to get help. Held by tests/base/test_options.c. */
FL_CHECKED fl_status fl_options_parse(fl_options *o, int argc, char **argv, fl_err *err);
/* Whether a command takes the option of that name. */
bool fl_options_takes(const char *command_name, const char *name);
/* "16G", "15.5GiB", "800MB", "4096": K, M, G, KiB, MiB, GiB are powers of 1024; kB, MB, GB of
 * 1000. Negative, empty, fractional bytes and overflow are refused. */
FL_CHECKED fl_status fl_size_parse(const char *text, uint64_t *bytes, fl_err *err);
/* "1.50 GiB", "12.3 MiB", "512 B" into buf. Returns buf. */
const char *fl_size_format(char buf[32], uint64_t bytes);
extern const char fl_version[]; /* "0.1.0" */
/* Help text of a command (NULL = overview) to stdout. */
void fl_options_help(const char *command);

#endif
