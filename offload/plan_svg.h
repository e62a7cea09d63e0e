#ifndef FL_OFFLOAD_PLAN_SVG_H
#define FL_OFFLOAD_PLAN_SVG_H

#include "offload/plan.h"

/* A plan as a picture: one row for each layer that has experts, in it a cell for each expert, the
 * hottest first, coloured by tier and the paler the less it is used; below it what device memory
 * holds. `heat` as the plan was made of, NULL: all alike. The text of an SVG file, malloc'ed; NULL
 * when out of memory. Held by tests/offload/test_plan_svg.c. */
char *fl_plan_svg(const fl_plan *p, const uint32_t *heat);

/* Writes it; the file appears whole or not at all. Fails as fl_outfile_open and write do. */
FL_CHECKED fl_status fl_plan_svg_write(const fl_plan *p, const uint32_t *heat, const char *path,
                                       fl_err *err);

#endif
