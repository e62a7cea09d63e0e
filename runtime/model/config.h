#ifndef FL_MODEL_CONFIG_H
#define FL_MODEL_CONFIG_H

#include "runtime/model/source.h"

/* One way to ask for a model's settings, whether they stand in GGUF metadata under the
 * architecture's prefix or in config.json (nested in text_config or flat). */
typedef struct fl_config {
    const fl_source *src;
    const fl_gguf *gguf; /* or NULL */
    const fl_json *text; /* text_config, or the whole config.json; NULL for GGUF */
    const fl_json *top;  /* config.json */
    char arch[32];       /* "qwen35moe" or "clover_moe", whatever spelling the file has */
    char prefix[3][72];  /* GGUF: prefixes to try, as the file spells it first */
    const char *path;    /* for messages */
} fl_config;

/* Finds out the architecture. FL_E_UNSUPPORTED names an unknown one and those that run;
 * FL_E_FORMAT: the file says none. */
FL_CHECKED fl_status fl_config_open(fl_config *c, const fl_source *src, fl_err *err);

/* The architecture as the file spells it, "" when it does not say; into buf. */
const char *fl_config_arch_spelling(const fl_source *src, char buf[64]);

/* The GGUF key "<arch>.<name>" or NULL. */
const fl_kv *fl_config_kv(const fl_config *c, const char *name);
/* The value of config.json: text_config first, then the top level; NULL when absent or null. */
const fl_json *fl_config_json(const fl_config *c, const char *name);

/* Typed reads by both names (either may be NULL); false when the setting is absent or of another
 * kind. An integer stored as an array per layer gives its maximum (Ollama: 0 on GDN layers). */
bool fl_config_int(const fl_config *c, const char *gguf, const char *hf, int64_t *v);
bool fl_config_num(const fl_config *c, const char *gguf, const char *hf, double *v);
bool fl_config_bool(const fl_config *c, const char *gguf, const char *hf, bool *v);
/* Text up to 63 bytes into buf. */
bool fl_config_str(const fl_config *c, const char *gguf, const char *hf, char buf[64]);

#endif
