/*
 * Minimal capture on an AF_XDP socket in zero-copy mode: it counts frames in the buffers where the
 * NIC wrote them. Its XDP program only redirects every frame to the socket.
 *
 *     afxdp_recv -i INTERFACE [-q QUEUE] [-c]
 *
 * -c copies each frame into a staging ring, the one copy of D3's applications. Prints one JSON
 * object on SIGINT. Without a library: bpf(2), kernel documentation networking/af_xdp.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "peer.h"

#define FRAMES 4096
#define FRAME_BYTES 4096 /* in 2048, less the headroom, igb has room for 1024 only */
#define RING_SLOTS 2048
#define STAGING_BYTES 2048
#define QUEUES_MAX 64

/* Ring of one direction, with this side's copy of its index. */
struct ring {
    uint32_t *producer, *consumer;
    void *slots;
    uint32_t next;
};

static struct ring fill, rx;
static char *frames;
static unsigned long long delivered, bytes;
static char staging[RING_SLOTS][STAGING_BYTES];

static int bpf(enum bpf_cmd command, union bpf_attr *attributes)
{
    long fd = syscall(SYS_bpf, command, attributes, sizeof(*attributes));
    if (fd < 0)
        fail("bpf");
    return (int)fd;
}

/* Creates the map of sockets, and attaches the program: bpf_redirect_map(map, queue, XDP_PASS). */
static int attach_program(unsigned int interface)
{
    union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = QUEUES_MAX };
    int sockets = bpf(BPF_MAP_CREATE, &map);
    struct bpf_insn code[] = {
        { .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = offsetof(struct xdp_md, rx_queue_index) },
        { .code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets },
        { 0 },
        { .code = BPF_ALU | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
        { .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
        { .code = BPF_JMP | BPF_EXIT },
    };
    union bpf_attr program = {
        .prog_type = BPF_PROG_TYPE_XDP,
        .insns = (uintptr_t)code,
        .insn_cnt = sizeof(code) / sizeof(code[0]),
        .license = (uintptr_t)"Dual MIT/GPL",
    };
    union bpf_attr link = { .link_create = { .target_ifindex = interface, .attach_type = BPF_XDP, .flags = XDP_FLAGS_DRV_MODE } };
    link.link_create.prog_fd = (uint32_t)bpf(BPF_PROG_LOAD, &program);
    bpf(BPF_LINK_CREATE, &link);
    return sockets;
}

static void *map(size_t length, int flags, int fd, off_t offset)
{
    void *start = mmap(NULL, length, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, offset);
    if (start == MAP_FAILED)
        fail("mmap");
    return start;
}

static void set(int fd, int option, const void *value, socklen_t length)
{
    if (setsockopt(fd, SOL_XDP, option, value, length) != 0)
        fail("setsockopt");
}

static void map_ring(struct ring *ring, int fd, off_t at, const struct xdp_ring_offset *offsets, size_t slot_bytes)
{
    char *start = map(offsets->desc + RING_SLOTS * slot_bytes, MAP_SHARED, fd, at);
    ring->producer = (uint32_t *)(start + offsets->producer);
    ring->consumer = (uint32_t *)(start + offsets->consumer);
    ring->slots = start + offsets->desc;
}

static int open_socket(unsigned int interface, unsigned int queue)
{
    const int slots = RING_SLOTS;
    struct xdp_umem_reg umem = { .len = FRAMES * FRAME_BYTES, .chunk_size = FRAME_BYTES };
    struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP,
        .sxdp_ifindex = interface,
        .sxdp_queue_id = queue,
        .sxdp_flags = XDP_ZEROCOPY | XDP_USE_NEED_WAKEUP,
    };
    struct xdp_mmap_offsets offsets;
    socklen_t length = sizeof(offsets);
    int fd = socket(AF_XDP, SOCK_RAW, 0);
    if (fd < 0)
        fail("socket");
    frames = map(FRAMES * FRAME_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    umem.addr = (uintptr_t)frames;
    set(fd, XDP_UMEM_REG, &umem, sizeof(umem));
    set(fd, XDP_UMEM_FILL_RING, &slots, sizeof(slots));
    set(fd, XDP_UMEM_COMPLETION_RING, &slots, sizeof(slots));
    set(fd, XDP_RX_RING, &slots, sizeof(slots));
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0)
        fail("XDP_MMAP_OFFSETS");
    map_ring(&fill, fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, sizeof(uint64_t));
    map_ring(&rx, fd, XDP_PGOFF_RX_RING, &offsets.rx, sizeof(struct xdp_desc));
    for (; fill.next < RING_SLOTS; fill.next++)
        ((uint64_t *)fill.slots)[fill.next] = (uint64_t)fill.next * FRAME_BYTES;
    __atomic_store_n(fill.producer, fill.next, __ATOMIC_RELEASE);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        fail("bind");
    return fd;
}

/* Takes all readable frames, and returns their buffers. */
static void take(int copies)
{
    uint32_t end = __atomic_load_n(rx.producer, __ATOMIC_ACQUIRE);
    if (end == rx.next)
        return;
    for (; rx.next != end; rx.next++) {
        const struct xdp_desc *desc = &((struct xdp_desc *)rx.slots)[rx.next % RING_SLOTS];
        delivered++;
        bytes += desc->len;
        if (copies)
            memcpy(staging[rx.next % RING_SLOTS], frames + desc->addr, desc->len);
        ((uint64_t *)fill.slots)[fill.next++ % RING_SLOTS] = desc->addr;
    }
    __atomic_store_n(rx.consumer, rx.next, __ATOMIC_RELEASE);
    __atomic_store_n(fill.producer, fill.next, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
    const char *name = NULL;
    unsigned int queue = 0;
    int copies = 0;
    for (int option; (option = getopt(argc, argv, "i:q:c")) != -1;) {
        switch (option) {
        case 'i': name = optarg; break;
        case 'q': queue = (unsigned int)atoi(optarg); break;
        case 'c': copies = 1; break;
        default: return 2;
        }
    }
    if (name == NULL) {
        fputs("usage: afxdp_recv -i INTERFACE [-q QUEUE] [-c]\n", stderr);
        return 2;
    }
    unsigned int interface = if_nametoindex(name);
    int sockets = attach_program(interface);
    int fd = open_socket(interface, queue);
    union bpf_attr entry = { .map_fd = (uint32_t)sockets, .key = (uintptr_t)&queue, .value = (uintptr_t)&fd };
    bpf(BPF_MAP_UPDATE_ELEM, &entry);
    on_interrupt(note_interrupt);
    say_ready();
    while (!interrupted) {
        struct pollfd poller = { .fd = fd, .events = POLLIN };
        if (poll(&poller, 1, -1) < 0 && errno != EINTR)
            fail("poll");
        take(copies);
    }
    printf("{\"delivered\":%llu,\"bytes\":%llu}\n", delivered, bytes);
    return 0;
}
