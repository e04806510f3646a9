/*
 * Minimal capture: an AF_PACKET socket read by recvfrom, or by recvmmsg with -m.
 *
 *     afpacket_recv -i INTERFACE [-m]
 *
 * Prints one JSON object on SIGINT.
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

#define BATCH 64
#define FRAME_BYTES 2048

static char buffers[BATCH][FRAME_BYTES];
static unsigned long long delivered, bytes;

static int open_socket(const char *interface)
{
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(ETH_P_ALL),
        .sll_ifindex = (int)if_nametoindex(interface),
    };
    /* Limit of the delay until a signal between two reads takes effect. */
    struct timeval timeout = { .tv_usec = 100000 };
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    if (address.sll_ifindex == 0)
        fail(interface);
    if (fd < 0)
        fail("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) != 0)
        fail("SO_RCVTIMEO");
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        fail("bind");
    return fd;
}

static void check(ssize_t status)
{
    if (status < 0 && errno != EINTR && errno != EAGAIN)
        fail("receive");
}

static void read_one(int fd)
{
    struct sockaddr_ll from;
    socklen_t from_bytes = sizeof(from);
    ssize_t len = recvfrom(fd, buffers[0], FRAME_BYTES, MSG_TRUNC, (struct sockaddr *)&from, &from_bytes);
    check(len);
    if (len >= 0) {
        delivered++;
        bytes += (unsigned long long)len;
    }
}

static void read_batch(int fd, struct mmsghdr *messages)
{
    int count = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, NULL);
    check(count);
    for (int i = 0; i < count; i++) {
        delivered++;
        bytes += messages[i].msg_len;
    }
}

static void print_account(int fd)
{
    struct tpacket_stats stats = { 0 };
    socklen_t stats_bytes = sizeof(stats);
    getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &stats_bytes);
    printf("{\"delivered\":%llu,\"bytes\":%llu,\"received\":%u,\"dropped\":%u}\n", delivered, bytes, stats.tp_packets,
           stats.tp_drops);
}

int main(int argc, char **argv)
{
    struct mmsghdr messages[BATCH];
    struct iovec vectors[BATCH];
    const char *interface = NULL;
    int batched = 0;
    for (int option; (option = getopt(argc, argv, "i:m")) != -1;) {
        if (option == 'i')
            interface = optarg;
        else
            batched = 1;
    }
    if (interface == NULL) {
        fputs("usage: afpacket_recv -i INTERFACE [-m]\n", stderr);
        return 2;
    }
    memset(messages, 0, sizeof(messages));
    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){ .iov_base = buffers[i], .iov_len = FRAME_BYTES };
        messages[i].msg_hdr = (struct msghdr){ .msg_iov = &vectors[i], .msg_iovlen = 1 };
    }
    int fd = open_socket(interface);
    on_interrupt(note_interrupt);
    say_ready();
    while (!interrupted) {
        if (batched)
            read_batch(fd, messages);
        else
            read_one(fd);
    }
    print_account(fd);
    return 0;
}
