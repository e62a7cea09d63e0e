#ifndef FL_TOOLS_PROBE_SEARCH_H
#define FL_TOOLS_PROBE_SEARCH_H

#include "runtime/tools/probe_measure.h"
#include "runtime/tools/probe_roles.h"

/* The search of the probe: first how the file stores what it stores, by the likelihood of plain
 * text, then each guess about blocks by the likelihood of masked text. One guess after the other is
 * settled with the others as they stand, again from the first until nothing changes (coordinate
 * descent): every alternative is measured beside its winner, no product of all of them is. */

/* One measured alternative of a guess. */
typedef struct fl_probe_entry {
    char guess[32], value[64];
    double nll[FL_MASK_LEVELS]; /* file forms: the mean alone */
    double mean;
    double diff, se; /* of its rows against those of the guess's base; file forms: se is 0 */
    bool base;       /* what holds unless another one is surely better */
    bool taken;
} fl_probe_entry;

enum { FL_PROBE_ENTRIES = 128, FL_PROBE_MEMO = 160 };

/* The one to take of a guess's n entries: the base, unless others are better by more than 3
 * standard errors and by more than 0.1 nats where there are none; then the likeliest of those.
 * Pure: the stored tables can be judged again. */
int fl_probe_pick(const fl_probe_entry *e, int n);

typedef struct fl_probe {
    /* given */
    const fl_source *src;
    const fl_tokenizer *tokenizer;
    fl_engine_params params; /* n_ctx is the probe's own */
    fl_wiring asked;
    void (*progress)(void *arg, const char *what, int measured); /* may be NULL */
    void *arg;
    /* found */
    fl_probe_text text;
    fl_probe_roles roles; /* of the tensors outside the model; options when no branch is known */
    fl_wiring wiring;     /* as the files are read now; wiring.clover holds the switches */
    fl_probe_entry entry[FL_PROBE_ENTRIES];
    int n_entries, n_file;                                /* the first n_file are file forms */
    double causal;                                        /* NLL of the answers token by token */
    double winner[FL_MASK_LEVELS], plain[FL_MASK_LEVELS]; /* masked NLL; of GDN mode causal */
    /* at work */
    fl_model model; /* src and tokenizer borrowed */
    fl_engine *engine;
    int n_measured;
    struct {
        fl_wiring key;
        fl_probe_part part;
        fl_probe_rows rows;
    } * memo; /* [FL_PROBE_MEMO] */
    int n_memo;
} fl_probe;

/* Fills in what is found and leaves the model loaded as the winner says. On a model without
 * blocks the file's form alone. Fails as opening a model does; FL_E_UNSUPPORTED without tokenizer.
 */
FL_CHECKED fl_status fl_probe_search(fl_probe *p, fl_err *err);
void fl_probe_fini(fl_probe *p);

#endif
