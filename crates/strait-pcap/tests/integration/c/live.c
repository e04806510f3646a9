/*
 * Uses libpcap's live calls as programs do, and checks their results. Numbered UDP frames to
 * port 20000 come in on the interface all the time; every call that waits must return. Prints the
 * line of the first check that fails.
 *
 *     live INTERFACE FILE
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

pcap_t *handle;
int seen;

void count(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    struct pcap_stat stats;
    (void)bytes;
    CHECK(header->caplen <= header->len && header->caplen <= 96);
    CHECK(pcap_stats(handle, &stats) == 0);
    seen++;
    if (user && seen >= 5)
        pcap_breakloop(handle);
}

static void alarmed(int signal)
{
    (void)signal;
    pcap_breakloop(handle);
}

static void *break_later(void *unused)
{
    usleep(200000);
    pcap_breakloop(handle);
    return unused;
}

void filter(const char *text)
{
    struct bpf_program program;
    CHECK(pcap_compile(handle, &program, text, 1, PCAP_NETMASK_UNKNOWN) == 0);
    CHECK(pcap_setfilter(handle, &program) == 0);
    pcap_freecode(&program);
}

static void before_activation(const char *interface)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    handle = pcap_create("nosuch0", errbuf);
    CHECK(pcap_activate(handle) == PCAP_ERROR_NO_SUCH_DEVICE);
    pcap_close(handle);
    handle = pcap_create(interface, errbuf);
    CHECK(handle != NULL);
    CHECK(pcap_dispatch(handle, 1, count, NULL) == PCAP_ERROR_NOT_ACTIVATED);
    CHECK(pcap_set_snaplen(handle, 96) == 0);
    CHECK(pcap_set_promisc(handle, 1) == 0);
    CHECK(pcap_set_timeout(handle, 1000) == 0);
    CHECK(pcap_set_buffer_size(handle, 1 << 20) == 0);
    CHECK(pcap_set_tstamp_precision(handle, PCAP_TSTAMP_PRECISION_NANO) == 0);
    CHECK(pcap_set_tstamp_precision(handle, 7) == PCAP_ERROR_TSTAMP_PRECISION_NOTSUP);
    CHECK(pcap_activate(handle) == 0);
    CHECK(pcap_activate(handle) == PCAP_ERROR_ACTIVATED);
    CHECK(pcap_set_snaplen(handle, 60) == PCAP_ERROR_ACTIVATED);
    CHECK(pcap_get_tstamp_precision(handle) == PCAP_TSTAMP_PRECISION_NANO);
    CHECK(pcap_snapshot(handle) == 96);
    CHECK(pcap_datalink(handle) == DLT_EN10MB);
}

static void filters(void)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    struct bpf_program program;
    CHECK(pcap_compile(handle, &program, "tcp prot 80", 1, 0) == PCAP_ERROR);
    CHECK(strstr(pcap_geterr(handle), "syntax error") != NULL);
    filter("tcp port 9");
    usleep(20000);
    seen = 0;
    CHECK(pcap_setnonblock(handle, 1, errbuf) == 0);
    CHECK(pcap_dispatch(handle, -1, count, NULL) == 0 && seen == 0);
    CHECK(pcap_setnonblock(handle, 0, errbuf) == 0);
    filter("inbound and udp port 20000");
}

static void reading(void)
{
    struct pcap_pkthdr *header, copy;
    const u_char *bytes;
    seen = 0;
    CHECK(pcap_loop(handle, 3, count, NULL) == 0 && seen == 3);
    CHECK(pcap_dispatch(handle, 2, count, NULL) > 0 && seen <= 5);
    CHECK(pcap_next_ex(handle, &header, &bytes) == 1);
    CHECK(header->caplen == 60 && bytes[12] == 8 && bytes[23] == 17);
    CHECK(header->ts.tv_usec < 1000000000);
    CHECK(pcap_next(handle, &copy) != NULL && copy.len == 60);
    seen = 0;
    CHECK(pcap_loop(handle, -1, count, (u_char *)"break") == PCAP_ERROR_BREAK && seen >= 5);
}

static void breaking(void)
{
    pthread_t thread;
    filter("tcp port 9");
    signal(SIGALRM, alarmed);
    ualarm(200000, 0);
    CHECK(pcap_loop(handle, -1, count, NULL) == PCAP_ERROR_BREAK);
    CHECK(pthread_create(&thread, NULL, break_later, NULL) == 0);
    CHECK(pcap_loop(handle, -1, count, NULL) == PCAP_ERROR_BREAK);
    pthread_join(thread, NULL);
    filter("udp port 20000");
}

static void the_rest(const char *file)
{
    u_char frame[60] = { 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5 };
    struct pcap_stat stats;
    pcap_dumper_t *dumper = pcap_dump_open(handle, file);
    CHECK(dumper != NULL);
    CHECK(pcap_loop(handle, 4, pcap_dump, (u_char *)dumper) == 0);
    pcap_dump_close(dumper);
    dumper = pcap_dump_open_append(handle, file);
    CHECK(dumper != NULL);
    CHECK(pcap_loop(handle, 2, pcap_dump, (u_char *)dumper) == 0);
    pcap_dump_close(dumper);
    dumper = pcap_dump_fopen(handle, fopen("/dev/null", "w"));
    CHECK(dumper != NULL);
    pcap_dump_close(dumper);
    CHECK(pcap_dump_open(handle, "/nosuch/directory/file") == NULL);
    CHECK(strstr(pcap_geterr(handle), "/nosuch/directory/file") != NULL);
    CHECK(pcap_inject(handle, frame, sizeof(frame)) == sizeof(frame));
    CHECK(pcap_sendpacket(handle, frame, sizeof(frame)) == 0);
    CHECK(pcap_setfilter(handle, NULL) == PCAP_ERROR || getenv("STRAIT_PATH") == NULL);
    CHECK(pcap_setdirection(handle, PCAP_D_IN) == 0);
    CHECK(pcap_loop(handle, 1, count, NULL) == 0);
    CHECK(pcap_stats(handle, &stats) == 0 && stats.ps_recv > 0 && stats.ps_drop == 0);
}

/* Counts from before a change of the filter are kept. */
static void statistics(void)
{
    struct pcap_stat before, after;
    CHECK(pcap_loop(handle, 20, count, NULL) == 0);
    CHECK(pcap_stats(handle, &before) == 0 && before.ps_recv >= 20);
    filter("tcp port 9");
    CHECK(pcap_stats(handle, &after) == 0 && after.ps_recv >= before.ps_recv);
    filter("udp port 20000");
    CHECK(pcap_loop(handle, 20, count, NULL) == 0);
    CHECK(pcap_stats(handle, &after) == 0 && after.ps_recv >= 40);
}

static void second_handle(const char *interface)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    struct pcap_pkthdr header;
    pcap_t *first = handle;
    handle = pcap_open_live(interface, 96, 1, 1000, errbuf);
    CHECK(handle != NULL);
    CHECK(pcap_next(handle, &header) != NULL && header.ts.tv_usec < 1000000);
    pcap_close(handle);
    handle = pcap_open_live("nosuch0", 96, 1, 1000, errbuf);
    CHECK(handle == NULL && strstr(errbuf, "nosuch0") != NULL);
    handle = first;
    CHECK(pcap_loop(handle, 1, count, NULL) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    names(argv[1]);
    options_before_activation(argv[1]);
    before_activation(argv[1]);
    options_after_activation();
    filters();
    reading();
    breaking();
    waiting();
    statistics();
    the_rest(argv[2]);
    if (getenv("STRAIT_PATH") == NULL || strcmp(getenv("STRAIT_PATH"), "xdp") != 0)
        second_handle(argv[1]);
    pcap_close(handle);
    puts("all hold");
    return 0;
}
