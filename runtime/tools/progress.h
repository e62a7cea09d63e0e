#ifndef FL_TOOLS_PROGRESS_H
#define FL_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* How far something long is, on standard error: one line that rewrites itself on a terminal, from
 * one second on; elsewhere a line every ten seconds. */
typedef struct fl_progress {
    double start, next; /* seconds; next: when to print again */
    bool terminal, shown;
} fl_progress;

void fl_progress_start(fl_progress *p);
/* True when a line is due; *spent gets the seconds since the start. */
bool fl_progress_due(fl_progress *p, double *spent);
void fl_progress_line(const fl_progress *p, const char *line);
/* Clears the line on a terminal. */
void fl_progress_end(fl_progress *p);

enum { FL_PROGRESS_LINE = 128 };
/* "reading the prompt:  42 % of 5120 tokens, 35.2 tokens/s, 84 s left"; done and spent above 0. */
void fl_progress_prompt(char line[FL_PROGRESS_LINE], int64_t done, int64_t total, double spent);

#endif
