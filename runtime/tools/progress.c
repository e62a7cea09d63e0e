#include "runtime/tools/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "runtime/base/clock.h"

static double now_s(void) { return (double)fl_clock_ns() * 1e-9; }

void fl_progress_start(fl_progress *p)
{
    *p = (fl_progress){.start = now_s(), .terminal = isatty(STDERR_FILENO)};
    p->next = p->start + (p->terminal ? 1.0 : 10.0);
}

bool fl_progress_due(fl_progress *p, double *spent)
{
    const double now = now_s();
    *spent = now - p->start;
    if (now < p->next) return false;
    p->next = now + (p->terminal ? 0.2 : 10.0);
    p->shown = true;
    return true;
}

void fl_progress_line(const fl_progress *p, const char *line)
{
    fprintf(stderr, "%s%s%s", p->terminal ? "\r" : "", line, p->terminal ? "\033[K" : "\n");
}

void fl_progress_end(fl_progress *p)
{
    if (p->shown && p->terminal) fprintf(stderr, "\r\033[K");
    p->shown = false;
}

void fl_progress_prompt(char line[FL_PROGRESS_LINE], int64_t done, int64_t total, double spent)
{
    const double rate = (double)done / spent;
    snprintf(line, FL_PROGRESS_LINE,
             "reading the prompt: %3.0f %% of %lld tokens, %.1f tokens/s, %.0f s left",
             100.0 * (double)done / (double)total, (long long)total, rate,
             (double)(total - done) / rate);
}
