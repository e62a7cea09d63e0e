"""A command run to its end: its time, its memory, what it read; under a memory cap if wanted."""

import os
import subprocess
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


class Cap:
    """A cgroup of our own below this process's, which holds what is started in it to `limit` bytes.

    Version 1 or 2, whichever has the memory controller. The page cache counts, but is given up.
    """

    def __init__(self, limit):
        v1, v2 = None, None
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if "memory" in kinds.split(","):
                v1 = CGROUPS / "memory" / path.lstrip("/")
            elif not kinds:
                v2 = CGROUPS / path.lstrip("/")
        self.group = (v1 or v2) / f"fourleaf-{os.getpid()}"
        self.group.mkdir()
        self.peak_file = "memory.max_usage_in_bytes" if v1 else "memory.peak"
        (self.group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))

    def enter(self):
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int((self.group / self.peak_file).read_text())

    def close(self):
        self.group.rmdir()


def rss(pid):
    """Resident bytes now, 0 once the process has gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Run:
    """seconds, cpu (seconds), peak and samples (resident bytes), read (bytes from devices).

    peak is what /usr/bin/time -v prints. A command that fails ends the program with its last words.
    """

    def __init__(self, argv, log, cap=None):
        argv = [str(a) for a in argv]
        with open(log, "wb") as file:
            began = time.monotonic()
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=cap.enter if cap else None,
            )
            self.samples = []
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                self.samples.append(rss(child.pid))
                time.sleep(0.1)
            self.seconds = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            tail = Path(log).read_text(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(argv)}: exit {child.returncode}\n{tail}")
        self.peak, self.cpu = usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
        self.read = usage.ru_inblock * 512
        self.samples = [s for s in self.samples if s]

    def flatness(self):
        """Largest sample of the second half over the largest of the first."""
        half = len(self.samples) // 2
        return max(self.samples[half:]) / max(self.samples[:half]) if half else 1.0

    def tenths(self):
        """Largest sample of each tenth of the run, in MiB."""
        n = len(self.samples)
        cut = [self.samples[n * i // 10 : n * (i + 1) // 10] for i in range(10)]
        return " ".join(str(max(c) >> 20) for c in cut if c)
