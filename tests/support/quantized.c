#include "tests/support/quantized.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/tools/quantize.h"
#include "tests/support/command.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

fl_status fl_quantize_loud(const char *in, const char *out, const char *type, const char *arch,
                           fl_err *err)
{
    const char *args[2] = {in, out};
    const fl_options o = {
        .command = "quantize", .args = args, .n_args = 2, .type = type, .arch = arch, .threads = 2};
    *err = (fl_err){0};
    return fl_tool_quantize(&o, err);
}

/* Standard error away and back. */
static int hush(void)
{
    fflush(stderr);
    const int keep = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
    assert_true(keep >= 0 && null >= 0);
    dup2(null, STDERR_FILENO);
    close(null);
    return keep;
}

static void unhush(int keep)
{
    fflush(stderr);
    dup2(keep, STDERR_FILENO);
    close(keep);
}

fl_status fl_quantize(const char *in, const char *out, const char *type, const char *arch,
                      fl_err *err)
{
    const int keep = hush();
    const fl_status st = fl_quantize_loud(in, out, type, arch, err);
    unhush(keep);
    return st;
}

fl_status fl_quiet_call(fl_command command, const char *words, fl_err *err)
{
    const int keep = hush();
    const fl_status st = fl_command_call(command, words, err);
    unhush(keep);
    return st;
}

fl_status fl_quantize_loud_with(const char *in, const char *out, const char *options, fl_err *err)
{
    char words[1024];
    assert_true(snprintf(words, sizeof words, "quantize %s %s --threads 2%s%s", in, out,
                         options[0] ? " " : "", options) < (int)sizeof words);
    return fl_command_call(fl_tool_quantize, words, err);
}

fl_status fl_quantize_with(const char *in, const char *out, const char *options, fl_err *err)
{
    const int keep = hush();
    const fl_status st = fl_quantize_loud_with(in, out, options, err);
    unhush(keep);
    return st;
}

fl_workplace fl_workplace_make(void)
{
    fl_workplace f;
    f.dir = fl_tmp_make();
    f.hf = fl_tmp_path(f.dir, "hf");
    f.gguf = fl_tmp_path(f.dir, "in.gguf");
    f.out = fl_tmp_path(f.dir, "out.gguf");
    return f;
}

void fl_workplace_remove(fl_workplace *w)
{
    free(w->hf);
    free(w->gguf);
    free(w->out);
    fl_tmp_remove(w->dir);
}

fl_source *fl_open_source(const char *path)
{
    fl_err err = {0};
    fl_source *s;
    ASSERT_OK(fl_source_open(&s, path, &err));
    return s;
}

const fl_tensor *fl_need_tensor(const fl_source *s, const char *name)
{
    const fl_tensor *t = fl_source_find(s, name);
    if (!t) fail_msg("no tensor %s", name);
    return t;
}

static float *values_of(const fl_source *s, const fl_tensor *t, int64_t *n)
{
    fl_err err = {0};
    const fl_type_info *ti = fl_type_get(t->type);
    uint8_t *raw = malloc(t->bytes);
    *n = (int64_t)(t->bytes / ti->block_bytes * ti->block_elems);
    float *v = malloc((size_t)*n * sizeof *v);
    assert_true(raw && v);
    ASSERT_OK(fl_source_read(s, t, 0, raw, t->bytes, &err));
    ti->dequantize(raw, v, *n);
    free(raw);
    return v;
}

void fl_compare_files(const char *want, const char *got, double bound, bool all)
{
    fl_source *a = fl_open_source(want), *b = fl_open_source(got);
    if (all) assert_int_equal(fl_source_n_tensors(a), fl_source_n_tensors(b));
    for (size_t i = 0; i < fl_source_n_tensors(b); i++) {
        const fl_tensor *t = fl_source_tensor(b, i), *u = fl_need_tensor(a, t->name);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        int64_t n, m;
        float *x = values_of(a, u, &m), *y = values_of(b, t, &n);
        assert_int_equal(n, m);
        double e = 0, r = 0;
        for (int64_t k = 0; k < n; k++) {
            e += pow((double)x[k] - (double)y[k], 2);
            r += pow((double)x[k], 2);
        }
        const double limit = bound > 0 ? bound : strstr(t->name, "_a") ? 1e-7 : 0;
        if (!(sqrt(e) <= limit * sqrt(r))) fail_msg("%s: error %g", t->name, sqrt(e / r));
        free(x);
        free(y);
    }
    fl_source_close(&a);
    fl_source_close(&b);
}

fl_make fl_layout(int i)
{
    fl_make m = fl_make_tiny();
    m.type = FL_TYPE_F32;
    if (i > 0) m.arch = "clover_moe";
    switch (i) {
    case 2: m.st_type = FL_TYPE_BF16; break;
    case 3: m.st_per_expert = true; break;
    case 4: m.st_plain = m.st_flat = true; break;
    case 5: m.st_files = 3; break;
    case 6: m.tied = true; break;
    case 7: m.mtp = true; break;
    default: break;
    }
    return m;
}

int fl_quantize_stopped(const fl_workplace *f, int sig, bool ignored)
{
    enum { JUNK = 3600 };
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fl_err err = {0};
        static const char junk[JUNK];
        close(fd[0]);
        if (fcntl(fd[1], F_SETPIPE_SZ, 4096) < 0 || write(fd[1], junk, JUNK) != JUNK) _exit(3);
        dup2(fd[1], STDERR_FILENO);
        if (sig != SIGKILL) signal(sig, ignored ? SIG_IGN : SIG_DFL);
        const fl_status st = fl_quantize_loud(f->gguf, f->out, "q8_0", NULL, &err);
        _exit(st == FL_E_CANCELED ? 42 : st == FL_OK ? 0 : 1);
    }
    close(fd[1]);
    char buf[JUNK + 1];
    for (size_t got = 0; got < sizeof buf;) { /* one byte behind the junk: a tensor is written */
        const ssize_t n = read(fd[0], buf, sizeof buf - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
    assert_int_equal(kill(pid, sig), 0);
    int rc;
    if (sig == SIGKILL) {
        assert_int_equal(waitpid(pid, &rc, 0), pid);
    } else {
        /* Let go only after the signal has arrived: it ends the write that stands. */
        usleep(100000);
        while (read(fd[0], buf, sizeof buf) > 0) {}
        assert_int_equal(waitpid(pid, &rc, 0), pid);
    }
    close(fd[0]);
    return rc;
}
