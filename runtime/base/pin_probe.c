#include "runtime/base/pin_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clock.h"

static const uint64_t CHUNK = UINT64_C(256) << 20;
enum { TIMEOUT_MS = 5000 };

/* What the child says of each chunk. */
typedef struct report {
    uint64_t bytes; /* so far */
    int sys;        /* 0, or why this one was refused */
} report;

/* ---- the child: system calls alone, since other threads of the parent may hold locks ---- */

static int lock_pages(void *arg, void *base, uint64_t bytes)
{
    (void)arg;
    return mlock(base, bytes) == 0 ? 0 : errno;
}

static void volunteer(void)
{
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    /* Where it is refused the kernel chooses as it always does. */
    const ssize_t n = write(fd, "1000", 4);
    (void)n;
    close(fd);
}

static _Noreturn void take_chunks(const fl_pin_probe *p, int to)
{
    report r = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    volunteer();
    while (r.bytes < p->want && r.sys == 0) {
        const uint64_t left = p->want - r.bytes, n = left < p->chunk_bytes ? left : p->chunk_bytes;
        void *base = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        r.sys = base == MAP_FAILED ? errno : p->pin(p->arg, base, n);
        if (r.sys == 0) r.bytes += n;
        if (write(to, &r, sizeof r) != sizeof r) break;
    }
    _exit(0);
}

/* ---- the parent ---- */

/* Waits for the next report; false when there is none any more, or (*late) not in time. */
static bool next_report(int from, uint64_t end_ns, report *r, bool *late)
{
    struct pollfd fd = {.fd = from, .events = POLLIN};
    for (;;) {
        const uint64_t now = fl_clock_ns();
        const int ms = now < end_ns ? (int)((end_ns - now) / 1000000) + 1 : 0;
        const int n = poll(&fd, 1, ms);
        *late = n == 0;
        if (n > 0) return read(from, r, sizeof *r) == sizeof *r;
        if (n == 0 || errno != EINTR) return false;
    }
}

static void reap(pid_t child)
{
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
}

/* The child's memory goes with it, so it is ended as soon as it has said all. */
static void follow(pid_t child, int from, int timeout_ms, uint64_t want, fl_pinnable *out)
{
    const uint64_t end_ns = fl_clock_ns() + (uint64_t)timeout_ms * 1000000u;
    report r = {0};
    bool late = false;
    while (r.bytes < want && r.sys == 0 && next_report(from, end_ns, &r, &late)) continue;
    kill(child, SIGKILL);
    reap(child);
    *out = (fl_pinnable){.bytes = r.bytes, .sys = r.sys};
    out->end = r.sys             ? FL_PIN_REFUSED
               : r.bytes >= want ? FL_PIN_ALL
               : late            ? FL_PIN_STALLED
                                 : FL_PIN_KILLED;
}

fl_status fl_pin_probe_run(const fl_pin_probe *given, fl_pinnable *out, fl_err *err)
{
    fl_pin_probe p = *given;
    int pipe_fd[2];
    *out = (fl_pinnable){.end = FL_PIN_ALL};
    if (p.want == 0) return FL_OK;
    if (p.chunk_bytes == 0) p.chunk_bytes = CHUNK;
    if (p.timeout_ms == 0) p.timeout_ms = TIMEOUT_MS;
    if (!p.pin) p.pin = lock_pages;
    if (pipe2(pipe_fd, O_CLOEXEC) != 0)
        return FL_FAIL(err, FL_E_IO, errno, "pinned memory: no pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) take_chunks(&p, pipe_fd[1]);
    const int sys = errno;
    close(pipe_fd[1]);
    if (child > 0) follow(child, pipe_fd[0], p.timeout_ms, p.want, out);
    close(pipe_fd[0]);
    if (child > 0) return FL_OK;
    return FL_FAIL(err, FL_E_IO, sys, "pinned memory: no process to try it: %s", strerror(sys));
}
