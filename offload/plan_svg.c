#include "offload/plan_svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"

/* In pixels. */
enum {
    WIDTH = 1180,
    LEFT = 110, /* of the cells and the bar */
    PLOT = 1024,
    TOP = 96,
    BOTTOM = 176, /* for axis, legend and bar */
    ROOM = 640    /* for all rows, where they are many */
};
enum { LEVELS = 5 };

static const char *const tier_colour[] = {"#8a9099", "#e07b1a", "#1a5fd0"}; /* by fl_tier */
static const char *const tier_name[] = {"in the file", "in host memory", "in device memory"};
/* How much of the colour is left, by use of 4, 2, 1, 1/2 of the layer's mean and less. */
static const char *const opacity[LEVELS] = {"1", ".78", ".58", ".4", ".26"};

typedef struct cell {
    uint32_t heat;
    int32_t expert;
    uint8_t tier, level;
} cell;

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

static int by_heat(const void *a, const void *b)
{
    const cell *x = a, *y = b;
    if (x->heat != y->heat) return x->heat > y->heat ? -1 : 1;
    if (x->tier != y->tier) return (int)y->tier - (int)x->tier;
    return x->expert - y->expert;
}

/* A layer's experts in the order of their cells; returns how many there are. */
static int layer_cells(const fl_plan *p, const uint32_t *heat, int layer, cell *out)
{
    int n = 0;
    uint64_t sum = 0;
    for (int e = 0; e < p->in.n_expert; e++) {
        const size_t key = (size_t)layer * (size_t)p->in.n_expert + (size_t)e;
        if (!p->in.expert_bytes[key]) continue;
        const uint32_t h = heat ? heat[key] : 0;
        out[n++] = (cell){.heat = h, .expert = e, .tier = p->tier[key]};
        sum += (uint64_t)h + 1;
    }
    for (int i = 0; heat && i < n; i++) {
        const uint64_t h = ((uint64_t)out[i].heat + 1) * (uint64_t)n;
        out[i].level = h >= 4 * sum ? 0 : h >= 2 * sum ? 1 : h >= sum ? 2 : 2 * h >= sum ? 3 : 4;
    }
    qsort(out, (size_t)n, sizeof *out, by_heat);
    return n;
}

static void text(FILE *f, double x, double y, const char *style, const char *words)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, words);
}

static void box(FILE *f, double x, double y, double w, double h, const char *colour,
                const char *left)
{
    fprintf(f,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
            "fill-opacity=\"%s\"/>\n",
            x, y, w, h, colour, left);
}

/* Neighbours that look alike are one box. */
static void draw_layer(FILE *f, const cell *c, int n, int n_expert, double y, double h)
{
    const double w = (double)PLOT / n_expert;
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n; end++)
            if (c[end].tier != c[i].tier || c[end].level != c[i].level) break;
        box(f, LEFT + w * i, y, w * (end - i), h, tier_colour[c[i].tier], opacity[c[i].level]);
    }
}

static void draw_label(FILE *f, const fl_plan *p, int layer, double y, double h)
{
    char name[32];
    const bool mtp = p->in.last_is_mtp && layer == p->in.n_layer - 1;
    const int each = h >= 13 ? 1 : h >= 6 ? 4 : 16;
    if (layer % each && !mtp) return;
    snprintf(name, sizeof name, mtp ? "MTP block" : "layer %d", layer);
    text(f, LEFT - 10, y + h / 2 + 4, "text-anchor=\"end\"", name);
}

static void draw_axis(FILE *f, const fl_plan *p, double y)
{
    const int n = p->in.n_expert, step = n >= 8 ? n / 8 : 1;
    const double w = (double)PLOT / n;
    for (int i = 0; i <= n; i += step) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        box(f, LEFT + w * i - .5, y + 2, 1, 5, "#444", "1");
        text(f, LEFT + w * i, y + 20, "text-anchor=\"middle\"", number);
    }
}

static void draw_legend(FILE *f, bool heat, double y)
{
    double x = LEFT;
    for (int t = FL_TIER_DEVICE; t >= FL_TIER_FILE; t--) {
        for (int l = 0; l < (heat ? LEVELS : 1); l++, x += 16)
            box(f, x, y - 11, 14, 14, tier_colour[t], opacity[l]);
        text(f, x + 6, y, "", tier_name[t]);
        x += 150;
    }
}

static const char *const part_colour[] = {"#27406b", "#3f6ea8", "#6c9bd1", "#98c1e8",
                                          "#7a6fb0", "#a99bd6", "#c9c1e6"};
enum { PART_COLOURS = sizeof part_colour / sizeof *part_colour };

/* One part of the bar and its line of text, four beside each other; moves *x. */
static void draw_part(FILE *f, const char *name, uint64_t bytes, uint64_t whole, int i,
                      const char *colour, double *x, double y)
{
    char label[96];
    const double w = whole ? PLOT * ((double)bytes / (double)whole) : 0;
    const double lx = LEFT + 256 * (i % 4), ly = y + 40 + 19 * (i / 4);
    box(f, *x, y, w, 18, colour, "1");
    *x += w;
    box(f, lx, ly - 10, 11, 11, colour, "1");
    snprintf(label, sizeof label, "%s %.1f MiB", name, mib(bytes));
    text(f, lx + 17, ly, "", label);
}

static void draw_bar(FILE *f, const fl_plan *p, double y)
{
    const bool capped = p->in.device_cap != UINT64_MAX;
    const uint64_t whole = capped ? p->in.device_cap : p->device_bytes;
    double x = LEFT;
    int i = 0;
    text(f, LEFT - 10, y + 13, "text-anchor=\"end\"", "device");
    for (; i < p->in.n_items; i++)
        draw_part(f, p->in.item[i].name, p->in.item[i].bytes, whole, i,
                  part_colour[i % PART_COLOURS], &x, y);
    draw_part(f, "experts", p->resident_bytes, whole, i++, tier_colour[FL_TIER_DEVICE], &x, y);
    draw_part(f, "streaming slots", p->slots_bytes, whole, i++, "#2ca089", &x, y);
    if (capped) draw_part(f, "free", whole - p->device_bytes, whole, i, "#dfe3e8", &x, y);
}

static void draw_head(FILE *f, const fl_plan *p, bool heat, double height)
{
    char line[160];
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 "
            "%d %.0f\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<style>.t{font-size:20px;font-weight:bold}.s{fill:#666}</style>\n",
            WIDTH, height, WIDTH, height);
    box(f, 0, 0, WIDTH, height, "#fff", "1");
    snprintf(line, sizeof line, "%d of %d experts stay in device memory", p->n_resident,
             p->n_total);
    text(f, LEFT, 36, "class=\"t\"", line);
    snprintf(
        line, sizeof line,
        "%d in host memory, %d in the file; %.1f MiB of device memory, %.1f MiB of host memory",
        p->n_host, p->n_total - p->n_resident - p->n_host, mib(p->device_bytes),
        mib(p->host_bytes));
    text(f, LEFT, 58, "class=\"s\"", line);
    text(f, LEFT, TOP - 10, "class=\"s\"",
         heat ? "the experts of each layer, the most used on the left; full colour: used four "
                "times as "
                "often as the mean or more, palest: less than half as often"
              : "the experts of each layer; how often they are used is not known yet");
}

static void draw(FILE *f, const fl_plan *p, const uint32_t *heat, cell *cells)
{
    int rows = 0;
    for (int l = 0; l < p->in.n_layer; l++) rows += layer_cells(p, heat, l, cells) > 0;
    const double pitch = rows * 16 <= ROOM ? 16 : (double)ROOM / rows;
    const double end = TOP + pitch * rows;
    double y = TOP;
    draw_head(f, p, heat != NULL, end + BOTTOM);
    for (int l = 0; l < p->in.n_layer; l++) {
        const int n = layer_cells(p, heat, l, cells);
        if (!n) continue;
        draw_layer(f, cells, n, p->in.n_expert, y, pitch * .88);
        draw_label(f, p, l, y, pitch * .88);
        y += pitch;
    }
    if (rows) draw_axis(f, p, end);
    draw_legend(f, heat != NULL, end + 52);
    draw_bar(f, p, end + 76);
    fprintf(f, "</svg>\n");
}

/* Something is known of it. */
static bool is_known(const fl_plan *p, const uint32_t *heat)
{
    for (int i = 0; heat && i < p->in.n_layer * p->in.n_expert; i++)
        if (heat[i]) return true;
    return false;
}

char *fl_plan_svg(const fl_plan *p, const uint32_t *heat)
{
    char *out = NULL;
    size_t n = 0;
    cell *cells = malloc(((size_t)p->in.n_expert + 1) * sizeof *cells);
    FILE *f = cells ? open_memstream(&out, &n) : NULL;
    if (f) draw(f, p, is_known(p, heat) ? heat : NULL, cells);
    free(cells);
    if (f && fclose(f) == 0) return out;
    free(out);
    return NULL;
}

fl_status fl_plan_svg_write(const fl_plan *p, const uint32_t *heat, const char *path, fl_err *err)
{
    fl_outfile *out = NULL;
    char *svg = fl_plan_svg(p, heat);
    fl_status st;
    if (!svg) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory for the picture", path);
    FL_GO(fl_outfile_open(&out, path, err));
    FL_GO(fl_outfile_write(out, svg, strlen(svg), err));
    st = fl_outfile_commit(&out, err);
out:
    fl_outfile_discard(&out);
    free(svg);
    return st;
}
