#include "tests/support/traces.h"

#include "tests/support/test.h"
#include "tests/support/tmp.h"

char *fl_traces_dir, *fl_traces_path;

int fl_traces_setup(void **state)
{
    (void)state;
    return fl_tmp_begin(&fl_traces_dir, &fl_traces_path, "a.trace");
}

int fl_traces_teardown(void **state)
{
    (void)state;
    return fl_tmp_end(fl_traces_dir, fl_traces_path);
}

fl_trace *fl_traces_make(const bench_traffic *t)
{
    fl_err err = {0};
    fl_trace *trace = NULL;
    ASSERT_OK(bench_traffic_write(t, fl_traces_path, &err));
    ASSERT_OK(fl_trace_open(&trace, fl_traces_path, &err));
    return trace;
}
