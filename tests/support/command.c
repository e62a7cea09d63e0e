#include "tests/support/command.h"

#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

fl_status fl_command_call(fl_command command, const char *words, fl_err *err)
{
    char copy[1024], *argv[64];
    int argc = 0;
    fl_options o;
    fl_err parse = {0};
    assert_true(snprintf(copy, sizeof(copy), "fourleaf %s", words) < (int)sizeof(copy));
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) argv[argc++] = p;
    for (int i = 0; i < argc; i++)
        for (char *p = argv[i]; *p; p++)
            if (*p == '~') *p = ' ';
    argv[argc] = NULL;
    if (fl_options_parse(&o, argc, argv, &parse) != FL_OK) fail_msg("%s", parse.msg);
    *err = (fl_err){0};
    return command(&o, err);
}

char *fl_command_output(fl_command command, const char *words)
{
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "stdout"), *text = NULL;
    fl_err err = {0};
    fflush(stdout);
    const int saved = dup(1);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(dup2(fileno(f), 1) == 1);
    const fl_status st = fl_command_call(command, words, &err);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    fclose(f);
    if (st != FL_OK) fail_msg("%s: %s", words, err.msg);
    ASSERT_OK(fl_file_load(path, 1 << 20, &text, NULL, &err));
    free(path);
    fl_tmp_remove(dir);
    return text;
}
