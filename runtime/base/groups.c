#include "runtime/base/groups.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/sysfile.h"

/* Above it a number stands for "none" (version 1 has no word for that). */
static const uint64_t NO_LIMIT = UINT64_C(1) << 60;
enum { MAX_CPUS = 4096, GROUP_PATH = 512 };

typedef struct limits {
    int cpus; /* 0: none */
    bool memory;
    uint64_t limit, left;
} limits;

/* One folder: what it says of processors and of memory. */
typedef void (*look_fn)(limits *l, const char *root, const char *folder);

static void take_cpus(limits *l, int64_t quota, int64_t period)
{
    if (quota <= 0 || period <= 0 || quota / period > MAX_CPUS) return;
    const int n = (int)((quota + period - 1) / period);
    if (l->cpus == 0 || n < l->cpus) l->cpus = n;
}

static bool number(const char *root, const char *folder, const char *file, const char *key,
                   uint64_t *v)
{
    char path[FL_SYS_PATH];
    return snprintf(path, sizeof path, "%s/%s", folder, file) < (int)sizeof path &&
           fl_sys_number(root, path, key, v);
}

static void take_memory(limits *l, uint64_t limit, uint64_t used, uint64_t idle_pages)
{
    if (limit >= NO_LIMIT) return;
    used -= idle_pages < used ? idle_pages : used;
    const uint64_t left = limit > used ? limit - used : 0;
    if (!l->memory || limit < l->limit) l->limit = limit;
    if (!l->memory || left < l->left) l->left = left;
    l->memory = true;
}

static void look_cpu_1(limits *l, const char *root, const char *folder)
{
    uint64_t quota = 0, period = 0; /* -1, no limit, is no number here */
    if (number(root, folder, "cpu.cfs_quota_us", "", &quota) &&
        number(root, folder, "cpu.cfs_period_us", "", &period))
        take_cpus(l, (int64_t)quota, (int64_t)period);
}

static void look_memory_1(limits *l, const char *root, const char *folder)
{
    uint64_t limit = 0, used = 0, idle = 0;
    if (!number(root, folder, "memory.limit_in_bytes", "", &limit) ||
        !number(root, folder, "memory.usage_in_bytes", "", &used))
        return;
    number(root, folder, "memory.stat", "total_inactive_file ", &idle);
    take_memory(l, limit, used, idle);
}

static void look_2(limits *l, const char *root, const char *folder)
{
    char path[FL_SYS_PATH], line[64];
    long long quota = 0, period = 0;
    uint64_t limit = 0, used = 0, idle = 0;
    /* "max 100000": no limit */
    if (snprintf(path, sizeof path, "%s/cpu.max", folder) < (int)sizeof path &&
        fl_sys_line(root, path, line, sizeof line) &&
        sscanf(line, "%lld %lld", &quota, &period) == 2)
        take_cpus(l, quota, period);
    if (!number(root, folder, "memory.max", "", &limit) ||
        !number(root, folder, "memory.current", "", &used))
        return;
    number(root, folder, "memory.stat", "inactive_file ", &idle);
    take_memory(l, limit, used, idle);
}

/* A group and those above it. A container may see only the upper ones, as the mount's root. */
static void look_upwards(limits *l, const char *root, const char *mount, const char *group,
                         look_fn look)
{
    char folder[FL_SYS_PATH];
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder) return;
    for (;;) {
        look(l, root, folder);
        char *slash = strrchr(folder + strlen(mount), '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* Is `name` one of the words between commas? */
static bool has_word(const char *words, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = words; p; p = strchr(p, ',')) {
        if (*p == ',') p++;
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) return true;
    }
    return false;
}

/* "7:cpu,cpuacct:/group", version 2: "0::/group". */
static void look_line(limits *l, const char *root, char *line)
{
    char mount[256];
    char *words = strchr(line, ':');
    char *group = words ? strchr(words + 1, ':') : NULL;
    if (!group || group[1] != '/') return;
    words++;
    *group++ = '\0';
    if (*words == '\0') {
        look_upwards(l, root, "/sys/fs/cgroup", group, look_2);
        look_upwards(l, root, "/sys/fs/cgroup/unified", group, look_2);
        return;
    }
    if (snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", words) >= (int)sizeof mount) return;
    if (has_word(words, "cpu")) look_upwards(l, root, mount, group, look_cpu_1);
    if (has_word(words, "memory")) look_upwards(l, root, mount, group, look_memory_1);
}

static limits look_all(const char *root)
{
    char path[FL_SYS_PATH], line[GROUP_PATH];
    limits l = {0};
    if (!fl_sys_path(path, root, "/proc/self/cgroup")) return l;
    FILE *f = fopen(path, "re");
    if (!f) return l;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        look_line(&l, root, line);
    }
    fclose(f);
    return l;
}

int fl_groups_cpus(const char *root) { return look_all(root).cpus; }

bool fl_groups_memory(const char *root, uint64_t *limit, uint64_t *left)
{
    const limits l = look_all(root);
    *limit = l.limit;
    *left = l.left;
    return l.memory;
}
