/*
 * Shared by the C peers: signals, errors, and the position of a probe in a frame.
 *
 * The peers are minimal programs that Strait is compared with. The benchmark compiles and starts
 * them; they are not installed.
 */
#ifndef STRAIT_BENCH_PEER_H
#define STRAIT_BENCH_PEER_H

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NANOSECONDS_PER_S 1000000000ull
#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define UDP_BYTES 8
#define PROBE_MAGIC 0x5354
#define PROBE_BYTES 18

/*
 * Marks for a guest of the lab, which counts the instructions between them (lab/vm/meter.c): 3
 * before a poll, 4 after one that found frames. After the others a poller sleeps.
 */
#define PAUSE_US 500
#define MARK(low) __asm__ volatile("nopl 0x53540000+" #low "(%%rax)" ::: "memory")

static volatile sig_atomic_t interrupted;

static inline void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS_PER_S + (uint64_t)now.tv_nsec;
}

/* Handler for programs that test `interrupted` in their loop. */
static inline void note_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* Calls `handler` on SIGINT and SIGTERM; blocking calls then return EINTR. */
static inline void on_interrupt(void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* Reports to the benchmark that the program has started to count. */
static inline void say_ready(void)
{
    fputs("ready\n", stderr);
}

#endif
