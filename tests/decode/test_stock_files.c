/* Files as they are found: tensors at any multiple of 32, types that change by layer and by part,
 * gate and up in one, several files. Wherever the experts lie and whoever reads them, the tokens
 * are those of the whole model in device memory. */
#include <stdlib.h>
#include <unistd.h>

#include "offload/io_fake.h"
#include "tests/support/decoder.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_PROMPT = 20, N_OUT = 8, N_MODES = 2 };

static char *dir, *disk_dir;

/* Every odd one has gate and up in one tensor, those above 1 are split. */
static char *make(int kind, const char *folder)
{
    static const uint32_t gate[] = {FL_TYPE_Q8_0, FL_TYPE_Q4_0, FL_TYPE_F16, FL_TYPE_Q4_0};
    static const uint32_t down[] = {FL_TYPE_Q4_0, FL_TYPE_BF16, FL_TYPE_Q8_0, FL_TYPE_F32};
    static char part[8][32];
    char name[32];
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.n_expert = 12;
    m.type = FL_TYPE_Q8_0;
    m.alignment = 0; /* 32, as most files have it */
    m.fused = kind % 2;
    m.n_files = kind > 1 ? 3 : 1;
    for (int l = 0; l < 4; l++) {
        snprintf(part[2 * l], sizeof(part[0]), "blk.%d.ffn_down_exps", l);
        snprintf(part[2 * l + 1], sizeof(part[0]), "blk.%d.ffn_%s", l,
                 m.fused ? "gate_up" : "gate");
        m.mix[2 * l].part = part[2 * l];
        m.mix[2 * l].type = down[l];
        m.mix[2 * l + 1].part = part[2 * l + 1];
        m.mix[2 * l + 1].type = gate[l];
    }
    snprintf(name, sizeof(name), "kind-%d.gguf", kind);
    char *path = fl_tmp_path(folder, name);
    fl_make_gguf(&m, path);
    if (m.n_files == 1) return path;
    free(path);
    snprintf(name, sizeof(name), "kind-%d-00001-of-00003.gguf", kind);
    return fl_tmp_path(folder, name);
}

static void run(const char *path, const fl_engine_params *p, int32_t out[N_MODES][N_OUT])
{
    fl_err err;
    fl_generator *g = NULL;
    int32_t prompt[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = 'a' + (i * 7 + i / 9) % 26;
    fl_loaded l = fl_load(path, p);
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    if (p->io && strcmp(p->io, "fake") == 0)
        fl_io_fake_set(l.engine->io, &(fl_io_fake_config){.seed = 3,
                                                          .short_chance = 300,
                                                          .again_chance = 100,
                                                          .fail_at = -1,
                                                          .reorder = true,
                                                          .stall_chance = 100,
                                                          .stall_polls = 5});
    for (int mode = 0; mode < N_MODES; mode++) {
        fl_gen_result r;
        const fl_gen_config c = fl_greedy_config(l.model, mode ? FL_GEN_BLOCK : FL_GEN_AR, N_OUT);
        ASSERT_OK(fl_generate(g, &c, prompt, N_PROMPT - mode, &r, &err));
        assert_int_equal(r.n_generated, N_OUT);
        memcpy(out[mode], r.ids, sizeof(out[mode]));
    }
    const fl_store_stats s = fl_store_get_stats(l.engine->store);
    if (p->vram) assert_true(s.missed + s.on_cpu + s.copied > 0);
    fl_generator_destroy(&g);
    fl_unload(&l);
}

static fl_engine_params everywhere(void)
{
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = 128;
    p.threads = 1;
    p.chunk = 32;
    return p;
}

/* A tenth and a half of the experts on the device; of the rest none, half or all in host memory. */
static void check(int kind, const char *io, const char *folder)
{
    static const int percent[] = {10, 50}, host[] = {0, 50, 100};
    int32_t want[N_MODES][N_OUT], got[N_MODES][N_OUT];
    char *path = make(kind, folder);
    fl_engine_params p = everywhere();
    run(path, &p, want);
    assert_memory_not_equal(want[0], want[1], sizeof(want[0]));
    for (int i = 0; i < FL_SANITIZED_OR(1, 2); i++)
        for (int h = 0; h < 3; h++) {
            p = everywhere();
            p.io = io;
            p.vram = fl_vram_for(path, &p, percent[i]);
            p.ram = host[h] ? fl_ram_for(path, &p, host[h]) : 0;
            p.lanes = i ? FL_LANES_DEVICE : FL_LANES_AUTO;
            run(path, &p, got);
            if (memcmp(want, got, sizeof(want)) != 0)
                fail_msg("kind %d by %s: %d %% on the device, %d %% of the rest in host memory: "
                         "other tokens",
                         kind, io ? io : "the default", percent[i], host[h]);
        }
    free(path);
}

static void by_the_default(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) check(kind, NULL, disk_dir);
}

static void by_threads(void **state)
{
    (void)state;
    for (int kind = 1; kind < 4; kind += 2) check(kind, "pread", disk_dir);
}

static void through_the_page_cache(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind += 3) check(kind, "buffered", disk_dir);
}

static void by_a_drive_with_moods(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) check(kind, "fake", dir);
}

static int setup(void **state)
{
    (void)state;
    disk_dir = fl_tmp_make();
    /* In memory where that exists: thousands of tiny direct reads would measure the drive. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    dir = fl_tmp_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fl_tmp_remove(dir);
    fl_tmp_remove(disk_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_the_default),
        cmocka_unit_test(by_threads),
        cmocka_unit_test(through_the_page_cache),
        cmocka_unit_test(by_a_drive_with_moods),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
