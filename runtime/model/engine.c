#include "runtime/model/engine.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/memory.h"
#include "runtime/device/headroom.h"

enum { DEFAULT_CHUNK = 512, MAX_CHUNK = 8192, IO_DEPTH = 32 };
static const uint64_t STALL_NS = UINT64_C(60000000000);

fl_engine_params fl_engine_defaults(void)
{
    return (fl_engine_params){
        .kv_type = FL_TYPE_F16, .ram = FL_RAM_FREE, .policy = FL_POLICY_DEFAULT};
}

/* Device memory is taken in whole pages, so a plan does not depend on what a device rounds to. */
static uint64_t whole_pages(uint64_t bytes) { return (bytes + 4095) & ~(uint64_t)4095; }

int64_t fl_engine_max_context(const fl_hparams *hp)
{
    return hp->n_ctx_train > 0 && hp->n_ctx_train < FL_MAX_CONTEXT ? hp->n_ctx_train
                                                                   : FL_MAX_CONTEXT;
}

static fl_status resolve_context(fl_engine_params *p, const fl_hparams *hp, fl_err *err)
{
    const int64_t limit = fl_engine_max_context(hp);
    if (p->n_ctx < 0 || p->n_ctx > limit)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--ctx %lld: this model takes 1 to %lld tokens, prompt and output together",
                       (long long)p->n_ctx, (long long)limit);
    if (p->n_ctx == 0) p->n_ctx = limit < FL_DEFAULT_CONTEXT ? limit : FL_DEFAULT_CONTEXT;
    return FL_OK;
}

static fl_status check_kv(const fl_engine_params *p, const fl_hparams *hp, fl_err *err)
{
    const bool q8_0 = p->kv_type == FL_TYPE_Q8_0;
    if (!q8_0 && p->kv_type != FL_TYPE_F16 && p->kv_type != FL_TYPE_F32)
        return FL_FAIL(err, FL_E_ARG, 0, "--kv: expected f16, q8_0 or f32");
    if (q8_0 && hp->head_dim % 32 != 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--kv q8_0: this model's heads of %d values are no multiple of 32; take f16",
                       hp->head_dim);
    return FL_OK;
}

static fl_status resolve(fl_engine_params *p, const fl_index *ix, fl_err *err)
{
    FL_TRY(resolve_context(p, &ix->hp, err));
    if (p->chunk == 0) p->chunk = DEFAULT_CHUNK;
    if (p->chunk < 1 || p->chunk > MAX_CHUNK)
        return FL_FAIL(err, FL_E_ARG, 0, "--chunk %lld: expected 1 to %d rows", (long long)p->chunk,
                       MAX_CHUNK);
    if (p->chunk > p->n_ctx) p->chunk = p->n_ctx;
    if (p->block_size == 0) p->block_size = ix->clover.block_size > 0 ? ix->clover.block_size : 32;
    if (p->block_size < 1 || p->block_size > FL_MAX_BLOCK)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0, "block size %d: expected 1 to %d rows",
                       p->block_size, FL_MAX_BLOCK);
    if (p->held_rows < 0 || p->held_rows > p->block_size)
        return FL_FAIL(err, FL_E_ARG, 0, "held passes of %d rows: expected 0 to %d", p->held_rows,
                       p->block_size);
    if (p->mtp && ix->hp.n_mtp == 0)
        return FL_FAIL(err, FL_E_ARG, 0, "the file has no MTP block to draft with");
    if (p->mtp && p->held_rows < 2)
        return FL_FAIL(err, FL_E_ARG, 0, "drafts of the MTP block need held passes to check them");
    return check_kv(p, &ix->hp, err);
}

static fl_buffers_shape buffers_shape(const fl_engine *e)
{
    const fl_engine_params *p = &e->params;
    const fl_hparams *hp = &e->model->index->hp;
    fl_buffers_shape s = {.max_rows = p->chunk > 2 * p->block_size ? p->chunk : 2 * p->block_size,
                          .max_block = p->block_size,
                          .n_threads = fl_pool_threads(e->exec.pool),
                          .mtp = p->mtp};
    for (int i = 0; i < e->experts.n && !s.float_experts; i++)
        for (int part = 0; part < 2; part++)
            if (!fl_exec_uses_law(&e->exec, e->experts.kind[i].type[part], hp->d_model))
                s.float_experts = true;
    return s;
}

static uint64_t source_bytes(const fl_source *src)
{
    uint64_t n = 0;
    for (int i = 0; i < fl_source_n_files(src); i++) n += fl_source_file_bytes(src, i);
    return n;
}

static fl_state_shape state_shape(const fl_engine *e)
{
    return (fl_state_shape){.n_ctx = e->params.n_ctx,
                            .kv_type = e->params.kv_type,
                            .held_rows = e->params.held_rows,
                            .mtp = e->params.mtp};
}

/* The plan's items, in the order of fl_engine.mem. */
enum { ITEM_WEIGHTS, ITEM_KV, ITEM_GDN, ITEM_BUFFERS, ITEM_HELD, ITEM_MTP, N_ITEMS };

/* Layers that have experts. */
static int expert_layers(const fl_engine *e) { return e->model->index->hp.n_layer + e->params.mtp; }

/* What may be taken of main memory beside `taken`. */
static uint64_t free_ram(uint64_t taken)
{
    const uint64_t most = fl_memory_to_take(fl_memory_available(), FL_MEMORY_MAIN, false);
    return most > taken ? most - taken : 0;
}

static fl_status make_plan(fl_engine *e, fl_err *err)
{
    const fl_index *ix = e->model->index;
    const fl_buffers_shape buffers = buffers_shape(e);
    const fl_state_shape shape = state_shape(e);
    const fl_state_sizes state = fl_state_measure(ix, &shape);
    fl_plan_input in = {.device_cap = fl_device_budget(e->dev)->cap,
                        .cap_asked = e->params.vram > 0,
                        .less = e->params.less,
                        .n_items = e->params.mtp    ? N_ITEMS
                                   : state.held > 0 ? ITEM_MTP
                                                    : ITEM_HELD,
                        .n_layer = expert_layers(e),
                        .pin_layers = e->params.gpu_layers,
                        .pin_experts = e->params.gpu_experts,
                        .last_is_mtp = e->params.mtp,
                        .n_expert = ix->hp.n_expert,
                        .top_k = ix->hp.top_k,
                        .host_asked = e->params.ram != FL_RAM_FREE,
                        .host_is_device = strcmp(fl_device_kind(e->dev), "host") == 0,
                        .expert_bytes = e->experts.bytes,
                        .host_bytes = e->experts.host_bytes,
                        .heat = e->routing.profile ? fl_profile_heat(e->routing.profile) : NULL,
                        .file_bytes = source_bytes(ix->src)};
    in.item[ITEM_WEIGHTS] = (fl_plan_item){"dense weights", whole_pages(fl_weights_bytes(ix))};
    in.item[ITEM_KV] = (fl_plan_item){"KV cache", whole_pages(state.kv)};
    in.item[ITEM_GDN] = (fl_plan_item){"GDN state", whole_pages(state.gdn)};
    in.item[ITEM_BUFFERS] =
        (fl_plan_item){"pass buffers", whole_pages(fl_buffers_bytes(ix, &buffers))};
    in.item[ITEM_HELD] = (fl_plan_item){"rows under verification", whole_pages(state.held)};
    if (e->params.mtp)
        in.item[ITEM_MTP] =
            (fl_plan_item){"MTP block, dense part", whole_pages(fl_weights_mtp_bytes(ix))};
    int n_copies = 0;
    FL_TRY(fl_state_fit_copies(state.gdn, e->params.state_budget, e->params.n_ctx, &in.copy_bytes,
                               &n_copies, err));
    in.n_copies = (uint64_t)n_copies;
    const uint64_t free = free_ram(in.n_copies * in.copy_bytes);
    in.host_cap = in.host_asked ? e->params.ram : free;
    /* The host device's memory is everybody's. */
    if (!e->params.vram && in.host_is_device && in.device_cap > free) in.device_cap = free;
    e->plan_input = in;
    return fl_plan_make(&in, &e->plan, err);
}

fl_status fl_engine_open(fl_engine **out, const fl_model *model, const fl_engine_params *params,
                         fl_err *err)
{
    fl_status st = FL_OK;
    fl_engine *e = calloc(1, sizeof(*e));
    if (!e) return FL_FAIL(err, FL_E_NOMEM, 0, "engine: out of memory");
    e->model = model;
    e->params = *params;
    e->routing.block_at = -1;
    FL_GO(resolve(&e->params, model->index, err));
    if (!fl_kernels_init(&e->exec.k, params->cpu_tier))
        FL_GO(FL_FAIL(err, FL_E_UNSUPPORTED, 0, "--cpu %s: no such tier in this build or machine",
                      params->cpu_tier));
    e->exec.act_f32 = params->act_f32;
    FL_GO(fl_pool_create(&e->exec.pool, params->threads, err));
    const fl_device_config cfg = {.kind = params->device ? params->device : "host",
                                  .memory_cap = params->vram,
                                  .link_bytes_s = params->link_bytes_s};
    FL_GO(fl_device_open(&e->dev, &cfg, err));
    FL_GO(fl_experts_describe(&e->experts, model->index, expert_layers(e), err));
    if (params->script) FL_GO(fl_routing_open_script(&e->routing, model, params->script, err));
    if (params->profile) FL_GO(fl_routing_open_profile(&e->routing, model, params->profile, err));
    FL_GO(make_plan(e, err));
    *out = e;
    return FL_OK;
out:
    fl_engine_close(&e);
    return st;
}

/* Weights and experts report one sum. */
typedef struct load_progress {
    void (*report)(void *arg, uint64_t done, uint64_t total); /* or NULL */
    void *arg;
    uint64_t before, total;
} load_progress;

static void report_part(void *arg, uint64_t done, uint64_t part)
{
    const load_progress *p = arg;
    (void)part;
    if (p->report) p->report(p->arg, p->before + done, p->total);
}

static uint64_t dense_bytes(const fl_engine *e)
{
    const fl_index *ix = e->model->index;
    return fl_weights_bytes(ix) + (e->params.mtp ? fl_weights_mtp_bytes(ix) : 0);
}

fl_status fl_engine_load(fl_engine *e, void (*progress)(void *arg, uint64_t done, uint64_t total),
                         void *progress_arg, fl_err *err)
{
    const fl_index *ix = e->model->index;
    const fl_source *src = ix->src;
    const fl_plan_input *plan = &e->plan.in;
    const fl_buffers_shape buffers = buffers_shape(e);
    const fl_state_shape shape = state_shape(e);
    load_progress p = {.report = progress, .arg = progress_arg};

    if (e->params.trace)
        FL_TRY(fl_routing_open_trace(&e->routing, e->model, e->params.trace, e->params.block_size,
                                     (int)buffers.max_rows, err));

    FL_TRY(fl_io_open(&e->io, e->params.io, fl_source_paths(src), fl_source_n_files(src), IO_DEPTH,
                      err));
    const uint64_t limit_ns = e->params.stall_ns ? e->params.stall_ns : STALL_NS;
    fl_io_set_limit(e->io, limit_ns);
    if (e->plan.n_host) {
        FL_TRY(fl_io_open(&e->host_io, e->params.io, fl_source_paths(src), fl_source_n_files(src),
                          IO_DEPTH, err));
        fl_io_set_limit(e->host_io, limit_ns);
    }
    FL_TRY(fl_source_check(src, err)); /* the io has opened the files that were indexed */
    for (int i = 0; i < plan->n_items; i++)
        if (plan->item[i].bytes > 0)
            FL_TRY(
                fl_device_alloc(e->dev, plan->item[i].bytes, plan->item[i].name, &e->mem[i], err));
    p.total = dense_bytes(e) + e->plan.resident_bytes;
    FL_TRY(fl_weights_load(&e->weights, ix, e->dev, e->io, e->mem[ITEM_WEIGHTS], e->mem[ITEM_MTP],
                           report_part, &p, err));
    FL_TRY(fl_state_init(&e->state, ix, &shape, e->mem[ITEM_KV], e->mem[ITEM_GDN],
                         e->mem[ITEM_HELD], err));
    fl_buffers_init(&e->buf, ix, &buffers, e->mem[ITEM_BUFFERS]);
    p.before = dense_bytes(e);
    report_part(&p, 0, 0);
    const fl_store_config c = {.dev = e->dev,
                               .io = e->io,
                               .host_io = e->host_io,
                               .plan = &e->plan,
                               .place = e->experts.place,
                               .lanes = e->params.lanes,
                               .policy = e->params.policy,
                               .heat = e->plan_input.heat,
                               .no_prefetch = e->params.no_prefetch,
                               .progress = report_part,
                               .progress_arg = &p};
    FL_TRY(fl_store_create(&e->store, &c, err));
    fl_device_set_limit(e->dev, limit_ns);
    fl_source_forget(src);
    return FL_OK;
}

fl_status fl_engine_check_files(const fl_engine *e, fl_err *err)
{
    return fl_store_n_slots(e->store) > 0 ? fl_source_check(e->model->src, err) : FL_OK;
}

void fl_engine_describe(const fl_engine *e, fl_text *out)
{
    fl_text_printf(out, "the request waits for experts; %d threads of the pool are idle\n",
                   fl_pool_threads(e->exec.pool));
    fl_text_printf(out, "%llu copies to the device are queued\n",
                   (unsigned long long)fl_device_copies_queued(e->dev));
    if (e->store) fl_store_describe(e->store, out);
    if (e->io) fl_io_describe(e->io, out);
    if (e->host_io) fl_io_describe(e->host_io, out);
}

void fl_engine_close(fl_engine **engine)
{
    fl_engine *e = *engine;
    if (!e) return;
    fl_store_destroy(&e->store);
    fl_state_fini(&e->state);
    fl_weights_free(&e->weights);
    for (int i = N_ITEMS - 1; i >= 0; i--)
        if (e->mem[i]) fl_device_free(e->dev, &e->mem[i]);
    fl_io_close(&e->host_io);
    fl_io_close(&e->io);
    fl_plan_free(&e->plan);
    fl_routing_fini(&e->routing);
    fl_experts_free(&e->experts);
    fl_device_close(&e->dev);
    fl_pool_destroy(&e->exec.pool);
    free(e);
    *engine = NULL;
}
