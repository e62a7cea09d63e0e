#ifndef FL_TOOLS_LOGIT_FILE_H
#define FL_TOOLS_LOGIT_FILE_H

#include "runtime/base/status.h"
#include "runtime/tools/logit_row.h"

/* Rows of logits in a file (logit_row.h), for a model that is compared with another one later: the
 * two are never in memory together. Little endian: fl_logit_setup and the counts in a head of 192
 * bytes, then the rows. Head and rows have an XXH3 each. */

/* Of which rows the file is: window by window of the text (eval_plan.h), in each the causal ones
 * first. */
typedef struct fl_logit_setup {
    uint64_t tokenizer; /* hash of the vocabulary */
    uint64_t text;      /* fl_corpus_hash */
    uint64_t model;     /* fl_model_identity */
    uint32_t vocab;     /* logits in a row, at most FL_LOGIT_VOCAB_MAX */
    uint32_t ctx;       /* tokens of a window */
    uint32_t windows;
    uint32_t block_size; /* of block passes; 0: there are none */
    uint32_t causal;     /* 1: rows of the causal path are there, else 0 */
    uint32_t prompts;    /* 1: of prompts too */
    uint32_t act_f32, kv_type;
    char name[96]; /* of the model's file, for people; NUL-terminated */
} fl_logit_setup;
enum { FL_LOGIT_VOCAB_MAX = 1 << 22 };

/* True when the file begins as one of these. */
bool fl_logit_file_is(const char *path);

/* Written under a temporary name and renamed by commit; checks the free space first. */
typedef struct fl_logit_writer fl_logit_writer;
FL_CHECKED fl_status fl_logit_writer_open(fl_logit_writer **out, const char *path,
                                          const fl_logit_setup *s, uint64_t n_rows, fl_err *err);
/* The next n rows, packed. */
FL_CHECKED fl_status fl_logit_writer_put(fl_logit_writer *w, const void *rows, uint64_t n,
                                         fl_err *err);
/* All rows are there (assert): the head is written, the temporary is whole and can be read. */
FL_CHECKED fl_status fl_logit_writer_finish(fl_logit_writer *w, fl_err *err);
const char *fl_logit_writer_tmp_path(const fl_logit_writer *w);
/* Finishes and renames. *w becomes NULL whatever the outcome. */
FL_CHECKED fl_status fl_logit_writer_commit(fl_logit_writer **w, fl_err *err);
void fl_logit_writer_discard(fl_logit_writer **w);

/* Reads the whole file once to verify it. FL_E_IO; FL_E_FORMAT: another kind of file, another
 * version, cut short, damaged. */
typedef struct fl_logit_reader fl_logit_reader;
FL_CHECKED fl_status fl_logit_reader_open(fl_logit_reader **out, const char *path, fl_err *err);
void fl_logit_reader_close(fl_logit_reader **r);
const fl_logit_setup *fl_logit_reader_setup(const fl_logit_reader *r);
uint64_t fl_logit_reader_rows(const fl_logit_reader *r);
/* Rows [first, first + n), each valid, into dst (8-byte aligned). FL_E_FORMAT. */
FL_CHECKED fl_status fl_logit_reader_get(fl_logit_reader *r, uint64_t first, uint64_t n, void *dst,
                                         fl_err *err);

#endif
