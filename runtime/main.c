#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/options.h"
#include "runtime/tools/inspect.h"
#include "runtime/tools/logits.h"
#include "runtime/tools/plan.h"
#include "runtime/tools/quantize.h"
#include "runtime/tools/run.h"

enum { EXIT_OK = 0, EXIT_ERROR = 1, EXIT_USAGE = 2 };

static const struct {
    const char *command;
    fl_status (*run)(const fl_options *o, fl_err *err);
} tools[] = {
    {"run", fl_tool_run},       {"plan", fl_tool_plan},         {"inspect", fl_tool_inspect},
    {"logits", fl_tool_logits}, {"quantize", fl_tool_quantize},
};

static int fail(const fl_err *err, int code)
{
    fflush(stdout); /* what was printed before the error stays above it */
    fprintf(stderr, "fourleaf: %s\n", err->msg);
    return code;
}

static int dispatch(const fl_options *o)
{
    fl_err err = {0};
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        if (strcmp(tools[i].command, o->command) != 0) continue;
        if (tools[i].run(o, &err) != FL_OK) return fail(&err, EXIT_ERROR);
    }
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    fl_options o;
    fl_err err = {0};
    if (fl_options_parse(&o, argc, argv, &err) != FL_OK) return fail(&err, EXIT_USAGE);
    int code = EXIT_OK;
    if (o.help)
        fl_options_help(o.command);
    else
        code = dispatch(&o);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "fourleaf: standard output: %s\n", strerror(errno));
        return EXIT_ERROR;
    }
    return code;
}
