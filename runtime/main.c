#include <stdio.h>

#include "runtime/base/options.h"

int main(int argc, char **argv)
{
    fl_options o;
    fl_err err = {0};
    if (fl_options_parse(&o, argc, argv, &err) != FL_OK) {
        fprintf(stderr, "fourleaf: %s\n", err.msg);
        return 2;
    }
    if (o.help || !o.command) fl_options_help(o.command);
    return 0;
}
