#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/options.h"
#include "runtime/tools/checkup.h"

enum { FEW_CORES = 4, OLD_KERNEL = 5 * 1000 + 12 /* 5.12 */ };

/* A new warning; what stands behind the words of `fmt` goes to `what`. */
__attribute__((format(printf, 3, 4))) static fl_warning *warn(fl_checkup *c, const char *code,
                                                              const char *fmt, ...)
{
    static fl_warning lost; /* more than there is room for: no machine has so many faults */
    va_list a;
    fl_warning *w = c->n_warnings < FL_MAX_WARNINGS ? &c->warning[c->n_warnings++] : &lost;
    *w = (fl_warning){.code = code};
    va_start(a, fmt);
    vsnprintf(w->what, sizeof w->what, fmt, a);
    va_end(a);
    return w;
}

__attribute__((format(printf, 2, 3))) static void mend(fl_warning *w, const char *fmt, ...)
{
    va_list a;
    va_start(a, fmt);
    vsnprintf(w->mend, sizeof w->mend, fmt, a);
    va_end(a);
}

/* ---- links ---- */

static double gb(fl_link l) { return (double)fl_link_bytes_s(l) * 1e-9; }

static void judge_lanes(fl_checkup *c, const char *what, const fl_pci *p)
{
    const fl_link can = fl_link_least(p->device, p->slot);
    if (p->now.lanes >= can.lanes) return;
    mend(warn(c, "link-narrow", "%s at %s runs on %d of the %d lanes that card and slot have", what,
              p->address, p->now.lanes, can.lanes),
         "seat it again; look for a riser, or an M.2 drive that shares the slot's lanes; check: "
         "sudo lspci -vv -s %s | grep LnkSta",
         p->address);
}

static void judge_speed(fl_checkup *c, const char *what, const fl_pci *p)
{
    char now[32], can[32];
    const fl_link most = fl_link_least(p->device, p->slot);
    if (p->now.mt_s >= most.mt_s) return;
    mend(warn(c, "link-slow", "%s at %s runs as %s, and could as %s", what, p->address,
              fl_link_format(now, p->now), fl_link_format(can, most)),
         "cards rest at a low speed: run doctor again while a program uses it; if it stays, set "
         "the slot's link speed to the highest in the firmware's setup");
}

/* A slot of the generation before halves the rate, and nobody calls that a fault. */
static void judge_slot(fl_checkup *c, const char *what, const fl_pci *p)
{
    char slot[32], device[32];
    const bool narrow = p->slot.lanes < p->device.lanes;
    if (!narrow && 2 * p->slot.mt_s * p->slot.lanes >= p->device.mt_s * p->device.lanes) return;
    mend(warn(c, "slot", "%s at %s is in a slot of %s and could use %s: at most %.1f of %.1f GB/s",
              what, p->address, fl_link_format(slot, p->slot), fl_link_format(device, p->device),
              gb(p->slot), gb(p->device)),
         "move it to the slot next to the CPU; those behind the chipset have few lanes");
}

static void judge_link(fl_checkup *c, const char *what, const fl_pci *p)
{
    if (p->now.lanes == 0 || p->slot.lanes == 0 || p->device.lanes == 0) return;
    judge_lanes(c, what, p);
    judge_speed(c, what, p);
    judge_slot(c, what, p);
}

/* ---- cards ---- */

static void judge_driver(fl_checkup *c, const fl_card *card)
{
    const char *d = card->pci.driver;
    if (strcmp(d, "nvidia") == 0 || strcmp(d, "vfio-pci") == 0) return;
    mend(warn(c, "driver", "the NVIDIA card at %s has no NVIDIA driver (%s)", card->pci.address,
              d[0] ? d : "none is loaded"),
         "sudo apt install nvidia-driver, then start the machine anew");
}

static void judge_cards(fl_checkup *c)
{
    for (int i = 0; i < c->cards.n; i++) {
        const fl_card *card = &c->cards.card[i];
        const char *name = card->name[0] ? card->name : "the NVIDIA card";
        if (card->pci.vendor != FL_PCI_NVIDIA) continue;
        judge_link(c, name, &card->pci);
        judge_driver(c, card);
        warn(c, "card-unused", "%s at %s is not used: this build computes on the CPU alone", name,
             card->pci.address);
    }
}

/* ---- where the model lies ---- */

static bool is_one_of(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void judge_file_system(fl_checkup *c)
{
    static const char *const network[] = {"nfs",  "nfs4",       "cifs",     "smb3",
                                          "ceph", "fuse.sshfs", "glusterfs"};
    static const char *const memory[] = {"tmpfs", "ramfs"};
    const char *type = c->drive.file_system;
    if (c->limits.wsl && (strcmp(type, "9p") == 0 || strcmp(type, "drvfs") == 0))
        mend(warn(c, "windows-drive", "%s lies on a Windows drive (%s), where reads are slow",
                  c->path, type),
             "copy the model into Linux's own file system: cp MODEL ~/");
    else if (is_one_of(type, network, sizeof network / sizeof *network))
        mend(warn(c, "network-drive",
                  "%s lies on a network (%s): experts are read from there while "
                  "text is made",
                  c->path, type),
             "copy the model to a local NVMe drive");
    else if (is_one_of(type, memory, sizeof memory / sizeof *memory))
        mend(warn(c, "memory-drive", "%s lies in main memory (%s), which experts then lack",
                  c->path, type),
             "copy the model to a drive");
}

static void judge_drive(fl_checkup *c)
{
    const fl_drive *d = &c->drive;
    if (!c->has_drive) return;
    judge_file_system(c);
    if (d->rotational == 1 && d->virtual)
        mend(warn(c, "rotational",
                  "%s says that it rotates, as drives of virtual machines do "
                  "whatever lies behind them",
                  d->name),
             "fourleaf calibrate MODEL measures how fast it is");
    else if (d->rotational == 1)
        mend(warn(c, "rotational",
                  "%s is a rotating disk: experts come from it at 0.1 to 0.2 GB/s, "
                  "from an NVMe drive at 3 to 7",
                  d->name),
             "move the model to an NVMe drive");
    if (d->nvme) judge_link(c, d->name, &c->controller);
}

static void judge_io(fl_checkup *c)
{
    if (c->io_fallback[0] == '\0') return;
    fl_warning *w = warn(c, "io", "%.300s", c->io_fallback);
    if (c->io_uring_disabled > 0)
        mend(w, "sudo sysctl kernel.io_uring_disabled=0");
    else if (strstr(c->io_fallback, "O_DIRECT"))
        mend(w, "move the model to ext4, xfs or btrfs on a local drive");
    else if (strstr(c->io_fallback, "not permitted") || strstr(c->io_fallback, "denied"))
        mend(w, "a container's filter refuses it: docker run --security-opt seccomp=unconfined, or "
                "a profile that allows io_uring_setup, io_uring_enter and io_uring_register");
    else if (strstr(c->io_fallback, "memory"))
        mend(w, "ulimit -l unlimited");
}

/* ---- memory and processors ---- */

static void judge_memlock(fl_checkup *c)
{
    char size[32];
    const fl_limits *l = &c->limits;
    const uint64_t want = c->has_model ? c->model_bytes : l->memory / 2;
    if (l->memlock >= want) return;
    fl_warning *w = warn(c, "memlock",
                         "only %s may be locked in memory: host memory cannot be pinned beyond "
                         "that, and copies to a card are slower",
                         fl_size_format(size, l->memlock));
    if (l->memlock_hard == UINT64_MAX)
        mend(w, "ulimit -l unlimited");
    else
        mend(w,
             "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-memlock.conf, "
             "then log in again; docker run --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity");
}

static void judge_groups(fl_checkup *c)
{
    char limit[32], all[32];
    const fl_limits *l = &c->limits;
    if (l->group_memory > 0 && l->group_memory < l->memory)
        mend(warn(c, "group-memory", "control groups leave this program %s of the machine's %s",
                  fl_size_format(limit, l->group_memory), fl_size_format(all, l->memory)),
             "docker run --memory SIZE, or systemd's MemoryMax=, or docker run without a limit");
    if (l->group_cpus > 0 && l->group_cpus < c->topo.n_cores)
        mend(warn(c, "group-cpus",
                  "control groups leave this program %d processors' time of %d "
                  "cores",
                  l->group_cpus, c->topo.n_cores),
             "docker run --cpus N, or systemd's CPUQuota=");
}

static void judge_wsl(fl_checkup *c)
{
    char size[32];
    if (!c->limits.wsl) return;
    mend(warn(c, "wsl",
              "Windows runs this kernel (WSL2) and gives it %s; drivers may refuse to pin "
              "more than 1 GiB of it",
              fl_size_format(size, c->limits.memory)),
         "in %%UserProfile%%\\.wslconfig: [wsl2] memory=SIZE, then: wsl --shutdown; what pins is "
         "measured by fourleaf calibrate MODEL");
}

static void judge_cores(fl_checkup *c)
{
    const int strong = fl_checkup_strong_cores(c);
    if (strong > 0 && strong < FEW_CORES)
        warn(c, "few-cores", "only %d %score%s: experts that are computed on the CPU will be slow",
             strong, c->topo.n_kinds > 1 ? "performance " : "", strong == 1 ? "" : "s");
    if (strcmp(c->tier, "reference") == 0)
        warn(c, "no-avx2",
             "the CPU has no AVX2: products run on the portable kernels, many times "
             "slower");
}

static void judge_kernel(fl_checkup *c)
{
    int major = 0, minor = 0;
    if (sscanf(c->limits.kernel, "%d.%d", &major, &minor) != 2) return;
    if (major * 1000 + minor < OLD_KERNEL)
        mend(warn(c, "kernel",
                  "kernel %d.%d counts io_uring's buffers against the lock limit and "
                  "lacks some of its calls",
                  major, minor),
             "a kernel from 5.12 on");
}

/* ---- nodes ---- */

static void judge_nodes(fl_checkup *c)
{
    char left[32];
    const fl_card *card = fl_checkup_card(c);
    const int at = card ? card->pci.node : -1, drive = c->controller.node;
    const fl_node *node = fl_topology_node(&c->topo, at);
    if (c->topo.n_nodes < 2) return;
    if (at >= 0 && drive >= 0 && at != drive)
        mend(warn(c, "nodes-apart",
                  "the card is near node %d, the drive near node %d: what is read "
                  "crosses from socket to socket",
                  at, drive),
             "put both into slots of one socket");
    if (node && node->free_bytes > 0 && node->free_bytes < node->bytes / 4)
        mend(warn(c, "node-full", "node %d, near the card, has %s of memory left", at,
                  fl_size_format(left, node->free_bytes)),
             "end what runs there, or start that elsewhere: numactl --membind=NODE PROGRAM");
    const int where = at >= 0 ? at : drive;
    if (where >= 0)
        mend(warn(c, "nodes",
                  "memory of the other node is slower to reach: %d nodes, the %s is "
                  "near node %d",
                  c->topo.n_nodes, at >= 0 ? "card" : "drive", where),
             "numactl --cpunodebind=%d --preferred=%d fourleaf run MODEL", where, where);
}

/* ---- the model ---- */

static void judge_model(fl_checkup *c)
{
    if (!c->has_model) return;
    if (c->plan_error[0]) warn(c, "plan", "%.300s", c->plan_error);
    if (!c->calibrated)
        mend(warn(c, "not-calibrated",
                  "this machine's speeds with this model are not known, or "
                  "something in the machine has changed since"),
             "fourleaf calibrate %.200s", c->path);
}

static void judge_pinned(fl_checkup *c)
{
    char got[32], want[32];
    if (c->pinned_bytes >= c->pin_wanted) return;
    mend(warn(c, "pin",
              "only %s of %s could be pinned (%s): copies from the rest of host memory "
              "are slower",
              fl_size_format(got, c->pinned_bytes), fl_size_format(want, c->pin_wanted),
              c->pin_end),
         "lift the limits named here, then fourleaf calibrate MODEL; under WSL2 a newer driver");
}

void fl_checkup_judge(fl_checkup *c)
{
    c->n_warnings = 0;
    judge_cards(c);
    judge_drive(c);
    judge_io(c);
    judge_memlock(c);
    judge_groups(c);
    judge_wsl(c);
    judge_cores(c);
    judge_kernel(c);
    judge_nodes(c);
    judge_model(c);
    judge_pinned(c);
}
