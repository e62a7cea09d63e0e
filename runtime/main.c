#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/options.h"
#include "runtime/tools/calibrate.h"
#include "runtime/tools/doctor.h"
#include "runtime/tools/eval.h"
#include "runtime/tools/importance.h"
#include "runtime/tools/inspect.h"
#include "runtime/tools/logits.h"
#include "runtime/tools/patch.h"
#include "runtime/tools/plan.h"
#include "runtime/tools/probe.h"
#include "runtime/tools/quantize.h"
#include "runtime/tools/run.h"
#include "runtime/tools/sensitivity.h"

/* Held by the tables in tests/cli/test_program.c. */
enum {
    EXIT_OK = 0,
    EXIT_ERROR = 1, /* a file, the output, memory or the machine */
    EXIT_USAGE = 2, /* the command line: FL_E_ARG, whether or not it took the model to see it */
    EXIT_INTERRUPTED = 130 /* as shells say it */
};

static const struct {
    const char *command;
    fl_status (*run)(const fl_options *o, fl_err *err);
} tools[] = {
    {"run", fl_tool_run},           {"plan", fl_tool_plan},
    {"inspect", fl_tool_inspect},   {"logits", fl_tool_logits},
    {"quantize", fl_tool_quantize}, {"calibrate", fl_tool_calibrate},
    {"doctor", fl_tool_doctor},     {"patch", fl_tool_patch},
    {"probe", fl_tool_probe},       {"importance", fl_tool_importance},
    {"eval", fl_tool_eval},         {"sensitivity", fl_tool_sensitivity},
};

static int fail(const fl_err *err, int code)
{
    fflush(stdout); /* what was printed before the error stays above it */
    fprintf(stderr, "fourleaf: %s\n", err->msg);
    return code;
}

/* A standard stream that the caller closed: its number must not go to the next file that is
 * opened. Reading or writing it fails with EBADF, as it should. */
static void keep_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(EXIT_ERROR);
}

static int exit_code(fl_status st)
{
    return st == FL_E_ARG ? EXIT_USAGE : st == FL_E_CANCELED ? EXIT_INTERRUPTED : EXIT_ERROR;
}

static int dispatch(const fl_options *o)
{
    fl_err err = {0};
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        if (strcmp(tools[i].command, o->command) != 0) continue;
        const fl_status st = tools[i].run(o, &err);
        if (st != FL_OK) return fail(&err, exit_code(st));
    }
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    fl_options o;
    fl_err err = {0};
    keep_standard_streams();
    if (fl_options_parse(&o, argc, argv, &err) != FL_OK) return fail(&err, EXIT_USAGE);
    int code = EXIT_OK;
    if (o.help)
        fl_options_help(o.command);
    else if (o.version)
        printf("fourleaf %s\n", fl_version);
    else
        code = dispatch(&o);
    if (code != EXIT_OK) return code;
    errno = 0;
    const bool written = !ferror(stdout);
    if (fflush(stdout) == 0 && written) return EXIT_OK;
    fprintf(stderr, "fourleaf: standard output: %s\n", errno ? strerror(errno) : "write failed");
    return EXIT_ERROR;
}
