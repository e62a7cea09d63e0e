#ifndef FL_DECODE_OUTLOOK_H
#define FL_DECODE_OUTLOOK_H

#include "offload/forecast.h"
#include "runtime/decode/rates.h"

/* What an opened engine is expected to do: its plan, the machine's stored rates, and what passes of
 * each mode bring: as counted on this model, else as published (outlook.c has the figures); experts
 * that they use as the profile has them. */

typedef struct fl_outlook {
    fl_rates rates; /* all zero: none are stored */
    fl_forecast forecast;
} fl_outlook;

/* `facts` may be NULL: nothing is known. *out points into itself: it must not be copied.
 * FL_E_NOMEM.
 */
FL_CHECKED fl_status fl_outlook_make(fl_outlook *out, const fl_engine *e, const fl_clover *sw,
                                     const fl_facts *facts, fl_err *err);

/* The mode as predictions have it; FL_GEN_AUTO is none (assert). */
fl_predict_kind fl_outlook_kind(fl_gen_mode mode);

#endif
