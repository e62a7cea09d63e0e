#include "runtime/model/shards.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/jscan.h"

static const char st_ext[] = ".safetensors", index_name[] = "model.safetensors.index.json";
static const uint64_t max_index = 64u << 20;
enum { MAX_FILES = 1000, MAX_ENTRIES = 1 << 18 };

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static bool five_digits(const char *p, int *v)
{
    *v = 0;
    for (int i = 0; i < 5; i++) {
        if (p[i] < '0' || p[i] > '9') return false;
        *v = *v * 10 + (p[i] - '0');
    }
    return true;
}

bool fl_shard_name_parse(const char *path, const char *ext, fl_shard_name *out)
{
    enum { TAIL = 15 }; /* -00002-of-00005 */
    const size_t n = strlen(path), m = strlen(ext);
    if (n <= m + TAIL || strcmp(path + n - m, ext) != 0) return false;
    const char *t = path + n - m - TAIL;
    if (t[0] != '-' || memcmp(t + 6, "-of-", 4) != 0) return false;
    if (!five_digits(t + 1, &out->no) || !five_digits(t + 10, &out->of)) return false;
    out->prefix = (size_t)(t - path);
    return out->no >= 1 && out->no <= out->of;
}

fl_status fl_path_join(char **out, const char *dir, const char *name, fl_err *err)
{
    if (asprintf(out, "%s/%s", dir, name) < 0) {
        *out = NULL;
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s/%s: no memory for its path", dir, name);
    }
    return FL_OK;
}

bool fl_path_exists(const char *path) { return access(path, F_OK) == 0; }

/* Adds dir/name to the list. */
static fl_status add(fl_shards *s, const char *name, fl_err *err)
{
    if (s->n == MAX_FILES)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the model consists of more than %d files: the index or a file name is "
                       "damaged",
                       s->dir, MAX_FILES);
    char **more = realloc(s->path, ((size_t)s->n + 1) * sizeof *more);
    if (!more) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its files", s->dir);
    s->path = more;
    FL_TRY(fl_path_join(&s->path[s->n], s->dir, name, err));
    s->n++;
    return FL_OK;
}

static bool same(fl_str a, const char *b) { return a.n == strlen(b) && memcmp(a.p, b, a.n) == 0; }

static bool listed(const fl_shards *s, fl_str name)
{
    const size_t dir = strlen(s->dir) + 1;
    for (int i = s->n - 1; i >= 0; i--)
        if (same(name, s->path[i] + dir)) return true;
    return false;
}

static fl_status missing(const fl_shards *s, const char *name, const char *why, fl_err *err)
{
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s/%s: is missing, %s; download it into this folder or give it back its name",
                   s->dir, name, why);
}

/* The file that the index names for a tensor is there. */
static fl_status check_listed(const fl_shards *s, const fl_shard_entry *e, fl_err *err)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%.*s", s->dir, (int)e->file.n, e->file.p) < 0)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", s->dir);
    const bool there = fl_path_exists(path);
    free(path);
    if (there) return FL_OK;
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s/%.*s: is missing, %s lists it for tensor '%.*s'; download it into this "
                   "folder or give it back its name",
                   s->dir, (int)e->file.n, e->file.p, index_name,
                   (int)(e->tensor.n < 100 ? e->tensor.n : 100), e->tensor.p);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files that the index names, each once. */
static fl_status from_index(fl_shards *s, fl_err *err)
{
    for (size_t i = 0; i < s->n_map; i++) {
        const fl_shard_entry *e = &s->map[i];
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(e->file.n < 255 ? e->file.n : 255), e->file.p);
        if (e->file.n > 255 || strchr(name, '/') || name[0] == '.' || !ends_with(name, st_ext))
            return FL_FAIL(
                err, FL_E_FORMAT, 0,
                "%s/%s: tensor '%.*s' lies in '%.100s', which is no .safetensors name in "
                "this folder: the index is damaged, download it again",
                s->dir, index_name, (int)(e->tensor.n < 100 ? e->tensor.n : 100), e->tensor.p,
                name);
        if (!listed(s, e->file)) FL_TRY(add(s, name, err));
    }
    if (s->n == 0)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s/%s: its weight_map names no file: the index is damaged, download it "
                       "again",
                       s->dir, index_name);
    qsort(s->path, (size_t)s->n, sizeof *s->path, by_name);
    for (size_t i = 0; i < s->n_map; i++) FL_TRY(check_listed(s, &s->map[i], err));
    return FL_OK;
}

/* All shards of the set to which `name` belongs. */
static fl_status from_shard_name(fl_shards *s, const char *name, fl_err *err)
{
    fl_shard_name sn;
    if (!fl_shard_name_parse(name, st_ext, &sn)) return add(s, name, err);
    for (int i = 1; i <= sn.of; i++) {
        char *one;
        if (asprintf(&one, "%.*s-%05d-of-%05d%s", (int)sn.prefix, name, i, sn.of, st_ext) < 0)
            return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", s->dir);
        fl_status st = add(s, one, err);
        if (st == FL_OK && !fl_path_exists(s->path[s->n - 1]))
            st = missing(s, one, "the names of the other shards ask for it", err);
        free(one);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

/* What a folder holds, as far as it matters here. */
typedef struct listing {
    char *first;  /* a .safetensors file */
    char *second; /* another, not of the first one's set */
    char *gguf;   /* a .gguf file */
} listing;

static bool same_set(const char *a, const char *b)
{
    fl_shard_name x, y;
    return fl_shard_name_parse(a, st_ext, &x) && fl_shard_name_parse(b, st_ext, &y) &&
           x.of == y.of && x.prefix == y.prefix && strncmp(a, b, x.prefix) == 0;
}

static fl_status list_folder(listing *l, const char *dir, fl_err *err)
{
    DIR *d = opendir(dir);
    if (!d) return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be opened: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char **slot = NULL;
        if (ends_with(e->d_name, st_ext))
            slot = !l->first ? &l->first : same_set(l->first, e->d_name) ? NULL : &l->second;
        else if (ends_with(e->d_name, ".gguf"))
            slot = &l->gguf;
        if (slot && !*slot) *slot = strdup(e->d_name);
    }
    closedir(d);
    return FL_OK;
}

static fl_status from_folder(fl_shards *s, fl_err *err)
{
    listing l = {0};
    fl_status st = list_folder(&l, s->dir, err);
    if (st != FL_OK) goto out;
    if (l.second)
        st =
            FL_FAIL(err, FL_E_FORMAT, 0,
                    "%s: holds '%.80s', '%.80s' and no model.safetensors.index.json that says what "
                    "belongs together; download the index or name one file",
                    s->dir, l.first, l.second);
    else if (l.first)
        st = from_shard_name(s, l.first, err);
    else if (l.gguf)
        st = FL_FAIL(err, FL_E_ARG, 0,
                     "%s: is a folder with GGUF files; name the file itself, as %s/%.100s", s->dir,
                     s->dir, l.gguf);
    else
        st =
            FL_FAIL(err, FL_E_FORMAT, 0,
                    "%s: no model in this folder; expected *.safetensors with config.json, or name "
                    "a .gguf file",
                    s->dir);
out:
    free(l.first);
    free(l.second);
    free(l.gguf);
    return st;
}

/* {"tensor": "file", ...} */
static fl_status read_map(fl_shards *s, fl_jscan *c)
{
    size_t room = 0;
    FL_TRY(fl_jscan_expect(c, '{'));
    if (fl_jscan_take(c, '}')) return FL_OK;
    do {
        if (s->n_map == room) {
            room = room ? room * 2 : 256;
            fl_shard_entry *more =
                room <= MAX_ENTRIES ? realloc(s->map, room * sizeof *more) : NULL;
            if (!more)
                return FL_FAIL(c->err, FL_E_NOMEM, 0, "%s: no memory for a map of %zu tensors",
                               c->path, room);
            s->map = more;
        }
        fl_shard_entry *e = &s->map[s->n_map];
        FL_TRY(fl_jscan_string(c, &e->tensor, "a tensor name"));
        FL_TRY(fl_jscan_expect(c, ':'));
        FL_TRY(fl_jscan_string(c, &e->file, "a file name"));
        s->n_map++;
    } while (fl_jscan_take(c, ','));
    return fl_jscan_expect(c, '}');
}

/* {"metadata": ..., "weight_map": {...}} */
static fl_status scan_index(fl_shards *s, fl_jscan *c)
{
    bool found = false;
    fl_str key;
    FL_TRY(fl_jscan_expect(c, '{'));
    do {
        FL_TRY(fl_jscan_string(c, &key, "a name"));
        FL_TRY(fl_jscan_expect(c, ':'));
        const bool map = same(key, "weight_map");
        if (map && found) return fl_jscan_bad(c, "no second weight_map");
        found |= map;
        FL_TRY(map ? read_map(s, c) : fl_jscan_skip(c));
    } while (fl_jscan_take(c, ','));
    FL_TRY(fl_jscan_expect(c, '}'));
    if (!found)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: has no object weight_map: the index is damaged, download it again",
                       c->path);
    return fl_jscan_end(c);
}

/* The index beside the files, when there is one. */
static fl_status read_index(fl_shards *s, bool *exists, fl_err *err)
{
    char *path = NULL;
    uint64_t n = 0;
    fl_status st;
    FL_GO(fl_path_join(&path, s->dir, index_name, err));
    *exists = fl_path_exists(path);
    if (!*exists) goto out;
    FL_GO(fl_file_load(path, max_index, &s->text, &n, err));
    fl_jscan c = {s->text, s->text + n, s->text, 0, path, err};
    st = scan_index(s, &c);
out:
    free(path);
    return st;
}

static bool map_names(const fl_shards *s, const char *file)
{
    for (size_t i = 0; i < s->n_map; i++)
        if (same(s->map[i].file, file)) return true;
    return false;
}

static void drop_index(fl_shards *s)
{
    free(s->map);
    free(s->text);
    s->map = NULL;
    s->text = NULL;
    s->n_map = 0;
}

static fl_status find(fl_shards *s, const char *name, fl_err *err)
{
    bool exists;
    FL_TRY(read_index(s, &exists, err));
    if (exists && (!name || map_names(s, name))) return from_index(s, err);
    drop_index(s); /* the named file is no part of that model */
    return name ? from_shard_name(s, name, err) : from_folder(s, err);
}

fl_status fl_shards_find(fl_shards *out, const char *path, bool is_folder, fl_err *err)
{
    *out = (fl_shards){0};
    const char *slash = is_folder ? NULL : strrchr(path, '/');
    size_t n = is_folder ? strlen(path) : slash ? (size_t)(slash - path) : 0;
    while (is_folder && n > 1 && path[n - 1] == '/') n--;
    out->dir = is_folder || slash ? strndup(path, n) : strdup(".");
    fl_status st = FL_OK;
    if (!out->dir) st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
    if (st == FL_OK) st = find(out, is_folder ? NULL : slash ? slash + 1 : path, err);
    if (st != FL_OK) fl_shards_fini(out);
    return st;
}

void fl_shards_fini(fl_shards *s)
{
    for (int i = 0; i < s->n; i++) free(s->path[i]);
    free(s->path);
    free(s->dir);
    drop_index(s);
    *s = (fl_shards){0};
}
