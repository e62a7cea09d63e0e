#include "runtime/tools/card.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/model/shards.h"

enum { MAX_CARD = 16 << 20 };

static const char hub[] = "https://huggingface.co/";

/* ---- front matter ---- */

/* Copies [p, end) without the white space, quotes and comment around it; "" when it does not fit
 * or is not printable ASCII. */
static void take_value(char out[FL_CARD_VALUE], const char *p, const char *end)
{
    out[0] = 0;
    while (p < end && (*p == ' ' || *p == '\t')) p++;
    const bool quoted = p < end && (*p == '"' || *p == '\'');
    if (quoted) {
        const char *close = memchr(p + 1, *p, (size_t)(end - p - 1));
        if (!close) return;
        p++;
        end = close;
    } else {
        for (const char *q = p; q < end; q++)
            if (*q == '#' && (q == p || q[-1] == ' ')) end = q;
        while (end > p && (end[-1] == ' ' || end[-1] == '\t')) end--;
    }
    const size_t n = (size_t)(end - p);
    if (n >= FL_CARD_VALUE) return;
    for (size_t i = 0; i < n; i++)
        if (p[i] < 0x20 || p[i] > 0x7e) return;
    memcpy(out, p, n);
    out[n] = 0;
}

typedef enum card_key { KEY_OTHER, KEY_LICENSE, KEY_NAME, KEY_LINK, KEY_BASE } card_key;

static card_key key_of(const char *p, size_t n)
{
    static const char *const names[] = {"", "license", "license_name", "license_link",
                                        "base_model"};
    for (int i = KEY_LICENSE; i <= KEY_BASE; i++)
        if (strlen(names[i]) == n && memcmp(names[i], p, n) == 0) return (card_key)i;
    return KEY_OTHER;
}

/* One value of a key; a second one of a text is passed over. */
static void put_value(fl_card *c, card_key key, const char *p, const char *end)
{
    char v[FL_CARD_VALUE];
    char *text = key == KEY_LICENSE ? c->license
                 : key == KEY_NAME  ? c->license_name
                 : key == KEY_LINK  ? c->license_link
                                    : NULL;
    take_value(v, p, end);
    if (!v[0] || strcmp(v, "null") == 0 || strchr("~|>", v[0])) return;
    if (text && !text[0]) strcpy(text, v);
    if (key == KEY_BASE && c->n_base < FL_CARD_BASES) strcpy(c->base[c->n_base++], v);
}

/* "a", or "[a, b]". */
static void put_values(fl_card *c, card_key key, const char *p, const char *end)
{
    while (p < end && *p == ' ') p++;
    if (p == end || *p != '[') {
        put_value(c, key, p, end);
        return;
    }
    for (p++; p < end;) {
        const char *stop = p;
        while (stop < end && *stop != ',' && *stop != ']') stop++;
        put_value(c, key, p, stop);
        if (stop == end || *stop == ']') return;
        p = stop + 1;
    }
}

void fl_card_parse(fl_card *c, const char *text)
{
    card_key key = KEY_OTHER;
    memset(c, 0, sizeof *c);
    bool first = true;
    for (const char *p = text; *p; first = false) {
        const char *end = p + strcspn(p, "\n"), *next = *end ? end + 1 : end;
        if (end > p && end[-1] == '\r') end--;
        const bool fence = end - p == 3 && memcmp(p, "---", 3) == 0;
        if (fence != first) return; /* no front matter, or its end */
        const char *in = p;
        while (in < end && *in == ' ') in++;
        if (!fence && in < end && *in == '-') {
            put_value(c, key, in + 1, end);
        } else if (!fence && in == p && p < end && *p != '#') {
            const char *colon = memchr(p, ':', (size_t)(end - p));
            key = colon ? key_of(p, (size_t)(colon - p)) : KEY_OTHER;
            if (key != KEY_OTHER) put_values(c, key, colon + 1, end);
        }
        p = next;
    }
    memset(c, 0, sizeof *c); /* no second fence: it was no front matter */
}

fl_status fl_card_read(fl_card *c, const char *dir, fl_err *err)
{
    char *path = NULL, *text = NULL;
    fl_status st;
    memset(c, 0, sizeof *c);
    FL_GO(fl_path_join(&path, dir, "README.md", err));
    if (!fl_path_exists(path)) goto out;
    FL_GO(fl_file_load(path, MAX_CARD, &text, NULL, err));
    fl_card_parse(c, text);
out:
    free(text);
    free(path);
    return st;
}

/* ---- base models ---- */

/* A version or a size: it keeps its letters. */
static bool is_number_word(const char *p, size_t n)
{
    size_t i = p[0] == 'v' ? 1 : 0;
    if (i == n || p[i] < '0' || p[i] > '9') return false;
    if (p[0] != 'v') return true;
    for (; i < n; i++)
        if (!(p[i] >= '0' && p[i] <= '9') && !(p[i] == '.' && i + 1 < n)) return false;
    return true;
}

/* "tiny-moe" -> "Tiny Moe"; words that have a capital already stay. out has room for n + 1. */
static void to_title(char *out, const char *id, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        bool upper = false;
        while (i + len < n && id[i + len] != '-' && id[i + len] != ' ') {
            upper |= id[i + len] >= 'A' && id[i + len] <= 'Z';
            len++;
        }
        if (len && at) out[at++] = ' ';
        const bool keep = upper || (len && is_number_word(id + i, len));
        for (size_t k = 0; k < len; k++) {
            const bool starts = k == 0 || !isalpha((unsigned char)id[i + k - 1]);
            out[at++] = (char)(!keep && starts ? toupper((unsigned char)id[i + k]) : id[i + k]);
        }
        i += len + 1;
    }
    out[at] = 0;
}

void fl_card_split_base(fl_card_base *b, const char *id)
{
    memset(b, 0, sizeof *b);
    if (strstr(id, "://")) {
        snprintf(b->repo_url, sizeof b->repo_url, "%.255s", id);
        if (strncmp(id, hub, sizeof hub - 1) != 0) return;
        id += sizeof hub - 1;
    }
    const char *slash = strchr(id, '/'), *name = slash ? slash + 1 : id;
    if (slash == id || !*name || strchr(name, '/')) return;
    to_title(b->name, name, strlen(name));
    if (!slash) return;
    to_title(b->organization, id, (size_t)(slash - id));
    if (!b->repo_url[0]) snprintf(b->repo_url, sizeof b->repo_url, "%s%.255s", hub, id);
}
