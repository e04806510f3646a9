/*
 * Runs a program on one CPU with a time limit, and reports its CPU cost.
 *
 *     timed CPU SECONDS PROGRAM [ARGUMENT...]
 *
 * Every program of a measurement, Strait or peer, is started through it, so that all costs are
 * measured alike. On standard error it writes lines that begin with "timed: ":
 *   - on SIGUSR1 "timed: cpu_ns=N snapshot=I", the program's CPU time so far, all threads;
 *   - at the program's end "timed: user_us=N system_us=N voluntary=N involuntary=N limit=0|1", from wait4(2).
 * It forwards SIGINT and SIGTERM to the program, and kills it at the time limit. The program is also
 * killed if this process is.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peer.h"

static void watched_signals(sigset_t *set)
{
    const int signals[] = { SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD };
    sigemptyset(set);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaddset(set, signals[i]);
}

static void become(int cpu, char **program, const sigset_t *watched)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0)
        fail("pin to CPU");
    sigprocmask(SIG_UNBLOCK, watched, NULL);
    execvp(program[0], program);
    fail(program[0]);
}

static void say_snapshot(pid_t child, int number)
{
    clockid_t clock;
    if (clock_getcpuclockid(child, &clock) == 0)
        dprintf(STDERR_FILENO, "timed: cpu_ns=%llu snapshot=%d\n", (unsigned long long)clock_ns(clock), number);
}

static long long microseconds(struct timeval time)
{
    return time.tv_sec * 1000000ll + time.tv_usec;
}

/* Returns the exit code to pass on, or -1 while the program runs. */
static int reap(pid_t child, int limit)
{
    int status;
    struct rusage usage;
    if (wait4(child, &status, WNOHANG, &usage) != child)
        return -1;
    dprintf(STDERR_FILENO, "timed: user_us=%lld system_us=%lld voluntary=%ld involuntary=%ld limit=%d\n",
            microseconds(usage.ru_utime), microseconds(usage.ru_stime), usage.ru_nvcsw, usage.ru_nivcsw, limit);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int watch(pid_t child, const sigset_t *watched)
{
    int snapshots = 0, limit = 0, code = -1;
    while (code < 0) {
        int signal;
        sigwait(watched, &signal);
        if (signal == SIGUSR1)
            say_snapshot(child, ++snapshots);
        else if (signal == SIGINT || signal == SIGTERM)
            kill(child, signal);
        else if (signal == SIGALRM)
            limit = kill(child, SIGKILL) == 0;
        else
            code = reap(child, limit);
    }
    return code;
}

int main(int argc, char **argv)
{
    sigset_t watched;
    if (argc < 4) {
        fputs("usage: timed CPU SECONDS PROGRAM [ARGUMENT...]\n", stderr);
        return 2;
    }
    watched_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0)
        become(atoi(argv[1]), argv + 3, &watched);
    alarm((unsigned)atoi(argv[2]));
    return watch(child, &watched);
}
