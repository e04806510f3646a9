/*
 * Minimal fast generator: sendmmsg on an AF_PACKET socket that bypasses the queueing discipline.
 *
 *     sendmmsg_gen -o INTERFACE [-d SECONDS] [-b BATCH] [-n] [-p MILLISECONDS]
 *
 * Sends 60-byte UDP frames, all equal; with -n each is numbered and stamped, so that the receiver
 * can distinguish them. -p makes a mostly quiet line: after each call the program sleeps for a
 * pseudo-random time from 1 ms to MILLISECONDS, with the same sequence in every run. Prints one
 * JSON object at the end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "peer.h"

#define FRAME_BYTES 60
#define BATCH_MAX 1024
#define BATCH_DEFAULT 64
#define PAUSE_US_MIN 1000
#define PAUSE_MS_MAX 999
#define PROBE_AT (ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES)

struct options {
    const char *interface;
    double seconds;
    unsigned batch;
    int numbered;
    unsigned pause_ms_max;
};

/* 198.18.0.1 to 198.19.0.1, UDP port 1024 to 9. As on a mirror port, the MAC address is not that of
 * the receiver. */
static const uint8_t frame[PROBE_AT] = {
    2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 8, 0,
    0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0xae, 0x97, 198, 18, 0, 1, 198, 19, 0, 1,
    4, 0, 0, 9, 0, 26, 0, 0,
};

static uint8_t frames[BATCH_MAX][FRAME_BYTES];
static struct iovec vectors[BATCH_MAX];
static struct mmsghdr messages[BATCH_MAX];

static int open_socket(const char *interface)
{
    struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(interface) };
    int fd = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
    if (address.sll_ifindex == 0)
        fail(interface);
    if (fd < 0)
        fail("socket");
    if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof(on)) != 0)
        fail("PACKET_QDISC_BYPASS");
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        fail("bind");
    return fd;
}

static void prepare(unsigned batch)
{
    for (unsigned i = 0; i < batch; i++) {
        memcpy(frames[i], frame, sizeof(frame));
        vectors[i] = (struct iovec){ .iov_base = frames[i], .iov_len = FRAME_BYTES };
        messages[i].msg_hdr = (struct msghdr){ .msg_iov = &vectors[i], .msg_iovlen = 1 };
    }
}

static void put_big_endian(uint8_t *at, uint64_t value)
{
    for (int i = 7; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
}

static void number(unsigned batch, uint64_t sequence)
{
    uint64_t now = clock_ns(CLOCK_REALTIME);
    for (unsigned i = 0; i < batch; i++) {
        uint8_t *probe = frames[i] + PROBE_AT;
        probe[0] = PROBE_MAGIC >> 8;
        probe[1] = PROBE_MAGIC & 0xff;
        put_big_endian(probe + 2, sequence + i);
        put_big_endian(probe + 10, now);
    }
}

static void pause_before_next(const struct options *options)
{
    static unsigned seed = 1;
    unsigned spread_us = options->pause_ms_max * 1000 - PAUSE_US_MIN;
    uint64_t pause_us = PAUSE_US_MIN + (uint64_t)rand_r(&seed) % (spread_us + 1);
    struct timespec time = { .tv_nsec = (long)(pause_us * 1000) };
    nanosleep(&time, NULL);
}

static uint64_t send_all(int fd, const struct options *options, uint64_t end)
{
    uint64_t sent = 0;
    while (!interrupted && clock_ns(CLOCK_MONOTONIC) < end) {
        if (options->numbered)
            number(options->batch, sent);
        int count = sendmmsg(fd, messages, options->batch, 0);
        if (count > 0)
            sent += (uint64_t)count;
        else if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR)
            fail("sendmmsg");
        if (options->pause_ms_max > 0)
            pause_before_next(options);
    }
    return sent;
}

int main(int argc, char **argv)
{
    struct options options = { .seconds = 10, .batch = BATCH_DEFAULT };
    for (int option; (option = getopt(argc, argv, "o:d:b:np:")) != -1;) {
        switch (option) {
        case 'o': options.interface = optarg; break;
        case 'd': options.seconds = atof(optarg); break;
        case 'b': options.batch = (unsigned)atoi(optarg); break;
        case 'n': options.numbered = 1; break;
        case 'p': options.pause_ms_max = (unsigned)atoi(optarg); break;
        default: return 2;
        }
    }
    if (options.interface == NULL || options.batch == 0 || options.batch > BATCH_MAX
        || options.pause_ms_max > PAUSE_MS_MAX) {
        fputs("usage: sendmmsg_gen -o INTERFACE [-d SECONDS] [-b BATCH] [-n] [-p MILLISECONDS]\n", stderr);
        return 2;
    }
    int fd = open_socket(options.interface);
    prepare(options.batch);
    on_interrupt(note_interrupt);
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    uint64_t sent = send_all(fd, &options, start + (uint64_t)(options.seconds * NANOSECONDS_PER_S));
    double seconds = (double)(clock_ns(CLOCK_MONOTONIC) - start) / NANOSECONDS_PER_S;
    printf("{\"frames\":%llu,\"seconds\":%.6f,\"achieved_pps\":%.1f}\n", (unsigned long long)sent, seconds,
           (double)sent / seconds);
    return 0;
}
