#ifndef FL_DECODE_CHOOSE_H
#define FL_DECODE_CHOOSE_H

#include "runtime/model/clover.h"

/* Which way an answer is decoded. Settled before its first token, from what is stored; a run
 * measures nothing for it, so the same request gives the same text. */

typedef enum fl_gen_mode { FL_GEN_AUTO, FL_GEN_AR, FL_GEN_BLOCK, FL_GEN_SPEC } fl_gen_mode;
enum { FL_GEN_MODES = FL_GEN_SPEC + 1 };
const char *fl_gen_mode_name(fl_gen_mode m); /* "auto", "ar", "block", "spec" */

/* What is known about a model beside its file. */
typedef struct fl_mode_facts {
    int earned;                 /* the probe's word on block mode: 1 yes, 0 no, -1 not probed */
    double per_s[FL_GEN_MODES]; /* stored rates, tokens/s by mode; 0: none is stored */
} fl_mode_facts;
/* Nothing known. */
fl_mode_facts fl_mode_facts_none(void);

enum { FL_REASON_BYTES = 192 };
typedef struct fl_choice {
    fl_gen_mode mode; /* never FL_GEN_AUTO */
    char reason[FL_REASON_BYTES];
} fl_choice;

/* Block mode may be taken: the probe's word, else the file's verdict. */
bool fl_gen_block_earned(const fl_clover *sw, const fl_mode_facts *facts);

/* Anything but auto stays what was asked for. auto takes AR with speculation, whose text is AR's
 * whatever the model's masks are worth. Where rates are stored it takes the fastest of ar, spec
 * and, when it is earned (by the probe's word, else by the file's verdict), block. Without room
 * for drafts (`can_draft`) ar stands for spec. */
fl_choice fl_gen_choose(fl_gen_mode asked, const fl_clover *sw, const fl_mode_facts *facts,
                        bool can_draft);

#endif
