/* fourleaf importance: sums against plain ones, threads, runs that are gone on with, merging. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/model.h"
#include "runtime/tools/importance.h"
#include "runtime/tools/importance_file.h"
#include "runtime/tools/importance_merge.h"
#include "runtime/tools/importance_run.h"
#include "runtime/tools/importance_text.h"
#include "tests/support/command.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { WINDOW = 96 };

static const char words[] =
    "the rain in the north and an ant in the tin, then a hat; 12 + 7 = 19. ";

/* A file of n bytes of words that begin at `from`. */
static char *write_text(const char *name, int from, int n)
{
    char *path = fl_tmp_path(fl_files.dir, name), *text = malloc((size_t)n);
    for (int i = 0; i < n; i++) text[i] = words[(size_t)(from + i + i / 53) % (sizeof words - 1)];
    fl_tmp_write(path, text, (size_t)n);
    free(text);
    return path;
}

static fl_make small_model(const char *arch)
{
    fl_make m = fl_make_tiny();
    m.arch = arch;
    m.n_expert = 8;
    return m;
}

typedef struct place {
    fl_model *model;
    char *text, *out;
    fl_clover sw;
    fl_importance_job job;
    const char *paths[2];
} place;

static void set_up(place *p, const char *model)
{
    fl_err err = {0};
    *p = (place){0};
    ASSERT_OK(fl_model_open(&p->model, model, &err));
    p->text = write_text("text.txt", 0, 900);
    p->out = fl_tmp_path(fl_files.dir, "out.gguf");
    p->paths[0] = p->text;
    p->sw = p->model->index->clover;
    p->job = (fl_importance_job){.model = p->model,
                                 .sw = &p->sw,
                                 .paths = p->paths,
                                 .n_paths = 1,
                                 .ctx = WINDOW,
                                 .out = p->out,
                                 .sweep = {.threads = 1, .kv_type = FL_TYPE_F16}};
}

static void tear_down(place *p)
{
    unlink(p->out);
    fl_model_close(&p->model);
    free(p->text);
    free(p->out);
}

static char *load(const char *path, uint64_t *n)
{
    fl_err err = {0};
    char *data = NULL;
    ASSERT_OK(fl_file_load(path, 64 << 20, &data, n, &err));
    return data;
}

static char *measure(const place *p, uint64_t *n)
{
    fl_err err = {0};
    fl_importance_result r;
    ASSERT_OK(fl_importance_run(&p->job, &r, &err));
    assert_int_equal(r.first_layer, 0);
    char *work = fl_tmp_path(fl_files.dir, "out.gguf.work");
    assert_true(access(work, F_OK) != 0);
    free(work);
    return load(p->out, n);
}

/* ---- sums ---- */

/* Plain sums in double, all rows of one site of one layer. */
typedef struct naive {
    fl_site site;
    int expert;
    int64_t cols;
    double *sum, rows;
} naive;

static void see(void *arg, fl_site site, int expert, const fl_rows *in)
{
    naive *s = arg;
    if (site != s->site || (expert >= 0 && expert != s->expert)) return;
    if (!s->sum) s->sum = calloc((size_t)(in->cols * in->cols), sizeof *s->sum);
    s->cols = in->cols;
    s->rows += in->n;
    for (int t = 0; t < in->n; t++)
        for (int64_t i = 0; i < in->cols; i++)
            for (int64_t j = 0; j < in->cols; j++)
                s->sum[i * in->cols + j] +=
                    (double)in->x[t * in->ld + i] * (double)in->x[t * in->ld + j];
}

/* Sums of one site as the layers' rows give them. */
static naive sum_plainly(const place *p, int layer, fl_site site, int expert)
{
    fl_err err = {0};
    naive s = {.site = site, .expert = expert};
    fl_sweep *sweep = NULL;
    fl_importance_text t;
    const fl_sweep_watch w = {.see = {see, &s}};
    const int n_layer = p->model->index->hp.n_layer;
    ASSERT_OK(fl_importance_text_open(&t, p->model, &p->sw, p->paths, 1, WINDOW, 0, &err));
    ASSERT_OK(fl_sweep_open(&sweep, p->model, &t.sweep, &p->sw, &p->job.sweep, &err));
    ASSERT_OK(fl_sweep_embed(sweep, &err));
    for (int l = 0; l < n_layer; l++)
        ASSERT_OK(fl_sweep_layer(sweep, l, l == layer ? &w : NULL, &err));
    if (layer == n_layer) ASSERT_OK(fl_sweep_head(sweep, &w, &err));
    fl_sweep_close(&sweep);
    fl_importance_text_close(&t);
    return s;
}

static void is_sum(const char *file, const char *part, int64_t skip, const double *want, int64_t n,
                   double scale)
{
    fl_err err = {0};
    fl_source *src = NULL;
    double worst = 0, most = 0;
    float *got = malloc((size_t)n * sizeof *got);
    ASSERT_OK(fl_source_open(&src, file, &err));
    const fl_tensor *t = fl_source_find(src, part);
    if (!t) fail_msg("%s is not there", part);
    ASSERT_OK(
        fl_source_read(src, t, (uint64_t)skip * sizeof *got, got, (uint64_t)n * sizeof *got, &err));
    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i] / scale));
        most = fmax(most, fabs(want[i] / scale));
    }
    if (!(worst <= 2e-6 * most)) fail_msg("%s: off by %g of %g", part, worst, most);
    fl_source_close(&src);
    free(got);
}

static void check_site(const place *p, int layer, fl_site site, const char *name, int expert)
{
    naive s = sum_plainly(p, layer, site, expert);
    const int64_t c = s.cols, tri = c * (c + 1) / 2;
    double *packed = malloc((size_t)tri * sizeof *packed), *diag = malloc((size_t)c * sizeof *diag);
    char part[80];
    assert_true(s.rows > 0);
    for (int64_t i = 0; i < c; i++) {
        for (int64_t j = 0; j <= i; j++) packed[i * (i + 1) / 2 + j] = s.sum[i * c + j];
        diag[i] = s.sum[i * c + i];
    }
    snprintf(part, sizeof part, "%s.rows", name);
    is_sum(p->out, part, expert > 0 ? expert : 0, &s.rows, 1, 1.0);
    snprintf(part, sizeof part, "%s.diag", name);
    is_sum(p->out, part, expert > 0 ? expert * c : 0, diag, c, s.rows);
    snprintf(part, sizeof part, "%s.full", name);
    if (site != FL_SITE_EXPERT_IN)
        is_sum(p->out, part, expert > 0 ? expert * tri : 0, packed, tri, s.rows);
    free(packed);
    free(diag);
    free(s.sum);
}

static void sums_equal_plain_ones(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe");
    place p;
    uint64_t n;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    free(measure(&p, &n));
    check_site(&p, 0, FL_SITE_MIXER_IN, "blk.0.mixer_in", -1);
    check_site(&p, 1, FL_SITE_BLOCK_IN, "blk.1.block_in", -1);
    check_site(&p, 2, FL_SITE_MIXER_OUT, "blk.2.mixer_out", -1);
    check_site(&p, 3, FL_SITE_MIXER_OUT, "blk.3.mixer_out", -1);
    check_site(&p, 1, FL_SITE_FFN_IN, "blk.1.ffn_in", -1);
    check_site(&p, 0, FL_SITE_SHARED_MID, "blk.0.shared_mid", -1);
    check_site(&p, 4, FL_SITE_HEAD_IN, "head_in", -1);
    for (int e = 0; e < m.n_expert; e += 3) {
        check_site(&p, 1, FL_SITE_EXPERT_IN, "blk.1.expert_in", e);
        check_site(&p, 3, FL_SITE_EXPERT_MID, "blk.3.expert_mid", e);
    }
    tear_down(&p);
}

/* Value heads grouped in the file that is measured: the columns of ssm_out come tiled, as those of
 * the same weights in a GGUF. */
static void value_heads_come_tiled(void **state)
{
    (void)state;
    const fl_make m = small_model("qwen35moe");
    fl_err err = {0};
    place p;
    uint64_t n;
    float diag[2][64], full[2][64 * 64];
    fl_make_gguf(&m, fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    for (int k = 0; k < 2; k++) {
        fl_importance *im = NULL;
        fl_importance_found found;
        set_up(&p, k ? fl_files.folder : fl_files.gguf);
        assert_int_equal(p.model->index->hp.v_grouped, k);
        free(measure(&p, &n));
        ASSERT_OK(fl_importance_open(&im, p.out, &err));
        ASSERT_OK(
            fl_importance_get(im, "blk.1.ssm_out.weight", 64, 0, diag[k], full[k], &found, &err));
        assert_true(found.diag && found.full);
        fl_importance_close(&im);
        tear_down(&p);
    }
    double most = 0;
    for (int i = 0; i < 64; i++) most = fmax(most, (double)diag[0][i]);
    for (int i = 0; i < 64 * 64; i++)
        assert_true(fabs((double)full[0][i] - (double)full[1][i]) < 1e-4 * most);
}

/* ---- threads, going on ---- */

static void threads_change_nothing(void **state)
{
    (void)state;
    fl_make m = small_model("clover_moe");
    place p;
    uint64_t n[2];
    m.type = FL_TYPE_Q8_0;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    char *one = measure(&p, &n[0]);
    p.job.sweep.threads = 4;
    char *four = measure(&p, &n[1]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(one, four, n[0]);
    free(one);
    free(four);
    tear_down(&p);
}

/* Stops or is killed at the given call. */
typedef struct stop {
    int left;
    bool kill;
} stop;

static bool stop_later(void *arg, int layer, double done, double total)
{
    stop *s = arg;
    (void)layer;
    assert_true(done <= total);
    if (--s->left > 0) return true;
    if (s->kill) raise(SIGKILL);
    return false;
}

static void run_and_die(place *p)
{
    fl_err err = {0};
    fl_importance_result r;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        stop s = {.left = 60, .kill = true};
        p->job.go_on = stop_later;
        p->job.arg = &s;
        (void)!fl_importance_run(&p->job, &r, &err);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(access(p->out, F_OK) != 0);
}

/* The file of a run that was stopped wherever it was, or killed, or whose rows are damaged, is that
 * of one that ran through. */
static void a_run_is_gone_on_with(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe");
    fl_err err = {0};
    fl_importance_result r;
    place p;
    uint64_t n, n_again;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    char *want = measure(&p, &n);
    unlink(p.out);
    int stops = 0, late = 0;
    for (stop s = {.left = 40};; s.left = 40, stops++) {
        p.job.go_on = stop_later;
        p.job.arg = &s;
        const fl_status st = fl_importance_run(&p.job, &r, &err);
        late = r.first_layer > late ? r.first_layer : late;
        if (st == FL_OK) break;
        assert_int_equal(st, FL_E_CANCELED);
        assert_true(access(p.out, F_OK) != 0 && stops < 20);
        err = (fl_err){0};
    }
    assert_true(stops > 1 && late > 1);
    char *got = load(p.out, &n_again);
    assert_true(n == n_again);
    assert_memory_equal(got, want, n);
    free(got);
    unlink(p.out);
    p.job.go_on = NULL;
    run_and_die(&p);
    char *rows = fl_tmp_path(fl_files.dir, "out.gguf.work/rows-000");
    p.job.go_on = NULL;
    for (int l = 0; l < 4; l++) { /* whichever rows are there lose their last bytes */
        rows[strlen(rows) - 1] = (char)('0' + l);
        if (access(rows, F_OK) == 0) assert_int_equal(truncate(rows, 500), 0);
    }
    free(rows);
    got = measure(&p, &n_again);
    assert_true(n == n_again);
    assert_memory_equal(got, want, n);
    free(got);
    free(want);
    tear_down(&p);
}

static void an_unfinished_run_keeps_others_off(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe");
    fl_err err = {0};
    fl_importance_result r;
    place p;
    stop s = {.left = 3};
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    p.job.go_on = stop_later;
    p.job.arg = &s;
    ASSERT_FAILS(fl_importance_run(&p.job, &r, &err), FL_E_CANCELED, "");
    p.job.ctx = WINDOW / 2;
    ASSERT_FAILS(fl_importance_run(&p.job, &r, &err), FL_E_ARG, "an unfinished run on another");
    p.job.ctx = WINDOW;
    p.sw.gdn_block_mode = FL_GDN_CAUSAL;
    ASSERT_FAILS(fl_importance_run(&p.job, &r, &err), FL_E_ARG, "an unfinished run on another");
    p.sw.gdn_block_mode = FL_GDN_BIDIR;
    s.left = 1 << 30;
    ASSERT_OK(fl_importance_run(&p.job, &r, &err));
    tear_down(&p);
}

static void failures_leave_nothing(void **state)
{
    (void)state;
    fl_make m = small_model("clover_moe");
    fl_err err = {0};
    fl_importance_result r;
    place p;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    p.job.out = "/nonexistent/out.gguf";
    ASSERT_FAILS(fl_importance_run(&p.job, &r, &err), FL_E_IO, "/nonexistent/out.gguf.work");
    p.job.out = p.out;
    p.paths[0] = "/nonexistent.txt";
    ASSERT_FAILS(fl_importance_run(&p.job, &r, &err), FL_E_IO, "/nonexistent.txt");
    tear_down(&p);
    m.no_tokenizer = true;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    ASSERT_FAILS(fl_importance_run(&p.job, &r, &err), FL_E_UNSUPPORTED, "tokenizer");
    assert_true(access(p.out, F_OK) != 0);
    tear_down(&p);
}

/* ---- passes ---- */

static void blocks_follow_clean_rows(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe");
    fl_err err = {0};
    fl_importance_text t;
    place p;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    const int size = p.sw.block_size;
    ASSERT_OK(fl_importance_text_open(&t, p.model, &p.sw, p.paths, 1, WINDOW, 300, &err));
    assert_int_equal(t.tokens, 300);
    assert_int_equal(t.sweep.n_seqs, 4);
    assert_int_equal(t.block_rows, 3 * (WINDOW / size - 1) * size);
    int64_t row = 0, masks = 0;
    for (int64_t i = 0; i < t.sweep.n_passes; i++) {
        const fl_sweep_pass *s = &t.pass[i];
        for (int k = 0; k < s->n_write; k++) assert_true(t.ids[row++] != p.sw.mask_id);
        for (int k = 0; k < s->n_block; k++, row++) {
            masks += t.ids[row] == p.sw.mask_id;
            /* What is not masked is the text that the next pass runs clean. */
            if (t.ids[row] != p.sw.mask_id)
                assert_int_equal(t.ids[row], t.ids[row - k + s->n_block + k]);
        }
    }
    assert_int_equal(row, t.sweep.n_rows);
    assert_true(masks > t.block_rows / 2 && masks < t.block_rows * 4 / 5);
    const uint64_t hash = t.hash;
    fl_importance_text_close(&t);
    p.sw.has_blocks = false;
    ASSERT_OK(fl_importance_text_open(&t, p.model, &p.sw, p.paths, 1, WINDOW, 300, &err));
    assert_true(t.block_rows == 0 && t.tokens == 300 && t.hash != hash);
    fl_importance_text_close(&t);
    tear_down(&p);
}

/* Of a chat the answer alone is masked, to the end of its last block. */
static void prompts_are_not_masked(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe");
    static const char chat[] = "{\"prompt\": \"the rain in the north is a tin and the hat is an "
                               "ant in the rain and so on it is\", \"completion\": \"an ant\"}\n"
                               "{\"prompt\": \"hi\", \"completion\": \"the tin\"}\n";
    fl_err err = {0};
    fl_importance_text t;
    place p;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    char *path = fl_tmp_path(fl_files.dir, "chat.jsonl");
    fl_tmp_write(path, chat, sizeof chat - 1);
    p.paths[0] = path;
    ASSERT_OK(fl_importance_text_open(&t, p.model, &p.sw, p.paths, 1, WINDOW, 0, &err));
    assert_int_equal(t.sweep.n_seqs, 2);
    assert_true(t.block_rows >= 2 * p.sw.block_size);
    int64_t row = 0, masks = 0;
    int n_of[2] = {0, 0};
    for (int64_t i = 0; i < t.sweep.n_passes; i++) {
        const fl_sweep_pass *s = &t.pass[i];
        const int32_t *ids = t.ids + row;
        assert_int_equal(s->at, n_of[s->seq]);
        assert_true(s->n_block == 0 || (s->at + s->n_write) % p.sw.block_size == 0);
        n_of[s->seq] += s->n_write;
        for (int k = 0; k < s->n_write + s->n_block; k++, row++) {
            const bool masked = ids[k] == p.sw.mask_id;
            masks += masked;
            if (masked) assert_true(k >= s->n_write && s->at + k >= (s->seq ? 2 : 32));
        }
    }
    assert_true(masks > 0 && t.tokens == n_of[0] + n_of[1]);
    assert_true(t.sweep.n_ctx % p.sw.block_size == 0);
    fl_importance_text_close(&t);
    /* Rows of such passes go through, also a block that begins a sequence. */
    fl_importance_result r;
    ASSERT_OK(fl_importance_run(&p.job, &r, &err));
    assert_int_equal(r.n_lost, 0);
    free(path);
    tear_down(&p);
}

/* ---- merging ---- */

/* Two halves give what the whole gives, up to the last digits of the sums. */
static void halves_make_the_whole(void **state)
{
    (void)state;
    const fl_make m = small_model("qwen35moe");
    fl_err err = {0};
    fl_importance_result r;
    place p;
    char *half[2], *text[2] = {write_text("a.txt", 0, 500), write_text("b.txt", 17, 400)};
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    for (int i = 0; i < 2; i++) {
        half[i] = fl_tmp_path(fl_files.dir, i ? "half1.gguf" : "half0.gguf");
        p.job.out = half[i];
        p.paths[0] = text[i];
        ASSERT_OK(fl_importance_run(&p.job, &r, &err));
    }
    char *merged = fl_tmp_path(fl_files.dir, "merged.gguf");
    ASSERT_OK(fl_importance_merge(merged, (const char *const *)half, 2, &err));
    p.job.out = p.out;
    p.paths[0] = text[0];
    p.paths[1] = text[1];
    p.job.n_paths = 2;
    ASSERT_OK(fl_importance_run(&p.job, &r, &err));
    fl_source *a = NULL, *b = NULL;
    ASSERT_OK(fl_source_open(&a, merged, &err));
    ASSERT_OK(fl_source_open(&b, p.out, &err));
    assert_int_equal(fl_source_n_tensors(a), fl_source_n_tensors(b));
    assert_true(fl_kv_int(fl_gguf_find(fl_source_gguf(a), "fourleaf_importance.tokens"), 0) ==
                r.tokens);
    for (size_t i = 0; i < fl_source_n_tensors(a); i++) {
        const fl_tensor *t = fl_source_tensor(a, i), *u = fl_source_find(b, t->name);
        assert_true(u && u->bytes == t->bytes);
        float *x = malloc(t->bytes), *y = malloc(t->bytes);
        ASSERT_OK(fl_source_read(a, t, 0, x, t->bytes, &err));
        ASSERT_OK(fl_source_read(b, u, 0, y, t->bytes, &err));
        double most = 0, worst = 0;
        for (size_t k = 0; k < t->bytes / sizeof *x; k++) {
            most = fmax(most, fabs((double)y[k]));
            worst = fmax(worst, fabs((double)x[k] - (double)y[k]));
        }
        if (!(worst <= 2e-6 * most)) fail_msg("%s: off by %g of %g", t->name, worst, most);
        free(x);
        free(y);
    }
    fl_source_close(&a);
    fl_source_close(&b);
    /* One file alone is itself. */
    uint64_t n[2];
    ASSERT_OK(fl_importance_merge(merged, (const char *const *)half, 1, &err));
    char *x = load(half[0], &n[0]), *y = load(merged, &n[1]);
    assert_true(n[0] == n[1]);
    assert_memory_equal(x, y, n[0]);
    free(x);
    free(y);
    for (int i = 0; i < 2; i++) {
        free(half[i]);
        free(text[i]);
    }
    free(merged);
    tear_down(&p);
}

static void only_files_of_one_model_are_merged(void **state)
{
    (void)state;
    fl_make m = small_model("qwen35moe");
    fl_err err = {0};
    fl_importance_result r;
    place p;
    char *file[2] = {fl_tmp_path(fl_files.dir, "one.gguf"), fl_tmp_path(fl_files.dir, "two.gguf")};
    char *merged = fl_tmp_path(fl_files.dir, "merged2.gguf");
    for (int i = 0; i < 2; i++) {
        m.seed = 7 + (uint64_t)i;
        fl_make_gguf(&m, fl_files.gguf);
        set_up(&p, fl_files.gguf);
        p.job.out = file[i];
        p.job.tokens = 100;
        ASSERT_OK(fl_importance_run(&p.job, &r, &err));
        tear_down(&p);
    }
    ASSERT_FAILS(fl_importance_merge(merged, (const char *const *)file, 2, &err), FL_E_ARG,
                 "another model");
    assert_true(access(merged, F_OK) != 0);
    file[1][0] = 0;
    ASSERT_FAILS(fl_importance_merge(merged, (const char *const *)file, 2, &err), FL_E_IO, "");
    free(file[0]);
    free(file[1]);
    free(merged);
}

/* ---- the command ---- */

static void the_command_says_what_is_thin(void **state)
{
    (void)state;
    fl_make m = small_model("clover_moe");
    fl_err err = {0};
    char line[3 * 4096];
    place p;
    m.n_expert = 16;
    fl_make_gguf(&m, fl_files.gguf);
    set_up(&p, fl_files.gguf);
    snprintf(line, sizeof line, "importance %s %s -o %s --ctx 64 --tokens 128 --threads 1 --json",
             fl_files.gguf, p.text, p.out);
    char *text = fl_command_output(fl_tool_importance, line);
    if (!strstr(text, "\"tokens\":128") && !strstr(text, "\"tokens\": 128"))
        fail_msg("no tokens in %s", text);
    assert_non_null(strstr(text, "few_rows"));
    assert_non_null(strstr(text, "\"layer\""));
    free(text);
    snprintf(line, sizeof line, "importance --merge %s %s -o %s --json", p.out, p.out, p.out);
    text = fl_command_output(fl_tool_importance, line);
    if (!strstr(text, "256")) fail_msg("no tokens in %s", text);
    free(text);
    snprintf(line, sizeof line, "importance %s %s -o %s", fl_files.gguf, p.text, fl_files.gguf);
    ASSERT_FAILS(fl_command_call(fl_tool_importance, line, &err), FL_E_ARG, "file of the model");
    tear_down(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_equal_plain_ones),
        cmocka_unit_test(value_heads_come_tiled),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(a_run_is_gone_on_with),
        cmocka_unit_test(an_unfinished_run_keeps_others_off),
        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(blocks_follow_clean_rows),
        cmocka_unit_test(prompts_are_not_masked),
        cmocka_unit_test(halves_make_the_whole),
        cmocka_unit_test(only_files_of_one_model_are_merged),
        cmocka_unit_test(the_command_says_what_is_thin),
    };
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
