#include "runtime/model/source.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/names.h"
#include "runtime/model/safetensors.h"
#include "runtime/model/shards.h"

enum { SNIFF_BYTES = 256, MAX_CONFIG = 512 << 10 };

struct fl_source {
    fl_source_kind kind;
    int n_files;
    char **path;    /* [n_files] */
    int *fd;        /* [n_files] */
    fl_file_id *id; /* [n_files]: as they were opened */
    char **names;   /* [n_files]: one block of NUL-terminated names each */
    fl_tensor *tensor;
    size_t n_tensors;
    fl_names by_name;
    fl_gguf *gguf;
    fl_json *config, *generation_config;
    char *tokenizer_path, *license;
};

/* ---- what kind of file -------------------------------------------------------------------- */

typedef struct sniffed {
    const char *path;
    const uint8_t *p;
    size_t n;
    uint64_t file_bytes;
} sniffed;

static bool starts(const sniffed *f, const char *magic)
{
    const size_t n = strlen(magic);
    return f->n >= n && memcmp(f->p, magic, n) == 0;
}

static bool is_html(const sniffed *f)
{
    size_t i = f->n >= 3 && memcmp(f->p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < f->n && (f->p[i] == ' ' || (f->p[i] >= '\t' && f->p[i] <= '\r'))) i++;
    const char *p = (const char *)f->p + i;
    const size_t n = f->n - i;
    return (n >= 9 && strncasecmp(p, "<!doctype", 9) == 0) ||
           (n >= 5 && strncasecmp(p, "<html", 5) == 0) ||
           (n >= 5 && strncasecmp(p, "<head", 5) == 0);
}

static bool is_text(const sniffed *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->p[i] == 0x7f || (f->p[i] < 0x20 && (f->p[i] < '\t' || f->p[i] > '\r'))) return false;
    return true;
}

/* A plausible length and the brace that opens its JSON. */
static bool is_safetensors(const sniffed *f)
{
    return f->n > 8 && f->p[8] == '{' && f->p[5] == 0 && f->p[6] == 0 && f->p[7] == 0;
}

static fl_status refuse(const sniffed *f, fl_err *err)
{
    static const char *const old[] = {"lmgg", "tjgg", "fmgg", "algg"};
    if (is_html(f))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: this is an HTML page, not a model: the download gave a web page (wrong "
                       "link, or a login is needed); get the file itself",
                       f->path);
    if (starts(f, "version https://git-lfs"))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: this is a Git LFS pointer of %" PRIu64
                       " bytes, not the model: run 'git lfs pull' in its folder",
                       f->path, f->file_bytes);
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (starts(f, old[i]))
            return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                           "%s: a GGML file from before GGUF; take a GGUF file of the model",
                           f->path);
    if (starts(f, "FUGG"))
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s: a big-endian GGUF file; take the little-endian one", f->path);
    if (starts(f, "PK\x03\x04") || starts(f, "\x80\x02"))
        return FL_FAIL(
            err, FL_E_UNSUPPORTED, 0,
            "%s: a zip or PyTorch (pickle) file; take the model as .gguf or .safetensors", f->path);
    if (is_text(f))
        return FL_FAIL(
            err, FL_E_FORMAT, 0,
            "%s: this is a text file of %" PRIu64
            " bytes, not a model; expected a .gguf file or a folder with *.safetensors and "
            "config.json",
            f->path, f->file_bytes);
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: starts with bytes %02x %02x %02x %02x: neither GGUF (47 47 55 46) nor "
                   "safetensors; expected a model file, download it again",
                   f->path, f->p[0], f->p[1], f->p[2], f->p[3]);
}

static bool has_suffix(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static fl_status sniff(const char *path, fl_source_kind *kind, fl_err *err)
{
    uint8_t buf[SNIFF_BYTES] = {0};
    int fd;
    sniffed f = {path, buf, 0, 0};
    FL_TRY(fl_file_open(path, &fd, &f.file_bytes, err));
    f.n = f.file_bytes < SNIFF_BYTES ? (size_t)f.file_bytes : SNIFF_BYTES;
    const fl_status st = fl_file_read_at(fd, buf, f.n, 0, path, err);
    close(fd);
    if (st != FL_OK) return st;
    if (f.n == 0)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is empty (0 bytes), a model was expected: download it again", path);
    *kind = FL_SOURCE_GGUF;
    if (starts(&f, "GGUF") || (f.n < 8 && has_suffix(path, ".gguf"))) return FL_OK;
    *kind = FL_SOURCE_SAFETENSORS;
    if (is_safetensors(&f)) return FL_OK;
    if (has_suffix(path, ".safetensors") && !is_text(&f) && !starts(&f, "PK")) return FL_OK;
    return refuse(&f, err);
}

/* ---- files and tensors -------------------------------------------------------------------- */

static fl_status add_file(fl_source *s, const char *path, fl_err *err)
{
    const size_t n = (size_t)s->n_files + 1;
    void *a = realloc(s->path, n * sizeof *s->path);
    if (a) s->path = a;
    void *b = realloc(s->fd, n * sizeof *s->fd);
    if (b) s->fd = b;
    void *c = realloc(s->id, n * sizeof *s->id);
    if (c) s->id = c;
    void *d = realloc(s->names, n * sizeof *s->names);
    if (d) s->names = d;
    char *copy = a && b && c && d ? strdup(path) : NULL;
    if (!copy) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
    fl_status st = fl_file_open(path, &s->fd[n - 1], NULL, err);
    if (st == FL_OK) st = fl_file_identify(s->fd[n - 1], path, &s->id[n - 1], err);
    if (st != FL_OK) {
        if (s->fd[n - 1] >= 0) close(s->fd[n - 1]);
        free(copy);
        return st;
    }
    s->path[n - 1] = copy;
    s->names[n - 1] = NULL;
    s->n_files = (int)n;
    return FL_OK;
}

/* Room for n more tensors and a block for their names, name_bytes without the NULs. */
static fl_status reserve(fl_source *s, size_t n, size_t name_bytes, char **names, fl_err *err)
{
    const int f = s->n_files - 1;
    fl_tensor *t = realloc(s->tensor, (s->n_tensors + n + 1) * sizeof *t);
    if (t) s->tensor = t;
    *names = s->names[f] = malloc(name_bytes + n + 1);
    if (!t || !*names)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for %zu tensors", s->path[f], n);
    return FL_OK;
}

static char *push_name(char **names, fl_str name)
{
    char *at = *names;
    memcpy(at, name.p, name.n);
    at[name.n] = 0;
    *names += name.n + 1;
    return at;
}

static fl_status add_gguf_tensors(fl_source *s, const fl_gguf *g, fl_err *err)
{
    const size_t n = fl_gguf_n_tensors(g);
    size_t name_bytes = 0;
    char *names;
    for (size_t i = 0; i < n; i++) name_bytes += fl_gguf_tensor_at(g, i)->name.n;
    FL_TRY(reserve(s, n, name_bytes, &names, err));
    for (size_t i = 0; i < n; i++) {
        const fl_gguf_tensor *t = fl_gguf_tensor_at(g, i);
        s->tensor[s->n_tensors++] = (fl_tensor){.name = push_name(&names, t->name),
                                                .type = t->type,
                                                .n_dims = t->n_dims,
                                                .ne = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]},
                                                .file = s->n_files - 1,
                                                .offset = fl_gguf_data_start(g) + t->offset,
                                                .bytes = t->bytes};
    }
    return FL_OK;
}

static fl_status add_safetensors(fl_source *s, const fl_safetensors *f, fl_err *err)
{
    const size_t n = fl_safetensors_n(f);
    size_t name_bytes = 0;
    char *names;
    for (size_t i = 0; i < n; i++) name_bytes += fl_safetensors_at(f, i)->name.n;
    FL_TRY(reserve(s, n, name_bytes, &names, err));
    for (size_t i = 0; i < n; i++) {
        const fl_safetensor *t = fl_safetensors_at(f, i);
        s->tensor[s->n_tensors++] = (fl_tensor){.name = push_name(&names, t->name),
                                                .type = t->type,
                                                .n_dims = t->n_dims,
                                                .ne = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]},
                                                .file = s->n_files - 1,
                                                .offset = t->offset,
                                                .bytes = t->bytes};
    }
    return FL_OK;
}

/* The table of names over all files. */
static fl_status index_names(fl_source *s, fl_err *err)
{
    FL_TRY(fl_names_init(&s->by_name, s->n_tensors, err));
    for (size_t i = 0; i < s->n_tensors; i++) {
        const fl_tensor *t = &s->tensor[i];
        const int64_t was =
            fl_names_put(&s->by_name, (fl_str){t->name, strlen(t->name)}, (int64_t)i);
        if (was != FL_NAMES_NONE)
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: tensor '%.100s' is also in %s: the files do not belong together",
                           s->path[t->file], t->name, s->path[s->tensor[was].file]);
    }
    return FL_OK;
}

/* ---- GGUF --------------------------------------------------------------------------------- */

/* Adds one GGUF file; *g is its header. */
static fl_status add_gguf(fl_source *s, const char *path, fl_gguf **g, fl_err *err)
{
    FL_TRY(add_file(s, path, err));
    const int f = s->n_files - 1;
    FL_TRY(fl_gguf_open(g, s->fd[f], s->id[f].bytes, path, err));
    return add_gguf_tensors(s, *g, err);
}

/* The key of a shard, or -1; shards count from 0. */
static int64_t split_key(const fl_gguf *g, const char *key)
{
    return fl_kv_int(fl_gguf_find(g, key), -1);
}

static fl_status add_shard(fl_source *s, const char *path, int no, int of, fl_err *err)
{
    fl_gguf *g = NULL;
    if (!fl_path_exists(path))
        return FL_FAIL(
            err, FL_E_FORMAT, 0,
            "%s: is missing, the model is split into %d files; download it into the same "
            "folder or give it back its name",
            path, of);
    fl_status st = add_gguf(s, path, &g, err);
    if (st == FL_OK && (split_key(g, "split.no") != no - 1 || split_key(g, "split.count") != of))
        st = FL_FAIL(err, FL_E_FORMAT, 0,
                     "%s: says it is part %" PRId64 " of %" PRId64
                     ", its name says %d of %d: it was renamed or belongs to another download",
                     path, split_key(g, "split.no") + 1, split_key(g, "split.count"), no, of);
    if (st == FL_OK && no == 1) {
        s->gguf = g;
        g = NULL;
    }
    fl_gguf_close(&g);
    return st;
}

static fl_status open_split(fl_source *s, const char *path, const fl_gguf *g, fl_err *err)
{
    const int64_t of = split_key(g, "split.count"), no = split_key(g, "split.no") + 1;
    fl_shard_name sn;
    if (!fl_shard_name_parse(path, ".gguf", &sn) || sn.of != of || sn.no != no)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is part %" PRId64 " of %" PRId64
                       " of a split model but was renamed; give all parts their names back: "
                       "NAME-%05" PRId64 "-of-%05" PRId64 ".gguf",
                       path, no, of, no, of);
    for (int i = 1; i <= sn.of; i++) {
        char *one;
        if (asprintf(&one, "%.*s-%05d-of-%05d.gguf", (int)sn.prefix, path, i, sn.of) < 0)
            return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
        const fl_status st = add_shard(s, one, i, sn.of, err);
        free(one);
        if (st != FL_OK) return st;
    }
    const int64_t want = split_key(s->gguf, "split.tensors.count");
    if (want >= 0 && (uint64_t)want != s->n_tensors)
        return FL_FAIL(
            err, FL_E_FORMAT, 0,
            "%s: the %d parts have %zu tensors together, split.tensors.count says %" PRId64
            ": a part is from another download",
            s->path[0], sn.of, s->n_tensors, want);
    return FL_OK;
}

static fl_status open_gguf(fl_source *s, const char *path, fl_err *err)
{
    s->kind = FL_SOURCE_GGUF;
    fl_gguf *g = NULL;
    int fd;
    uint64_t bytes;
    FL_TRY(fl_file_open(path, &fd, &bytes, err));
    fl_status st = fl_gguf_open(&g, fd, bytes, path, err);
    close(fd);
    if (st == FL_OK && split_key(g, "split.count") > 1) {
        st = open_split(s, path, g, err);
    } else if (st == FL_OK) {
        st = add_file(s, path, err);
        if (st == FL_OK) st = add_gguf_tensors(s, g, err);
        s->gguf = g;
        g = NULL;
    }
    fl_gguf_close(&g);
    return st;
}

/* ---- safetensors -------------------------------------------------------------------------- */

static fl_status load_json(const char *dir, const char *name, fl_json **out, fl_err *err)
{
    char *path = NULL, *text = NULL;
    uint64_t n = 0;
    fl_status st;
    FL_GO(fl_path_join(&path, dir, name, err));
    if (!fl_path_exists(path)) goto out;
    FL_GO(fl_file_load(path, MAX_CONFIG, &text, &n, err));
    FL_GO(fl_json_parse(text, (size_t)n, path, out, err));
    if (fl_json_kind_of(*out) != FL_JSON_OBJECT)
        st = FL_FAIL(err, FL_E_FORMAT, 0, "%s: is not a JSON object: download it again", path);
out:
    free(text);
    free(path);
    return st;
}

/* Every tensor of the weight map is in the file that the map names. */
static fl_status check_weight_map(const fl_source *s, const fl_shards *sh, fl_err *err)
{
    for (size_t i = 0; i < sh->n_map; i++) {
        const fl_shard_entry *e = &sh->map[i];
        const int64_t at = fl_names_get(&s->by_name, e->tensor);
        const char *base =
            at == FL_NAMES_NONE ? NULL : strrchr(s->path[s->tensor[at].file], '/') + 1;
        if (!base || strlen(base) != e->file.n || memcmp(base, e->file.p, e->file.n) != 0)
            return FL_FAIL(
                err, FL_E_FORMAT, 0,
                "%s/model.safetensors.index.json: lists tensor '%.*s' in '%.*s', which does "
                "not hold it: a shard was renamed or is from another download",
                sh->dir, (int)(e->tensor.n < 100 ? e->tensor.n : 100), e->tensor.p,
                (int)(e->file.n < 80 ? e->file.n : 80), e->file.p);
    }
    return FL_OK;
}

static fl_status open_safetensors(fl_source *s, const char *path, bool is_folder, fl_err *err)
{
    s->kind = FL_SOURCE_SAFETENSORS;
    fl_shards sh;
    FL_TRY(fl_shards_find(&sh, path, is_folder, err));
    fl_status st = FL_OK;
    for (int i = 0; i < sh.n; i++) {
        fl_safetensors *f = NULL;
        FL_GO(add_file(s, sh.path[i], err));
        FL_GO(fl_safetensors_open(&f, s->fd[i], s->id[i].bytes, sh.path[i], err));
        st = add_safetensors(s, f, err);
        const fl_str license = fl_safetensors_license(f);
        if (license.n && !s->license && !(s->license = strndup(license.p, license.n)))
            st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", sh.path[i]);
        fl_safetensors_close(&f);
        if (st != FL_OK) goto out;
    }
    FL_GO(index_names(s, err));
    FL_GO(check_weight_map(s, &sh, err));
    FL_GO(load_json(sh.dir, "config.json", &s->config, err));
    FL_GO(load_json(sh.dir, "generation_config.json", &s->generation_config, err));
    FL_GO(fl_path_join(&s->tokenizer_path, sh.dir, "tokenizer.json", err));
    if (!fl_path_exists(s->tokenizer_path)) {
        free(s->tokenizer_path);
        s->tokenizer_path = NULL;
    }
out:
    fl_shards_fini(&sh);
    return st;
}

/* ---- open, close, read -------------------------------------------------------------------- */

fl_status fl_source_open(fl_source **out, const char *path, fl_err *err)
{
    struct stat sb;
    const bool is_folder = stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
    fl_source_kind kind = FL_SOURCE_SAFETENSORS;
    *out = NULL;
    if (!is_folder) FL_TRY(sniff(path, &kind, err));
    fl_source *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
    fl_status st;
    if (kind == FL_SOURCE_GGUF) {
        st = open_gguf(s, path, err);
        if (st == FL_OK) st = index_names(s, err);
    } else {
        st = open_safetensors(s, path, is_folder, err);
    }
    if (st != FL_OK) fl_source_close(&s);
    *out = s;
    return st;
}

void fl_source_close(fl_source **src)
{
    fl_source *s = *src;
    if (!s) return;
    for (int i = 0; i < s->n_files; i++) {
        close(s->fd[i]);
        free(s->path[i]);
        free(s->names[i]);
    }
    free(s->path);
    free(s->fd);
    free(s->id);
    free(s->names);
    free(s->tensor);
    fl_names_fini(&s->by_name);
    fl_gguf_close(&s->gguf);
    fl_json_free(&s->config);
    fl_json_free(&s->generation_config);
    free(s->tokenizer_path);
    free(s->license);
    free(s);
    *src = NULL;
}

fl_status fl_source_check(const fl_source *s, fl_err *err)
{
    for (int i = 0; i < s->n_files; i++)
        FL_TRY(fl_file_in_place(s->fd[i], s->path[i], &s->id[i], err));
    return FL_OK;
}

void fl_source_forget(const fl_source *s)
{
    for (int i = 0; i < s->n_files; i++) (void)posix_fadvise(s->fd[i], 0, 0, POSIX_FADV_DONTNEED);
}

fl_source_kind fl_source_kind_of(const fl_source *s) { return s->kind; }
int fl_source_n_files(const fl_source *s) { return s->n_files; }
const char *const *fl_source_paths(const fl_source *s) { return (const char *const *)s->path; }
int fl_source_fd(const fl_source *s, int file) { return s->fd[file]; }
uint64_t fl_source_file_bytes(const fl_source *s, int file) { return s->id[file].bytes; }
size_t fl_source_n_tensors(const fl_source *s) { return s->n_tensors; }
const fl_tensor *fl_source_tensor(const fl_source *s, size_t i) { return &s->tensor[i]; }
const fl_gguf *fl_source_gguf(const fl_source *s) { return s->gguf; }
const fl_json *fl_source_config(const fl_source *s) { return s->config; }
const fl_json *fl_source_generation_config(const fl_source *s) { return s->generation_config; }
const char *fl_source_tokenizer_path(const fl_source *s) { return s->tokenizer_path; }

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

const char *fl_source_license(const fl_source *s) { return s->license; }

bool fl_source_has_file(const fl_source *s, const char *path)
{
    static const char *const beside[] = {"config.json",
                                         "generation_config.json",
                                         "model.safetensors.index.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "preprocessor_config.json",
                                         "processor_config.json",
                                         "README.md",
                                         "LICENSE"};
    struct stat a, b;
    char name[4096];
    if (stat(path, &a) != 0) return false;
    for (int i = 0; i < s->n_files; i++)
        if (fstat(s->fd[i], &b) == 0 && same_file(&a, &b)) return true;
    if (s->kind == FL_SOURCE_GGUF) return false;
    const char *slash = strrchr(s->path[0], '/');
    const int n = slash ? (int)(slash - s->path[0]) : 1;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        const int len =
            snprintf(name, sizeof name, "%.*s/%s", n, slash ? s->path[0] : ".", beside[i]);
        if (len < (int)sizeof name && stat(name, &b) == 0 && same_file(&a, &b)) return true;
    }
    return false;
}

const fl_tensor *fl_source_find(const fl_source *s, const char *name)
{
    const int64_t i = fl_names_get(&s->by_name, (fl_str){name, strlen(name)});
    return i == FL_NAMES_NONE ? NULL : &s->tensor[i];
}

const char *fl_source_type_name(uint32_t type, char buf[32])
{
    const fl_type_info *ti = fl_type_get(type);
    const char *foreign = fl_foreign_type_name(type);
    if (ti || foreign)
        snprintf(buf, 32, "%s", ti ? ti->name : foreign);
    else
        snprintf(buf, 32, "type %u", (unsigned)type);
    return buf;
}

fl_status fl_source_read(const fl_source *s, const fl_tensor *t, uint64_t skip, void *dst,
                         uint64_t n, fl_err *err)
{
    if (skip > t->bytes || n > t->bytes - skip)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: tensor '%s' has %" PRIu64 " bytes, %" PRIu64 " at %" PRIu64
                       " were asked for",
                       s->path[t->file], t->name, t->bytes, n, skip);
    return fl_file_read_at(s->fd[t->file], dst, n, t->offset + skip, s->path[t->file], err);
}
