/*
 * Stock libpcap: counts packets, and with -l their delay from the generator's stamp to this program.
 *
 *     pcap_count -i INTERFACE [-I] [-t MILLISECONDS] [-s SNAPLEN] [-l]
 *
 * -I is immediate mode. Without it libpcap's ring and the read timeout decide when packets are handed over. It opens the
 * interface as tcpdump does, and on SIGINT prints one JSON object.
 */
#include <pcap.h>
#include <unistd.h>

#include "peer.h"

#define DELAYS_MAX (1u << 22)
#define SNAPLEN_DEFAULT 262144
#define TIMEOUT_MS_DEFAULT 1000

struct options {
    const char *interface;
    int immediate, timeout_ms, snaplen, delays;
};

static pcap_t *handle;
static uint64_t delivered, bytes;
static uint64_t *delays;
static size_t delays_count;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
    pcap_breakloop(handle);
}

static void count(u_char *user, const struct pcap_pkthdr *header, const u_char *frame)
{
    (void)user;
    (void)frame;
    delivered++;
    bytes += header->caplen;
}

static uint64_t big_endian(const u_char *at)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | at[i];
    return value;
}

static void take_delay(u_char *user, const struct pcap_pkthdr *header, const u_char *frame)
{
    const u_char *probe = frame + ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
    count(user, header, frame);
    if (header->caplen < ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + PROBE_BYTES)
        return;
    if ((probe[0] << 8 | probe[1]) != PROBE_MAGIC || delays_count == DELAYS_MAX)
        return;
    uint64_t sent = big_endian(probe + 10), now = clock_ns(CLOCK_REALTIME);
    delays[delays_count++] = now > sent ? now - sent : 0;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static unsigned long long quantile(double fraction)
{
    if (delays_count == 0)
        return 0;
    size_t rank = (size_t)(fraction * (double)delays_count);
    return delays[rank < delays_count ? rank : delays_count - 1];
}

static void print_account(const struct options *options)
{
    struct pcap_stat stats = { 0 };
    pcap_stats(handle, &stats);
    printf("{\"delivered\":%llu,\"bytes\":%llu,\"received\":%u,\"dropped\":%u,\"interface_dropped\":%u",
           (unsigned long long)delivered, (unsigned long long)bytes, stats.ps_recv, stats.ps_drop, stats.ps_ifdrop);
    if (options->delays) {
        qsort(delays, delays_count, sizeof(delays[0]), ascending);
        printf(",\"delay\":{\"count\":%zu,\"p50_ns\":%llu,\"p90_ns\":%llu,\"p99_ns\":%llu,\"max_ns\":%llu}",
               delays_count, quantile(0.5), quantile(0.9), quantile(0.99), quantile(1.0));
    }
    puts("}");
}

static void check(int status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, pcap_geterr(handle));
        exit(1);
    }
}

static void open_interface(const struct options *options)
{
    char error[PCAP_ERRBUF_SIZE] = "";
    handle = pcap_create(options->interface, error);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    check(pcap_set_snaplen(handle, options->snaplen), "snaplen");
    check(pcap_set_promisc(handle, 1), "promiscuous mode");
    check(pcap_set_timeout(handle, options->timeout_ms), "timeout");
    check(pcap_set_immediate_mode(handle, options->immediate), "immediate mode");
    check(pcap_activate(handle), "activate");
}

static struct options parse(int argc, char **argv)
{
    struct options options = { .timeout_ms = TIMEOUT_MS_DEFAULT, .snaplen = SNAPLEN_DEFAULT };
    for (int option; (option = getopt(argc, argv, "i:It:s:l")) != -1;) {
        switch (option) {
        case 'i': options.interface = optarg; break;
        case 'I': options.immediate = 1; break;
        case 't': options.timeout_ms = atoi(optarg); break;
        case 's': options.snaplen = atoi(optarg); break;
        case 'l': options.delays = 1; break;
        default: exit(2);
        }
    }
    if (options.interface == NULL) {
        fputs("usage: pcap_count -i INTERFACE [-I] [-t MILLISECONDS] [-s SNAPLEN] [-l]\n", stderr);
        exit(2);
    }
    return options;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    if (options.delays && (delays = calloc(DELAYS_MAX, sizeof(delays[0]))) == NULL)
        fail("memory for delays");
    open_interface(&options);
    on_interrupt(interrupt);
    say_ready();
    while (!interrupted) {
        int status = pcap_dispatch(handle, -1, options.delays ? take_delay : count, NULL);
        if (status != PCAP_ERROR_BREAK)
            check(status, "read");
    }
    print_account(&options);
    return 0;
}
