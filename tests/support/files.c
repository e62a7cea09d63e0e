#include "tests/support/files.h"

#include <stdlib.h>

#include "tests/support/make_model.h"
#include "tests/support/tmp.h"

fl_test_files fl_files;

int fl_files_setup(void **state)
{
    (void)state;
    fl_files.dir = fl_tmp_make();
    fl_files.gguf = fl_tmp_path(fl_files.dir, "model.gguf");
    fl_files.folder = fl_tmp_path(fl_files.dir, "hf");
    return 0;
}

int fl_files_setup_model(void **state)
{
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.type = FL_TYPE_Q4_K;
    m.n_layer = m.interval = 2;
    m.n_vocab = 320;
    fl_make_quick_experts(&m);
    fl_files_setup(state);
    fl_make_gguf(&m, fl_files.gguf);
    return 0;
}

int fl_files_teardown(void **state)
{
    (void)state;
    fl_tmp_remove(fl_files.dir);
    free(fl_files.gguf);
    free(fl_files.folder);
    fl_files = (fl_test_files){0};
    return 0;
}
