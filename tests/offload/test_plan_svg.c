/* The picture of a plan shows as many experts of each tier in each layer as the plan has. */
#include <math.h>
#include <stdlib.h>

#include "offload/plan_svg.h"
#include "runtime/base/file.h"
#include "tests/support/files.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { LAYERS = 5, EXPERTS = 16, N = LAYERS * EXPERTS };

static uint64_t sizes[N];
static uint32_t heat[N];

/* Layer 0 has no experts; heat falls and rises with no order. */
static fl_plan make_plan(bool hot)
{
    fl_plan p;
    fl_err err = {0};
    for (int i = 0; i < N; i++) {
        sizes[i] = i < EXPERTS ? 0 : 1 << 20;
        heat[i] = (uint32_t)(i * 37 % 64);
    }
    const fl_plan_input in = {.device_cap = 30 << 20,
                              .host_cap = 40 << 20,
                              .host_asked = true,
                              .item = {{"dense weights", 2 << 20}},
                              .n_items = 1,
                              .n_layer = LAYERS,
                              .n_expert = EXPERTS,
                              .top_k = 2,
                              .expert_bytes = sizes,
                              .host_bytes = sizes,
                              .heat = hot ? heat : NULL};
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    assert_true(p.n_resident && p.n_host && p.n_resident + p.n_host < p.n_total);
    return p;
}

/* Experts by tier in the rows of boxes, from the top; the first and last box of each row. */
static void count_cells(const char *svg, double cells[LAYERS][3], double first[LAYERS],
                        double last[LAYERS])
{
    static const char *const colour[] = {"#8a9099", "#e07b1a", "#1a5fd0"};
    double x, y, w, h, row_y = -1, opacity;
    char fill[16];
    int row = -1;
    memset(cells, 0, sizeof(double) * LAYERS * 3);
    for (const char *p = svg; (p = strstr(p, "<rect ")); p++) {
        assert_int_equal(sscanf(p,
                                "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\" "
                                "fill=\"%15[^\"]\" fill-opacity=\"%lf\"",
                                &x, &y, &w, &h, fill, &opacity),
                         6);
        if (fabs(h - 14.08) > .01) continue;
        if (y > row_y) {
            row++;
            row_y = y;
            first[row] = opacity;
        }
        assert_in_range(row, 0, LAYERS - 2);
        for (int t = 0; t < 3; t++)
            if (strcmp(fill, colour[t]) == 0) cells[row][t] += w / (1024.0 / EXPERTS);
        last[row] = opacity;
    }
    assert_int_equal(row, LAYERS - 2);
}

static void test_cells(void **state)
{
    (void)state;
    for (int hot = 0; hot < 2; hot++) {
        fl_plan p = make_plan(hot);
        char *svg = fl_plan_svg(&p, hot ? heat : NULL);
        double cells[LAYERS][3], first[LAYERS], last[LAYERS];
        count_cells(svg, cells, first, last);
        for (int l = 1; l < LAYERS; l++) {
            int n[3] = {0};
            for (int e = 0; e < EXPERTS; e++) n[fl_plan_tier(&p, l, e)]++;
            for (int t = 0; t < 3; t++) assert_true(fabs(cells[l - 1][t] - n[t]) < .01);
            assert_true(hot ? first[l - 1] > last[l - 1] : last[l - 1] == 1);
        }
        char title[64];
        snprintf(title, sizeof title, ">%d of 64 experts stay in device memory<", p.n_resident);
        assert_non_null(strstr(svg, title));
        assert_non_null(strstr(svg, ">dense weights 2.0 MiB<"));
        assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
        free(svg);
        fl_plan_free(&p);
    }
}

static void test_file(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_plan p = make_plan(false);
    char *path = fl_tmp_path(fl_files.dir, "plan.svg"), *text = NULL;
    char *nowhere = fl_tmp_path(fl_files.dir, "none/plan.svg");
    char *svg = fl_plan_svg(&p, NULL);
    uint64_t n = 0;
    ASSERT_OK(fl_plan_svg_write(&p, NULL, path, &err));
    ASSERT_OK(fl_file_load(path, 1 << 20, &text, &n, &err));
    assert_string_equal(text, svg);
    ASSERT_FAILS(fl_plan_svg_write(&p, NULL, nowhere, &err), FL_E_IO, "none");
    assert_int_equal(fl_tmp_count(fl_files.dir), 1);
    free(text);
    free(svg);
    free(path);
    free(nowhere);
    fl_plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cells), cmocka_unit_test(test_file)};
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
