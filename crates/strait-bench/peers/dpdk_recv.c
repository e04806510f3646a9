/*
 * Minimal receiver with DPDK: it counts frames in the buffers where the NIC wrote them.
 *
 *     dpdk_recv -a PCI-ADDRESS [-c]
 *
 * -c copies each frame into a staging ring, the one copy of D3's applications. A guest of the lab
 * counts the instructions of polls that found frames: mark 3 is before each poll, mark 4 after
 * those (lab/vm/meter.c). After a poll without a frame the program sleeps, so that emulation does
 * not spend its time on such polls; DPDK's programs poll again at once. Prints one JSON object on
 * SIGINT.
 */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include "peer.h"

#define DESCRIPTORS 2048
#define BUFFERS 8191 /* 2^n - 1, as rte_mempool.h advises */
#define BUFFER_CACHE 256
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

static void start_environment(const char *device)
{
    char *arguments[] = { "dpdk_recv", "--in-memory", "--no-telemetry", "-l", "0", "--log-level", "error",
                          "-a", (char *)device, NULL };
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
                                                       RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
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
    const char *device = NULL;
    int copies = 0;
    for (int option; (option = getopt(argc, argv, "a:c")) != -1;) {
        switch (option) {
        case 'a': device = optarg; break;
        case 'c': copies = 1; break;
        default: return 2;
        }
    }
    if (device == NULL) {
        fputs("usage: dpdk_recv -a PCI-ADDRESS [-c]\n", stderr);
        return 2;
    }
    start_environment(device);
    start_port(0);
    on_interrupt(note_interrupt);
    say_ready();
    while (!interrupted) {
        MARK(3);
        if (take(0, copies))
            MARK(4);
        else
            usleep(PAUSE_US);
    }
    printf("{\"delivered\":%llu,\"bytes\":%llu}\n", delivered, bytes);
    rte_eth_dev_stop(0);
    return 0;
}
