"""Parts that the scripts of this directory share: programs, CPU time of a command, turns, verdicts and results in JSON."""

import collections
import ctypes
import json
import os
import pathlib
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Programs that scripts/setup-programs has unpacked.
PROGRAMS = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "strait/programs"
TABLES_PYTHON = PROGRAMS / "tables/bin/python"

# Time limit of a command; after it the command is killed.
SECONDS_MAX = 3600
# Time limit for the removal of a directory.
REMOVE_LIMIT_S = 5


def find(name, fetched):
    """Returns the path of a program of the system, else of the programs that were fetched, else None."""
    path = PROGRAMS / fetched
    return shutil.which(name) or (str(path) if os.access(path, os.X_OK) else None)


def environment(program):
    """Returns the environment for an unpacked program: its libraries are beside it."""
    root = next((folder for folder in pathlib.Path(program).parents if folder.parent == PROGRAMS), None)
    if root is None:
        return dict(os.environ)
    folders = [str(path) for path in root.glob("usr/lib/*-linux-gnu*")] + [str(root / "usr/lib")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def skip(name, reason):
    print(f"SKIP {name}: {reason}", file=sys.stderr)


def use_tables_python():
    """Continues in the Python that has DuckDB and pyarrow, if this one has not."""
    if has_duckdb():
        return
    if not TABLES_PYTHON.exists() or pathlib.Path(sys.executable) == TABLES_PYTHON:
        sys.exit("DuckDB and pyarrow are missing: run scripts/setup-programs tables")
    os.execv(TABLES_PYTHON, [str(TABLES_PYTHON), *sys.argv])


def has_duckdb():
    return subprocess.run([sys.executable, "-c", "import duckdb, pyarrow"], capture_output=True).returncode == 0


def run(command, **options):
    """Runs a command, and returns the CPU seconds of it and its children, and its standard error."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    end = threading.Timer(SECONDS_MAX, process.kill)
    end.daemon = True
    end.start()
    try:
        text = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        end.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {process.returncode}: {text}")
    return usage.ru_utime + usage.ru_stime, text


def end_by_exception():
    """Lets SIGTERM end this process by an exception, so that it ends its programs and removes its files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def private_directory(path):
    """Makes a directory for this user alone, or accepts one of this user that is not open to all. /var/tmp is open to all users."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        sys.exit(f"{path} is a link or no directory: remove it, or give another --dir")
    if found.st_uid != os.geteuid() or found.st_mode & 0o002:
        sys.exit(f"{path} belongs to another user, or all users can write to it: chmod 700 it, or give another --dir")


def remove(directory):
    """Removes a directory. Killed processes may still write to it, so this tries again for REMOVE_LIMIT_S."""
    end = time.monotonic() + REMOVE_LIMIT_S
    while os.path.lexists(directory):
        try:
            shutil.rmtree(directory)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def spread(values):
    """Returns median, least, most and number of values, as results in bench/results have them."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}


class Turns:
    """Figures of contestants that take turns, round after round. A figure is a number of a contestant and a round."""

    def __init__(self):
        self.rounds = collections.defaultdict(list)
        self.claims = []

    def add(self, contestant, **figures):
        self.rounds[contestant].append(figures)

    def values(self, contestant, figure):
        return [figures[figure] for figures in self.rounds[contestant]]

    def show(self, figure, unit):
        print(f"\n{figure + ', ' + unit:<52}{'median':>16}{'least':>16}{'most':>16}")
        for contestant, rounds in self.rounds.items():
            if figure in rounds[0]:
                found = spread(self.values(contestant, figure))
                print(f"{contestant:<52}{found['median']:>16,.3f}{found['min']:>16,.3f}{found['max']:>16,.3f}")

    def claim(self, text, values, bound, unit, at_least):
        """Records and prints whether the median of the rounds meets a bound. Without rounds it is not measured."""
        sign = ">=" if at_least else "<="
        claim = {"claim": text, "bound": f"{sign} {bound:g}", "unit": unit, "measured": None, "verdict": "not_measured"}
        self.claims.append(claim)
        if not values:
            print(f"{'not measured':<22}{text}: bound {sign} {bound:g}")
            return
        found = spread(values)
        best = found["max"] if at_least else found["min"]
        meets = lambda value: value >= bound if at_least else value <= bound
        verdict = "holds" if meets(found["median"]) else "short_within_spread" if meets(best) else "short"
        claim.update(measured=found, verdict=verdict)
        measured = f"{found['median']:.2f} ({found['min']:.2f}..{found['max']:.2f})"
        print(f"{verdict.replace('_', ' '):<22}{text}: {measured} {unit}, bound {sign} {bound:g}")

    def ratios(self, over, under, figure):
        """Returns the ratios of a figure of two contestants in the same round."""
        return [a / b for a, b in zip(self.values(over, figure), self.values(under, figure), strict=True)]

    def save(self, path, benchmark, about, label, strait, skipped):
        """Writes the results, in the format of `strait bench`."""
        rows = self.rounds.items()
        series = [{"contestant": name, "at": 0.0, "got": "", "summary": summary(rounds), "rounds": rounds} for name, rounds in rows]
        results = {
            "benchmark": benchmark,
            "about": about,
            "axis": "traffic",
            "labels": [label],
            "machine": machine(strait),
            "complete": True,
            "rounds": max(len(rounds) for rounds in self.rounds.values()),
            "seconds": 0.0,
            "series": series,
            "skipped": [{"contestant": name, "reason": reason} for name, reason in skipped.items()],
            "claims": self.claims,
        }
        pathlib.Path(path).write_text(json.dumps(results, indent=2) + "\n")


def summary(rounds):
    return {figure: spread([figures[figure] for figures in rounds]) for figure in rounds[0]}


def machine(strait):
    """Returns the description of the machine and of the run."""
    text = lambda *command: subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    models = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["python", *sys.argv]),
        "commit": text("git", "rev-parse", "--short=8", "HEAD"),
        "program": text(strait, "--version"),
        "kernel": f"Linux {os.uname().release}",
        "cpu": models[0] if models else "",
        "cpus": os.cpu_count(),
        "memory_kib": int(open("/proc/meminfo").readline().split()[1]),
        "libpcap": libpcap_version(),
        "load_average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def libpcap_version():
    """Returns the version of the system's libpcap, which other programs read files with."""
    try:
        library = ctypes.CDLL("libpcap.so.0.8")
    except OSError:
        return ""
    library.pcap_lib_version.restype = ctypes.c_char_p
    return library.pcap_lib_version().decode()
