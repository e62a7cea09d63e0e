#include "offload/plan_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static double mib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024.0); }
static uint64_t whole_mib(uint64_t bytes) { return (bytes >> 20) + ((bytes & 0xfffff) != 0); }

static fl_plan_run describe(const fl_plan *p, int layer)
{
    fl_plan_run r = {.first = layer, .last = layer};
    for (int e = 0; e < p->in.n_expert; e++) {
        const size_t i = (size_t)layer * (size_t)p->in.n_expert + (size_t)e;
        const uint64_t b = p->in.expert_bytes[i];
        if (!b) continue;
        r.experts++;
        r.resident += p->tier[i] == FL_TIER_DEVICE;
        r.host += p->tier[i] == FL_TIER_HOST;
        if (b > r.expert_bytes) r.expert_bytes = b;
    }
    return r;
}

bool fl_plan_next_run(const fl_plan *p, int *layer, fl_plan_run *run)
{
    if (*layer >= p->in.n_layer) return false;
    *run = describe(p, (*layer)++);
    for (; *layer < p->in.n_layer - p->in.last_is_mtp; run->last = (*layer)++) {
        const fl_plan_run r = describe(p, *layer);
        if (r.experts != run->experts || r.resident != run->resident || r.host != run->host ||
            r.expert_bytes != run->expert_bytes)
            break;
    }
    return true;
}

static uint64_t streaming_bytes(const fl_plan *p) { return p->expert_bytes - p->resident_bytes; }
static int n_file(const fl_plan *p) { return p->n_total - p->n_resident - p->n_host; }

/* Bytes of the experts of one tier, as they lie in the file's parts. */
static uint64_t tier_bytes(const fl_plan *p, fl_tier tier)
{
    uint64_t n = 0;
    for (int i = 0; i < p->in.n_layer * p->in.n_expert; i++)
        if (p->tier[i] == tier) n += p->in.expert_bytes[i];
    return n;
}

static void print_tokens_need(FILE *f, const fl_plan *p)
{
    if (p->n_slots < p->in.top_k && p->n_slots < p->n_total - p->n_resident)
        fprintf(
            f,
            " A token's %d experts come in parts, %d at a time; from --vram %" PRIu64
            "M on they fit at once.",
            p->in.top_k, p->n_slots,
            whole_mib(p->fixed_bytes + p->pinned_bytes + (uint64_t)p->in.top_k * p->largest_bytes));
}

/* What the user pinned, in both directions: such options are easily read the wrong way round. */
static void print_pins(FILE *f, const fl_plan *p)
{
    const int layers = p->in.n_layer < p->in.pin_layers ? p->in.n_layer : p->in.pin_layers;
    const int experts = p->in.n_expert < p->in.pin_experts ? p->in.n_expert : p->in.pin_experts;
    if (layers > 0)
        fprintf(f,
                "--gpu-layers keeps all experts of %d layer%s in device memory; those of the other "
                "%d layer%s are not pinned.\n",
                layers, layers == 1 ? "" : "s", p->in.n_layer - layers,
                p->in.n_layer - layers == 1 ? "" : "s");
    if (experts > 0 && layers < p->in.n_layer)
        fprintf(f,
                "--gpu-experts keeps %d expert%s of each layer in device memory; the other %d of "
                "each are not pinned.\n",
                experts, experts == 1 ? "" : "s", p->in.n_expert - experts);
}

/* Why the experts lie where they do. */
static void print_reason(FILE *f, const fl_plan *p)
{
    const int streaming = p->n_total - p->n_resident;
    if (!p->n_total) {
        fprintf(f, "The model has no experts; all of it is in device memory.");
        return;
    }
    if (!streaming) {
        fprintf(f,
                "All %d experts fit: they stay in device memory and nothing is read from the file "
                "while it runs.",
                p->n_total);
        return;
    }
    fprintf(f, "%d of %d experts (%.1f %%) fit beside the fixed parts; ", p->n_resident, p->n_total,
            100.0 * p->n_resident / p->n_total);
    if (!p->n_host)
        fprintf(f, "the other %d are read from the file when they are wanted.", streaming);
    else if (!n_file(p))
        fprintf(f,
                "the other %d stay in host memory and nothing is read from the file while it runs.",
                streaming);
    else
        fprintf(f,
                "%d of the others stay in host memory, %d are read from the file when they are "
                "wanted. --ram %" PRIu64 "M would keep all of them.",
                p->n_host, n_file(p), whole_mib(p->full_host_cap));
    fprintf(f, " --vram %" PRIu64 "M would hold everything.", whole_mib(p->full_device_cap));
    print_tokens_need(f, p);
}

static void print_row(FILE *f, const char *name, uint64_t bytes)
{
    fprintf(f, "  %-28s %12.1f MiB", name, mib(bytes));
}

static bool is_mtp(const fl_plan *p, const fl_plan_run *r)
{
    return p->in.last_is_mtp && r->first == p->in.n_layer - 1;
}

static void print_layers(FILE *f, const fl_plan *p)
{
    fl_plan_run r;
    for (int layer = 0; fl_plan_next_run(p, &layer, &r);) {
        char name[48];
        if (!r.experts) continue;
        if (is_mtp(p, &r))
            snprintf(name, sizeof name, "  MTP block");
        else if (r.first == r.last)
            snprintf(name, sizeof name, "  layer %d", r.first);
        else
            snprintf(name, sizeof name, "  layers %d to %d", r.first, r.last);
        fprintf(f, "  %-28s %5d of %d experts of %.2f MiB", name, r.resident, r.experts,
                mib(r.expert_bytes));
        if (r.host) fprintf(f, ", %d in host memory", r.host);
        fprintf(f, "\n");
    }
}

static void print_host(FILE *f, const fl_plan *p)
{
    if (p->n_stages || p->in.n_copies) fprintf(f, "Host memory\n");
    if (p->n_stages) {
        print_row(f, "staging for reads", p->staging_bytes);
        fprintf(f, "  %d of %.2f MiB\n", p->n_stages, mib(p->stage_bytes));
    }
    if (p->n_host) {
        print_row(f, "experts", p->arena_bytes);
        fprintf(f, "  %d of %d\n", p->n_host, p->n_total);
    }
    if (p->in.n_copies) {
        print_row(f, "checkpoints, at most", p->in.n_copies * p->in.copy_bytes);
        fprintf(f, "  %" PRIu64 " of %.2f MiB\n", p->in.n_copies, mib(p->in.copy_bytes));
    }
}

static void print_table(FILE *f, const fl_plan *p)
{
    const bool capped = p->in.device_cap != UINT64_MAX;
    fprintf(f, "Device memory\n");
    for (int i = 0; i < p->in.n_items; i++) {
        print_row(f, p->in.item[i].name, p->in.item[i].bytes);
        fprintf(f, "\n");
    }
    if (p->n_total) {
        print_row(f, "resident experts", p->resident_bytes);
        fprintf(f, "  %d of %d\n", p->n_resident, p->n_total);
        print_layers(f, p);
    }
    if (p->n_slots) print_row(f, "streaming slots", p->slots_bytes);
    for (int c = 0; c < p->n_classes; c++)
        fprintf(f, "%s%d of %.2f MiB%s", c ? ", " : "  ", p->slot_class[c].count,
                mib(p->slot_class[c].bytes), c + 1 < p->n_classes ? "" : "\n");
    print_row(f, "total", p->device_bytes);
    if (capped)
        fprintf(f, "  of %.1f MiB, %.1f MiB stay free", mib(p->in.device_cap),
                mib(p->in.device_cap - p->device_bytes));
    fprintf(f, "\n");
    print_host(f, p);
    fprintf(f, "File\n");
    if (p->n_total) {
        print_row(f, "experts that stay there", tier_bytes(p, FL_TIER_FILE));
        fprintf(f, "  %d of %d\n", n_file(p), p->n_total);
    }
    print_row(f, "whole model", p->in.file_bytes);
    fprintf(f, "\n");
}

static char *printed(const fl_plan *p, void (*print)(FILE *f, const fl_plan *p))
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    print(f, p);
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

static void print_all(FILE *f, const fl_plan *p)
{
    print_table(f, p);
    print_reason(f, p);
    fprintf(f, "\n");
    print_pins(f, p);
}

char *fl_plan_text(const fl_plan *p) { return printed(p, print_all); }

/* ---- JSON ---- */

static void set_bytes(fl_json *o, const char *key, uint64_t v)
{
    fl_json_set_int(o, key, (int64_t)v);
}

/* `shown` false: null, there is no cap. */
static void set_or_null(fl_json *o, const char *key, bool shown, uint64_t v)
{
    if (shown)
        set_bytes(o, key, v);
    else
        fl_json_set(o, key, fl_json_new_null());
}

static fl_json *device_json(const fl_plan *p)
{
    const bool capped = p->in.device_cap != UINT64_MAX;
    fl_json *d = fl_json_new_object(), *items = fl_json_new_array(), *slots = fl_json_new_array();
    set_or_null(d, "cap", capped, p->in.device_cap);
    set_bytes(d, "bytes", p->device_bytes);
    set_or_null(d, "free", capped, p->in.device_cap - p->device_bytes);
    set_bytes(d, "fixed_bytes", p->fixed_bytes);
    for (int i = 0; i < p->in.n_items; i++) {
        fl_json *item = fl_json_new_object();
        fl_json_set_str(item, "name", p->in.item[i].name);
        set_bytes(item, "bytes", p->in.item[i].bytes);
        fl_json_append(items, item);
    }
    fl_json_set(d, "items", items);
    set_bytes(d, "resident_bytes", p->resident_bytes);
    for (int c = 0; c < p->n_classes; c++) {
        fl_json *class = fl_json_new_object();
        fl_json_set_int(class, "count", p->slot_class[c].count);
        set_bytes(class, "bytes", p->slot_class[c].bytes);
        fl_json_append(slots, class);
    }
    fl_json_set(d, "slots", slots);
    return d;
}

static fl_json *experts_json(const fl_plan *p)
{
    fl_json *x = fl_json_new_object(), *layers = fl_json_new_array();
    fl_json_set_int(x, "total", p->n_total);
    fl_json_set_int(x, "resident", p->n_resident);
    fl_json_set_int(x, "host", p->n_host);
    fl_json_set_int(x, "file", n_file(p));
    set_bytes(x, "bytes", p->expert_bytes);
    set_bytes(x, "streaming_bytes", streaming_bytes(p));
    fl_json_set_int(x, "pinned", p->n_pinned);
    set_bytes(x, "pinned_bytes", p->pinned_bytes);
    fl_plan_run r;
    for (int layer = 0; fl_plan_next_run(p, &layer, &r);) {
        fl_json *l = fl_json_new_object();
        fl_json_set_int(l, "first", r.first);
        fl_json_set_int(l, "last", r.last);
        if (is_mtp(p, &r)) fl_json_set_bool(l, "mtp", true);
        fl_json_set_int(l, "experts", r.experts);
        fl_json_set_int(l, "resident", r.resident);
        fl_json_set_int(l, "host", r.host);
        set_bytes(l, "expert_bytes", r.expert_bytes);
        fl_json_append(layers, l);
    }
    fl_json_set(x, "layers", layers);
    return x;
}

fl_json *fl_plan_json(const fl_plan *p)
{
    fl_json *j = fl_json_new_object(), *host = fl_json_new_object();
    fl_json_set(j, "device", device_json(p));
    fl_json_set(j, "experts", experts_json(p));
    set_bytes(host, "bytes", p->host_bytes);
    set_bytes(host, "staging_bytes", p->staging_bytes);
    set_bytes(host, "arena_bytes", p->arena_bytes);
    set_bytes(host, "checkpoint_bytes", p->in.n_copies * p->in.copy_bytes);
    fl_json_set_int(host, "n_checkpoints", (int64_t)p->in.n_copies);
    fl_json_set(j, "host", host);
    set_bytes(j, "file_bytes", p->in.file_bytes);
    set_bytes(j, "min_device_cap", p->min_device_cap);
    set_bytes(j, "full_device_cap", p->full_device_cap);
    set_bytes(j, "full_host_cap", p->full_host_cap);
    char *reason = printed(p, print_reason);
    fl_json_set_str(j, "reason", reason ? reason : "");
    free(reason);
    return j;
}
