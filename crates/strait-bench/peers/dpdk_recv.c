/*
 * Minimal receiver with DPDK: it counts frames in the buffers where the NIC wrote them.
 *
 *     dpdk_recv -a PCI-ADDRESS [-c]
 *     dpdk_recv -i INTERFACE [-c]
 *
 * -a: DPDK drives the NIC. -i: the kernel drives it, and DPDK reads an AF_XDP socket (net_af_xdp),
 * without busy polling: its driver waits in poll(2) for frames. -c copies each frame into a staging
 * ring, the one copy of D3's applications.
 *
 * With -a a guest of the lab counts the instructions of polls that found frames: mark 3 is before
 * each poll, mark 4 after those (lab/vm/meter.c). After a poll without a frame the program sleeps,
 * so that emulation does not spend its time on such polls; DPDK's programs poll again at once.
 * Prints one JSON object on SIGINT.
 */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include "peer.h"

#define DESCRIPTORS 2048
#define BUFFERS 8191 /* 2^n - 1, as rte_mempool.h advises */
#define BUFFER_CACHE 256
/*
 * Room for a frame. AF_XDP takes a buffer with its headers as one chunk, of at most a page, and igb
 * needs 2048 bytes behind the headers.
 */
#define BUFFER_BYTES (RTE_PKTMBUF_HEADROOM + 3584)
#define POLL_FRAMES 32
#define STAGING_SLOTS 2048
#define STAGING_BYTES 2048

static unsigned long long delivered, bytes;
static char staging[STAGING_SLOTS][STAGING_BYTES];

static void require(int result, const char *what)
{
    if (result >= 0)
        return;
    errno = -result;
    fail(what);
}

/* `option` is EAL's for `device`. */
static void start_environment(const char *option, const char *device)
{
    char *arguments[] = { "dpdk_recv", "--in-memory", "--no-telemetry", "-l", "0", "--log-level", "error",
                          (char *)option, (char *)device, NULL };
    if (rte_eal_init(sizeof(arguments) / sizeof(arguments[0]) - 1, arguments) < 0) {
        fprintf(stderr, "rte_eal_init: %s\n", rte_strerror(rte_errno));
        exit(1);
    }
    if (rte_eth_dev_count_avail() != 1) {
        fprintf(stderr, "no driver for %s\n", device);
        exit(1);
    }
}

static void start_port(uint16_t port)
{
    struct rte_eth_conf conf = { 0 };
    struct rte_mempool *pool = rte_pktmbuf_pool_create("frames", BUFFERS, BUFFER_CACHE, 0,
                                                       BUFFER_BYTES, SOCKET_ID_ANY);
    if (pool == NULL) {
        fprintf(stderr, "rte_pktmbuf_pool_create: %s\n", rte_strerror(rte_errno));
        exit(1);
    }
    require(rte_eth_dev_configure(port, 1, 1, &conf), "rte_eth_dev_configure");
    uint16_t receive = DESCRIPTORS, send = 256;
    require(rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive, &send), "rte_eth_dev_adjust_nb_rx_tx_desc");
    require(rte_eth_rx_queue_setup(port, 0, receive, SOCKET_ID_ANY, NULL, pool), "rte_eth_rx_queue_setup");
    require(rte_eth_tx_queue_setup(port, 0, send, SOCKET_ID_ANY, NULL), "rte_eth_tx_queue_setup");
    require(rte_eth_dev_start(port), "rte_eth_dev_start");
    require(rte_eth_promiscuous_enable(port), "rte_eth_promiscuous_enable");
}

/* Takes at most POLL_FRAMES frames, and returns their number. */
static unsigned int take(uint16_t port, int copies)
{
    struct rte_mbuf *frames[POLL_FRAMES];
    uint16_t count = rte_eth_rx_burst(port, 0, frames, POLL_FRAMES);
    for (uint16_t i = 0; i < count; i++) {
        if (copies)
            memcpy(staging[delivered % STAGING_SLOTS], rte_pktmbuf_mtod(frames[i], void *), frames[i]->data_len);
        delivered++;
        bytes += frames[i]->pkt_len;
    }
    rte_pktmbuf_free_bulk(frames, count);
    return count;
}

int main(int argc, char **argv)
{
    const char *eal_option = NULL, *device = NULL;
    char socket[128];
    int copies = 0, polls = 1;
    for (int option; (option = getopt(argc, argv, "a:i:c")) != -1;) {
        switch (option) {
        case 'a':
            eal_option = "-a";
            device = optarg;
            break;
        case 'i':
            snprintf(socket, sizeof(socket), "net_af_xdp0,iface=%s,busy_budget=0", optarg);
            eal_option = "--vdev";
            polls = 0;
            device = socket;
            break;
        case 'c': copies = 1; break;
        default: return 2;
        }
    }
    if (device == NULL) {
        fputs("usage: dpdk_recv -a PCI-ADDRESS|-i INTERFACE [-c]\n", stderr);
        return 2;
    }
    start_environment(eal_option, device);
    start_port(0);
    on_interrupt(note_interrupt);
    say_ready();
    while (!interrupted) {
        MARK(3);
        if (take(0, copies))
            MARK(4);
        else if (polls)
            usleep(PAUSE_US);
    }
    printf("{\"delivered\":%llu,\"bytes\":%llu}\n", delivered, bytes);
    rte_eth_dev_stop(0);
    /* Detaches the program of AF_XDP. */
    rte_eth_dev_close(0);
    return 0;
}
