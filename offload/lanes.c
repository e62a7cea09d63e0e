#include "offload/lanes.h"

uint64_t fl_lane_work(uint64_t bytes, int32_t rows)
{
    return bytes + bytes / 8 * (uint64_t)(rows > 1 ? rows - 1 : 0);
}

static uint64_t at_rate(uint64_t amount, uint64_t per_s)
{
    return (uint64_t)((double)amount * 1e9 / (double)per_s);
}

/* Indices by falling rows; of equal rows the lower one first. */
static void sort(const fl_lane_item *item, int n, int32_t *order)
{
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && item[order[at - 1]].rows < item[i].rows; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

/* From both ends of the order: the device takes from its head, the CPU from its tail. */
static void balance(const fl_lanes *l, fl_lane_item *item, int n, uint64_t queued,
                    const int32_t *order)
{
    uint64_t device_ns = at_rate(queued, l->link_bytes_s), cpu_ns = 0;
    for (int head = 0, tail = n - 1; head <= tail;) {
        fl_lane_item *a = &item[order[head]], *z = &item[order[tail]];
        const uint64_t device_done = device_ns + at_rate(a->bytes, l->link_bytes_s);
        const uint64_t cpu_done = cpu_ns + at_rate(fl_lane_work(z->bytes, z->rows), l->cpu_work_s);
        if (device_done <= cpu_done) {
            a->lane = FL_ON_DEVICE;
            device_ns = device_done;
            head++;
        } else {
            z->lane = FL_ON_CPU;
            cpu_ns = cpu_done;
            tail--;
        }
    }
}

static int count(const fl_lane_item *item, int n, fl_lane lane)
{
    int got = 0;
    for (int i = 0; i < n; i++) got += item[i].lane == lane;
    return got;
}

/* Lets the lane have its best item when it was left alone for too long. */
static void retry(fl_lanes *l, fl_lane_item *item, int n, fl_lane lane, int best)
{
    l->idle[lane] = count(item, n, lane) ? 0 : l->idle[lane] + 1;
    if (l->idle[lane] < FL_LANES_RETRY || n < 2) return;
    item[best].lane = lane;
    l->idle[lane] = 0;
}

void fl_lanes_split(fl_lanes *l, fl_lane_item *item, int n, uint64_t queued, int32_t *order)
{
    for (int i = 0; i < n; i++)
        item[i].lane = l->choice == FL_LANES_DEVICE ? FL_ON_DEVICE : FL_ON_CPU;
    if (l->choice == FL_LANES_DEVICE || fl_lanes_cpu_only(l) || n == 0) return;
    sort(item, n, order);
    if (l->link_bytes_s && l->cpu_work_s)
        balance(l, item, n, queued, order);
    else if (!l->link_bytes_s)
        item[order[0]].lane = FL_ON_DEVICE;
    retry(l, item, n, FL_ON_DEVICE, order[0]);
    retry(l, item, n, FL_ON_CPU, order[n - 1]);
}

static void learn(uint64_t *rate, uint64_t amount, uint64_t ns)
{
    if (ns == 0 || amount == 0) return;
    const double seen = (double)amount * 1e9 / (double)ns;
    const double next = *rate ? (double)*rate + (seen - (double)*rate) / 8.0 : seen;
    *rate = next < 1.0 ? 1 : (uint64_t)next;
}

void fl_lanes_saw_cpu(fl_lanes *l, uint64_t work, uint64_t ns) { learn(&l->cpu_work_s, work, ns); }
void fl_lanes_saw_link(fl_lanes *l, uint64_t bytes, uint64_t ns)
{
    learn(&l->link_bytes_s, bytes, ns);
}
