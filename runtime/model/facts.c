#include "runtime/model/facts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/identity.h"

enum { SCHEMA = 1, MAX_BYTES = 4 << 20, ID_CHARS = 16 };

struct fl_facts {
    char id[ID_CHARS + 1];
    char *folder, *path; /* NULL: no home */
    fl_json *all;        /* an object, or NULL: nothing known */
    char *note;
};

/* ---- where -------------------------------------------------------------------------------- */

/* A relative XDG_CACHE_HOME is to be ignored, says its specification. */
static fl_status find_place(fl_facts *f, fl_err *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool given = cache && *cache == '/';
    if (!given && !(home && *home == '/')) return FL_OK;
    if (asprintf(&f->folder, "%s%s/fourleaf", given ? cache : home, given ? "" : "/.cache") < 0)
        f->folder = NULL;
    else if (asprintf(&f->path, "%s/%s.json", f->folder, f->id) < 0)
        f->path = NULL;
    if (!f->path) return FL_FAIL(err, FL_E_NOMEM, 0, "stored facts on the model: no memory");
    return FL_OK;
}

/* The folder and those above it, for the user alone, as the specification wants it. */
static fl_status make_folders(const fl_facts *f, fl_err *err)
{
    for (char *p = f->folder + 1;; p++) {
        const char c = *p;
        if (c && c != '/') continue;
        *p = 0;
        const bool there = mkdir(f->folder, 0700) == 0 || errno == EEXIST;
        const int e = errno;
        const fl_status st =
            there ? FL_OK
                  : FL_FAIL(err, FL_E_IO, e, "%s: cannot be created: %s", f->folder, strerror(e));
        *p = c;
        if (st != FL_OK || !c) return st;
    }
}

/* ---- reading ------------------------------------------------------------------------------ */

static fl_status check(const fl_facts *f, const fl_json *j, fl_err *err)
{
    const int64_t schema = fl_json_int(fl_json_get(j, "schema"), -1);
    if (schema != SCHEMA)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: schema %" PRId64 ", expected %d", f->path, schema,
                       SCHEMA);
    const char *id = fl_json_str(fl_json_get(j, "identity"), "");
    if (strcmp(id, f->id) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is about model '%s'", f->path, id);
    return FL_OK;
}

/* *out: the file's object, NULL when there is no file. */
static fl_status read_file(const fl_facts *f, fl_json **out, fl_err *err)
{
    char *text = NULL;
    uint64_t n = 0;
    *out = NULL;
    if (!f->path || access(f->path, F_OK) != 0) return FL_OK;
    FL_TRY(fl_file_load(f->path, MAX_BYTES, &text, &n, err));
    fl_status st = fl_json_parse(text, (size_t)n, f->path, out, err);
    free(text);
    if (st == FL_OK) st = check(f, *out, err);
    if (st != FL_OK) fl_json_free(out);
    return st;
}

fl_status fl_facts_open(fl_facts **out, uint64_t identity, fl_err *err)
{
    fl_facts *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return FL_FAIL(err, FL_E_NOMEM, 0, "stored facts on the model: no memory");
    snprintf(f->id, sizeof f->id, "%016" PRIx64, identity);
    fl_err why = {0};
    fl_status st = find_place(f, err);
    if (st == FL_OK && read_file(f, &f->all, &why) != FL_OK &&
        asprintf(&f->note, "%s; it is not used, fourleaf calibrate or probe writes it anew",
                 why.msg) < 0) {
        f->note = NULL;
        st = FL_FAIL(err, FL_E_NOMEM, 0, "stored facts on the model: no memory");
    }
    if (st != FL_OK) fl_facts_close(&f);
    *out = f;
    return st;
}

fl_status fl_facts_of(fl_facts **out, const fl_source *src, fl_err *err)
{
    uint64_t identity = 0;
    *out = NULL;
    FL_TRY(fl_model_identity(src, &identity, err));
    return fl_facts_open(out, identity, err);
}

void fl_facts_close(fl_facts **facts)
{
    fl_facts *f = *facts;
    if (!f) return;
    free(f->folder);
    free(f->path);
    fl_json_free(&f->all);
    free(f->note);
    free(f);
    *facts = NULL;
}

const char *fl_facts_note(const fl_facts *f) { return f->note; }

const char *fl_facts_path(const fl_facts *f) { return f->path; }

fl_status fl_facts_sibling(const fl_facts *f, const char *kind, char **out, fl_err *err)
{
    *out = NULL;
    if (!f->folder || asprintf(out, "%s/%s.%s", f->folder, f->id, kind) >= 0) return FL_OK;
    *out = NULL;
    return FL_FAIL(err, FL_E_NOMEM, 0, "stored facts on the model: no memory");
}

const fl_json *fl_facts_section(const fl_facts *f, const char *name)
{
    const fl_json *s = fl_json_get(f->all, name);
    return fl_json_kind_of(s) == FL_JSON_OBJECT ? s : NULL;
}

/* ---- writing ------------------------------------------------------------------------------ */

static fl_json *new_file(const fl_facts *f)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "schema", SCHEMA);
    fl_json_set_str(j, "identity", f->id);
    return j;
}

static fl_status write_file(const fl_facts *f, const fl_json *all, fl_err *err)
{
    fl_outfile *o = NULL;
    fl_status st = FL_OK;
    char *text = fl_json_dump(all, 1);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to write it", f->path);
    FL_GO(fl_outfile_open(&o, f->path, err));
    FL_GO(fl_outfile_write(o, text, strlen(text), err));
    FL_GO(fl_outfile_write(o, "\n", 1, err));
    st = fl_outfile_commit(&o, err);
out:
    fl_outfile_discard(&o);
    free(text);
    return st;
}

fl_status fl_facts_writable(const fl_facts *f, fl_err *err)
{
    if (!f->path)
        return FL_FAIL(err, FL_E_IO, 0,
                       "no place to store facts on the model: set XDG_CACHE_HOME or HOME to the "
                       "full path of a folder");
    FL_TRY(make_folders(f, err));
    if (access(f->folder, W_OK | X_OK) == 0) return FL_OK;
    return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be written to: %s", f->folder, strerror(errno));
}

fl_status fl_facts_put(fl_facts *f, const char *section, fl_json *value, fl_err *err)
{
    fl_json *now = NULL;
    fl_status st = fl_facts_writable(f, err);
    if (st != FL_OK) {
        fl_json_free(&value);
        return st;
    }
    if (read_file(f, &now, NULL) != FL_OK || !now) now = new_file(f);
    fl_json_set(now, section, value);
    st = write_file(f, now, err);
    if (st == FL_OK) {
        fl_json_free(&f->all);
        f->all = now;
        now = NULL;
        free(f->note);
        f->note = NULL;
    }
    fl_json_free(&now);
    return st;
}
