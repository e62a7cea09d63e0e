#include "offload/rates.h"

#include <string.h>

/* The single numbers, in the order of the struct. */
enum { N_NUMBERS = 6 };
static const char *const number_name[N_NUMBERS] = {"link_bytes_s",  "link_pageable_bytes_s",
                                                   "link_start_ns", "device_bytes_s",
                                                   "file_bytes_s",  "host_bytes_s"};

static uint64_t *number_at(fl_rates *r, int i)
{
    uint64_t *const at[N_NUMBERS] = {&r->link_bytes_s,  &r->link_pageable_bytes_s,
                                     &r->link_start_ns, &r->device_bytes_s,
                                     &r->file_bytes_s,  &r->host_bytes_s};
    return at[i];
}

/* The arrays by rows; "rows" itself comes first. */
enum { N_LISTS = 3 };
static const char *const list_name[N_LISTS] = {"rows", "cpu_expert_ns", "dense_pass_ns"};

static uint64_t get(const fl_rates *r, int list, int i)
{
    return list == 0 ? (uint64_t)r->rows[i] : list == 1 ? r->cpu_expert_ns[i] : r->dense_pass_ns[i];
}

static void put(fl_rates *r, int list, int i, uint64_t v)
{
    if (list == 0)
        r->rows[i] = (int)v;
    else if (list == 1)
        r->cpu_expert_ns[i] = v;
    else
        r->dense_pass_ns[i] = v;
}

fl_json *fl_rates_to_json(const fl_rates *r)
{
    fl_rates own = *r;
    fl_json *j = fl_json_new_object();
    if (!j) return NULL;
    for (int i = 0; i < N_NUMBERS; i++)
        fl_json_set_int(j, number_name[i], (int64_t)*number_at(&own, i));
    for (int list = 0; list < N_LISTS; list++) {
        fl_json *a = fl_json_new_array();
        for (int i = 0; i < r->n_rows; i++)
            fl_json_append(a, fl_json_new_int((int64_t)get(r, list, i)));
        fl_json_set(j, list_name[list], a);
    }
    return j;
}

static int find(const char *const *names, int n, const char *key)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], key) == 0) return i;
    return -1;
}

static fl_status whole(const fl_json *v, const char *what, const char *key, int64_t least,
                       int64_t most, uint64_t *out, fl_err *err)
{
    const int64_t x = fl_json_int(v, -1);
    if (fl_json_kind_of(v) != FL_JSON_INT || x < least || x > most)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: \"%s\": expected a whole number from %lld on",
                       what, key, (long long)least);
    *out = (uint64_t)x;
    return FL_OK;
}

static fl_status read_list(fl_rates *r, int list, const fl_json *a, const char *what, fl_err *err)
{
    const char *key = list_name[list];
    if (fl_json_kind_of(a) != FL_JSON_ARRAY || fl_json_size(a) > FL_RATES_MAX_ROWS)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: \"%s\": expected an array of at most %d numbers",
                       what, key, FL_RATES_MAX_ROWS);
    for (int i = 0; i < (int)fl_json_size(a); i++) {
        uint64_t v = 0;
        const int64_t least = list ? 0 : i ? r->rows[i - 1] + 1 : 1;
        FL_TRY(whole(fl_json_at(a, (size_t)i), what, key, least, list ? INT64_MAX : INT32_MAX, &v,
                     err));
        put(r, list, i, v);
    }
    return FL_OK;
}

static fl_status read_all(fl_rates *r, const fl_json *j, const char *what, fl_err *err)
{
    void *iter = NULL;
    const char *key;
    const fl_json *value;
    if (fl_json_kind_of(j) != FL_JSON_OBJECT)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: rates: expected an object", what);
    const size_t n_rows = fl_json_size(fl_json_get(j, list_name[0]));
    while (fl_json_next(j, &iter, &key, &value)) {
        const int number = find(number_name, N_NUMBERS, key), list = find(list_name, N_LISTS, key);
        if (number < 0 && list < 0)
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: rates have no \"%s\"", what, key);
        if (number >= 0) {
            FL_TRY(whole(value, what, key, 0, INT64_MAX, number_at(r, number), err));
            continue;
        }
        FL_TRY(read_list(r, list, value, what, err));
        if (fl_json_size(value) != n_rows)
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: \"%s\" has %zu numbers, \"rows\" %zu", what,
                           key, fl_json_size(value), n_rows);
    }
    r->n_rows = (int)n_rows;
    return FL_OK;
}

fl_status fl_rates_from_json(fl_rates *out, const fl_json *j, const char *what, fl_err *err)
{
    *out = (fl_rates){0};
    const fl_status st = read_all(out, j, what, err);
    if (st != FL_OK) *out = (fl_rates){0};
    return st;
}
