#include "runtime/base/limits.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/groups.h"
#include "runtime/base/sysfile.h"

enum { CAP_IPC_LOCK_BIT = 14 }; /* whoever has it is not held to the lock limit */

static bool is_wsl(const char *root)
{
    char line[512];
    if (!fl_sys_line(root, "/proc/version", line, sizeof line)) return false;
    for (char *p = line; *p; p++) *p = (char)tolower((unsigned char)*p);
    return strstr(line, "microsoft") != NULL;
}

static uint64_t parse_limit(const char *word)
{
    return strcmp(word, "unlimited") == 0 ? UINT64_MAX : strtoull(word, NULL, 10);
}

static void read_memlock(fl_limits *l, const char *root)
{
    char rest[256], soft[32], hard[32];
    l->memlock = l->memlock_hard = UINT64_MAX;
    if (fl_sys_text(root, "/proc/self/limits", "Max locked memory", rest, sizeof rest) &&
        sscanf(rest, "%31s %31s", soft, hard) == 2) {
        l->memlock = parse_limit(soft);
        l->memlock_hard = parse_limit(hard);
    }
    if (fl_sys_text(root, "/proc/self/status", "CapEff:", rest, sizeof rest) &&
        strtoull(rest, NULL, 16) >> CAP_IPC_LOCK_BIT & 1)
        l->memlock = UINT64_MAX;
}

void fl_limits_read(fl_limits *l, const char *root)
{
    *l = (fl_limits){0};
    if (!fl_sys_line(root, "/proc/sys/kernel/osrelease", l->kernel, sizeof l->kernel))
        l->kernel[0] = '\0';
    l->wsl = is_wsl(root);
    uint64_t kib = 0;
    if (fl_sys_number(root, "/proc/meminfo", "MemTotal:", &kib)) l->memory = kib * 1024;
    if (fl_sys_number(root, "/proc/meminfo", "MemAvailable:", &kib)) l->available = kib * 1024;
    read_memlock(l, root);
    l->group_cpus = fl_groups_cpus(root);
    if (!fl_groups_memory(root, &l->group_memory, &l->group_memory_left))
        l->group_memory = l->group_memory_left = 0;
}

uint64_t fl_limits_pinnable(const fl_limits *l)
{
    uint64_t most = l->available < l->memlock ? l->available : l->memlock;
    if (l->group_memory > 0 && l->group_memory_left < most) most = l->group_memory_left;
    return most;
}
