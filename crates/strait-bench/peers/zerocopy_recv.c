/*
 * Minimal capture on a PF_ZEROCOPY socket: it counts frames in the slots where the NIC wrote them.
 *
 *     zerocopy_recv -i INTERFACE [-q QUEUE] [-a | -c | -r | -p | -t]
 *     zerocopy_recv -s
 *
 * -c copies each frame into a staging ring, the one copy of D3's applications. -a sets a filter
 * that accepts all frames, -r one that rejects them. -p polls: a guest of the lab counts the
 * instructions of polls that found frames, and after the others the program sleeps, as dpdk_recv
 * does. -s does what -p does, without a socket, for the cost of these sleeps. -t waits until half
 * of the ring is full, for a second at most, as libpcap does by default. Prints one JSON object on
 * SIGINT.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "peer.h"
#include "pf_zerocopy.h"

#define SLOTS 2048
#define RING_BYTES (sizeof(struct zerocopy_ring) + SLOTS * sizeof(struct zerocopy_desc))

static struct zerocopy_ring *ring;
static unsigned long long delivered, bytes;
static char staging[SLOTS][ZEROCOPY_SLOT_BYTES];

static void *map(size_t length, int flags, int fd)
{
    void *start = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (start == MAP_FAILED)
        fail("mmap");
    return start;
}

/* Decides by the first EtherType for experiments (IEEE 802), which no frame has. */
static void filter_all(int fd, unsigned int accepted)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x88b5, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, !accepted),
        BPF_STMT(BPF_RET | BPF_K, accepted),
    };
    struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
        fail("SO_ATTACH_FILTER");
}

static void wait_for_many(int fd)
{
    int frames = SLOTS / 2;
    struct timeval timeout = { .tv_sec = 1 };
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &frames, sizeof(frames)) != 0)
        fail("SO_RCVLOWAT");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) != 0)
        fail("SO_RCVTIMEO");
}

static int open_socket(const char *interface, unsigned int queue)
{
    struct sockaddr_zerocopy address = {
        .szc_family = AF_ZEROCOPY,
        .szc_queue = (unsigned short)queue,
        .szc_ifindex = if_nametoindex(interface),
    };
    struct zerocopy_ring_req request = { .slots = SLOTS };
    int fd = socket(PF_ZEROCOPY, SOCK_RAW, 0);
    if (fd < 0)
        fail("socket");
    request.addr = (uintptr_t)map((size_t)SLOTS * ZEROCOPY_SLOT_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (setsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_RX_RING, &request, sizeof(request)) != 0)
        fail("ZEROCOPY_RX_RING");
    ring = map(RING_BYTES, MAP_SHARED, fd);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        fail("bind");
    return fd;
}

/* Takes all readable frames, and returns their number. */
static unsigned long long take(int copies)
{
    unsigned long long before = delivered;
    unsigned int next = ring->read;
    for (;; next = (next + 1) % SLOTS) {
        struct zerocopy_desc *desc = &ring->desc[next];
        if (__atomic_load_n(&desc->state, __ATOMIC_ACQUIRE) != ZEROCOPY_READABLE)
            break;
        delivered++;
        bytes += desc->length;
        if (copies)
            memcpy(staging[next], (const void *)(uintptr_t)desc->addr, desc->length);
        __atomic_store_n(&desc->state, ZEROCOPY_WRITABLE, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&ring->read, next, __ATOMIC_RELEASE);
    return delivered - before;
}

/*
 * Polls until a signal. The kernel takes the returned slots as it receives frames: all slots are
 * never full here, else a call would have to return them.
 */
static void poll_ring(int copies)
{
    while (!interrupted) {
        MARK(3);
        if (take(copies))
            MARK(4);
        else
            usleep(PAUSE_US);
    }
}

static void wait_and_take(int fd, int copies)
{
    while (!interrupted) {
        if (recv(fd, NULL, 0, 0) < 0 && errno != EINTR && errno != EAGAIN)
            fail("recv");
        take(copies);
    }
}

static int poll_without_socket(void)
{
    ring = map(RING_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    on_interrupt(note_interrupt);
    say_ready();
    poll_ring(0);
    puts("{\"delivered\":0}");
    return 0;
}

static void print_account(int fd)
{
    struct zerocopy_statistics statistics;
    socklen_t length = sizeof(statistics);
    if (getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length) != 0)
        fail("ZEROCOPY_STATISTICS");
    printf("{\"delivered\":%llu,\"bytes\":%llu,\"received\":%llu,\"filtered\":%llu}\n", delivered, bytes,
           (unsigned long long)statistics.rx_frames, (unsigned long long)statistics.rx_filtered);
}

int main(int argc, char **argv)
{
    const char *interface = NULL;
    unsigned int queue = 0;
    int copies = 0, accepts = 0, rejects = 0, polls = 0, waits = 0;
    for (int option; (option = getopt(argc, argv, "i:q:acrpts")) != -1;) {
        switch (option) {
        case 'i': interface = optarg; break;
        case 'q': queue = (unsigned int)atoi(optarg); break;
        case 'a': accepts = 1; break;
        case 'c': copies = 1; break;
        case 'r': rejects = 1; break;
        case 'p': polls = 1; break;
        case 't': waits = 1; break;
        case 's': return poll_without_socket();
        default: return 2;
        }
    }
    if (interface == NULL) {
        fputs("usage: zerocopy_recv -i INTERFACE [-q QUEUE] [-a | -c | -r | -p | -t]\n", stderr);
        return 2;
    }
    int fd = open_socket(interface, queue);
    if (accepts || rejects)
        filter_all(fd, accepts);
    if (waits)
        wait_for_many(fd);
    on_interrupt(note_interrupt);
    say_ready();
    if (polls)
        poll_ring(copies);
    else
        wait_and_take(fd, copies);
    print_account(fd);
    return 0;
}
