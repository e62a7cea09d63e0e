#include "tests/support/refuse.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void fl_refuse(const fl_refusal *r)
{
    const uint32_t arg = (uint32_t)offsetof(struct seccomp_data, args) +
                         8u * (uint32_t)(r->arg < 0 ? 0 : r->arg); /* low half: little endian */
    const uint32_t mask = r->arg < 0 ? 0 : r->mask, value = r->arg < 0 ? 0 : r->value;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->nr, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, arg),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)r->error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog prog = {.len = sizeof code / sizeof *code, .filter = code};
    int rc = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (rc == 0) rc = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
    if (rc == 0) return;
    perror("seccomp");
    _exit(98);
}

bool fl_in_child(bool (*fn)(void *arg), void *arg)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) {
        alarm(30);
        _exit(fn(arg) ? 0 : 99);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return false;
    if (!WIFEXITED(status)) fprintf(stderr, "# child ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
