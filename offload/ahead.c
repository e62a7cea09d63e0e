#include "offload/ahead.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bits of an expert beside those of the signals. */
enum { THIS_BLOCK = 1 << FL_SIGNALS, WANTED = THIS_BLOCK << 1 };
/* Guesses that count: older ones count half, and again. */
enum { MEMORY = 4096, UNKNOWN_PERMILLE = 500 };

struct fl_ahead {
    int n_layer, n_expert;
    uint8_t *bits;   /* [n_layer * n_expert] */
    uint16_t *score; /* [n_expert] scratch */
    fl_signal_stats all[FL_SIGNALS], lately[FL_SIGNALS];
};

const char *fl_signal_name(fl_signal signal)
{
    static const char *const names[FL_SIGNALS] = {"router", "pass", "block", "profile"};
    return names[signal];
}

/* Marks the hottest experts of a layer, unless all are alike. */
static void mark_hot(uint8_t *bits, const uint32_t *heat, int n, int hot)
{
    uint32_t least = UINT32_MAX;
    for (int e = 0; e < n; e++) least = heat[e] < least ? heat[e] : least;
    for (int k = 0; k < hot; k++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!(bits[e] & 1 << FL_SIGNAL_PROFILE) && heat[e] > least &&
                (best < 0 || heat[e] > heat[best]))
                best = e;
        if (best < 0) return;
        bits[best] |= 1 << FL_SIGNAL_PROFILE;
    }
}

fl_status fl_ahead_create(fl_ahead **out, int n_layer, int n_expert, const uint32_t *heat, int hot,
                          fl_err *err)
{
    const size_t n = (size_t)n_layer * (size_t)n_expert;
    *out = NULL;
    fl_ahead *a = calloc(1, sizeof *a);
    uint8_t *bits = calloc(n + 1, 1);
    uint16_t *score = calloc((size_t)n_expert + 1, sizeof *score);
    if (!a || !bits || !score) {
        free(score);
        free(bits);
        free(a);
        return FL_FAIL(err, FL_E_NOMEM, errno, "reading ahead: out of memory for %zu experts", n);
    }
    *a = (fl_ahead){.n_layer = n_layer, .n_expert = n_expert, .bits = bits, .score = score};
    for (int l = 0; l < n_layer && heat; l++)
        mark_hot(bits + l * n_expert, heat + l * n_expert, n_expert, hot);
    *out = a;
    return FL_OK;
}

void fl_ahead_destroy(fl_ahead **a)
{
    if (!*a) return;
    free((*a)->score);
    free((*a)->bits);
    free(*a);
    *a = NULL;
}

static uint8_t *layer_bits(const fl_ahead *a, int layer)
{
    assert(layer >= 0 && layer < a->n_layer);
    return a->bits + layer * a->n_expert;
}

static void set(uint8_t *bits, const int32_t *ids, int n, uint8_t bit)
{
    for (int i = 0; i < n; i++) bits[ids[i]] |= bit;
}

void fl_ahead_guess(fl_ahead *a, int layer, const int32_t *ids, int n)
{
    uint8_t *b = layer_bits(a, layer);
    for (int e = 0; e < a->n_expert; e++) b[e] &= (uint8_t) ~(1 << FL_SIGNAL_ROUTER);
    set(b, ids, n, 1 << FL_SIGNAL_ROUTER);
}

static void judge(fl_ahead *a, const uint8_t *b)
{
    for (int s = 0; s < FL_SIGNALS; s++) {
        uint64_t named = 0, right = 0;
        for (int e = 0; e < a->n_expert; e++) {
            if (!(b[e] & 1 << s)) continue;
            named++;
            right += (b[e] & WANTED) != 0;
        }
        a->all[s].named += named;
        a->all[s].right += right;
        fl_signal_stats *l = &a->lately[s];
        l->named += named;
        l->right += right;
        if (l->named < MEMORY) continue;
        l->named /= 2;
        l->right /= 2;
    }
}

void fl_ahead_saw(fl_ahead *a, int layer, const int32_t *ids, int n)
{
    uint8_t *b = layer_bits(a, layer);
    set(b, ids, n, WANTED);
    judge(a, b);
    for (int e = 0; e < a->n_expert; e++) {
        b[e] &= (uint8_t) ~(1 << FL_SIGNAL_ROUTER | 1 << FL_SIGNAL_PASS);
        if (!(b[e] & WANTED)) continue;
        b[e] |= 1 << FL_SIGNAL_PASS | THIS_BLOCK;
        b[e] &= (uint8_t)~WANTED;
    }
}

void fl_ahead_block(fl_ahead *a)
{
    for (int i = 0; i < a->n_layer * a->n_expert; i++) {
        const bool used = a->bits[i] & THIS_BLOCK;
        a->bits[i] &= (uint8_t) ~(1 << FL_SIGNAL_BLOCK | THIS_BLOCK);
        if (used) a->bits[i] |= 1 << FL_SIGNAL_BLOCK;
    }
}

static int permille(const fl_signal_stats *l)
{
    return l->named ? (int)(l->right * 1000 / l->named) : UNKNOWN_PERMILLE;
}

int fl_ahead_list(fl_ahead *a, int layer, int32_t *ids)
{
    const uint8_t *b = layer_bits(a, layer);
    int weight[FL_SIGNALS], n = 0;
    for (int s = 0; s < FL_SIGNALS; s++) {
        weight[s] = permille(&a->lately[s]);
        if (weight[s] < FL_AHEAD_FLOOR) weight[s] = 0;
    }
    for (int e = 0; e < a->n_expert; e++) {
        int score = 0;
        for (int s = 0; s < FL_SIGNALS; s++) score += b[e] & 1 << s ? weight[s] : 0;
        a->score[e] = (uint16_t)score;
        if (!score) continue;
        int at = n++;
        for (; at > 0 && a->score[ids[at - 1]] < score; at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
    return n;
}

fl_signal_stats fl_ahead_stats(const fl_ahead *a, fl_signal signal) { return a->all[signal]; }
