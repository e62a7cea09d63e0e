#ifndef FL_TOOLS_SURVEY_TEXT_H
#define FL_TOOLS_SURVEY_TEXT_H

#include "runtime/base/json.h"
#include "runtime/tools/survey.h"

/* A survey for people and for the stored facts (runtime/model/machine.h). */

/* To standard output. */
void fl_survey_print(const fl_survey *s);
/* The setup's entry: "rates", "link", "threads". */
fl_json *fl_survey_entry(const fl_survey *s);
/* What does not depend on the setup: "reads", with "keep": "direct" or "buffered", and "pinned". */
fl_json *fl_survey_parts(const fl_survey *s);

#endif
