/*
 * A libpcap program: counts packets. With -l it also measures their delays to this program, from
 * the generator's stamp and from the packet header's time.
 *
 *     pcap_count -i INTERFACE [-I] [-n] [-t MILLISECONDS] [-s SNAPLEN] [-l]
 *
 * -n requests timestamps in nanoseconds.
 * It runs on stock libpcap, and unchanged on Strait's drop-in. -I is immediate mode; without it
 * libpcap's ring and the read timeout delay packets. It opens the interface like tcpdump, and
 * prints one JSON object on SIGINT.
 */
#include <pcap.h>
#include <unistd.h>

#include "peer.h"

#define DELAYS_MAX (1u << 22)
#define SNAPLEN_DEFAULT 262144
#define TIMEOUT_MS_DEFAULT 1000

struct options {
    const char *interface;
    int immediate, nanoseconds, timeout_ms, snaplen, delays;
};

static pcap_t *handle;
static uint64_t delivered, bytes;

/* Delays in nanoseconds. */
static struct delays {
    uint64_t *ns;
    size_t count;
} since_sent, since_captured;

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

static void record(struct delays *delays, uint64_t from, uint64_t to)
{
    if (delays->count < DELAYS_MAX)
        delays->ns[delays->count++] = to > from ? to - from : 0;
}

static void take_delay(u_char *user, const struct pcap_pkthdr *header, const u_char *frame)
{
    uint64_t now = clock_ns(CLOCK_REALTIME);
    const u_char *probe = frame + ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
    count(user, header, frame);
    if (header->caplen < ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + PROBE_BYTES)
        return;
    if ((probe[0] << 8 | probe[1]) != PROBE_MAGIC)
        return;
    record(&since_sent, big_endian(probe + 10), now);
    /* tv_usec holds nanoseconds, as requested by open_interface. */
    record(&since_captured, (uint64_t)header->ts.tv_sec * NANOSECONDS_PER_S + (uint64_t)header->ts.tv_usec, now);
}

/* Touches the pages now, to avoid page faults in the measured time. */
static void make_room(struct delays *delays)
{
    delays->ns = malloc(DELAYS_MAX * sizeof(delays->ns[0]));
    if (delays->ns == NULL)
        fail("memory for delays");
    memset(delays->ns, 0xff, DELAYS_MAX * sizeof(delays->ns[0]));
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static unsigned long long quantile(const struct delays *delays, double fraction)
{
    if (delays->count == 0)
        return 0;
    size_t rank = (size_t)(fraction * (double)delays->count);
    return delays->ns[rank < delays->count ? rank : delays->count - 1];
}

static void print_delays(const char *name, struct delays *delays)
{
    qsort(delays->ns, delays->count, sizeof(delays->ns[0]), ascending);
    printf(",\"%s\":{\"count\":%zu,\"p50_ns\":%llu,\"p90_ns\":%llu,\"p99_ns\":%llu,\"max_ns\":%llu}", name,
           delays->count, quantile(delays, 0.5), quantile(delays, 0.9), quantile(delays, 0.99), quantile(delays, 1.0));
}

static void print_account(const struct options *options)
{
    struct pcap_stat stats = { 0 };
    pcap_stats(handle, &stats);
    printf("{\"delivered\":%llu,\"bytes\":%llu,\"received\":%u,\"dropped\":%u,\"interface_dropped\":%u",
           (unsigned long long)delivered, (unsigned long long)bytes, stats.ps_recv, stats.ps_drop, stats.ps_ifdrop);
    if (options->delays) {
        print_delays("delay", &since_sent);
        print_delays("captured_delay", &since_captured);
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
    if (options->nanoseconds || options->delays)
        check(pcap_set_tstamp_precision(handle, PCAP_TSTAMP_PRECISION_NANO), "nanoseconds");
    check(pcap_activate(handle), "activate");
}

static struct options parse(int argc, char **argv)
{
    struct options options = { .timeout_ms = TIMEOUT_MS_DEFAULT, .snaplen = SNAPLEN_DEFAULT };
    for (int option; (option = getopt(argc, argv, "i:Int:s:l")) != -1;) {
        switch (option) {
        case 'i': options.interface = optarg; break;
        case 'I': options.immediate = 1; break;
        case 'n': options.nanoseconds = 1; break;
        case 't': options.timeout_ms = atoi(optarg); break;
        case 's': options.snaplen = atoi(optarg); break;
        case 'l': options.delays = 1; break;
        default: exit(2);
        }
    }
    if (options.interface == NULL) {
        fputs("usage: pcap_count -i INTERFACE [-I] [-n] [-t MILLISECONDS] [-s SNAPLEN] [-l]\n", stderr);
        exit(2);
    }
    return options;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    if (options.delays) {
        make_room(&since_sent);
        make_room(&since_captured);
    }
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
