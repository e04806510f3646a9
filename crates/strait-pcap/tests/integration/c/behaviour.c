/*
 * Unusual situations: behaviour of programs, threads or the machine that libpcap must handle.
 * Numbered UDP frames to ports 20000 and on come in all the time, unless a case says otherwise.
 * Prints the outcome, in the same words with every libpcap.
 *
 *     behaviour CASE INTERFACE
 */
#include "check.h"
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

pcap_t *handle;
int seen;

static const char *interface;

void count(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    (void)header;
    (void)bytes;
    if (user)
        ++*(int *)user;
    seen++;
}

void filter(const char *text)
{
    struct bpf_program program;
    CHECK(pcap_compile(handle, &program, text, 1, PCAP_NETMASK_UNKNOWN) == 0);
    CHECK(pcap_setfilter(handle, &program) == 0);
    pcap_freecode(&program);
}

static pcap_t *opened(void)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    pcap_t *opened = pcap_open_live(interface, 256, 1, 100, errbuf);
    if (!opened) {
        fprintf(stderr, "%s\n", errbuf);
        exit(1);
    }
    return opened;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The child of a fork continues the capture after its parent closes the handle or exits. */
static void forked(void)
{
    int status;
    handle = opened();
    CHECK(pcap_loop(handle, 10, count, NULL) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(pcap_loop(handle, 50, count, NULL));
    pcap_close(handle);
    handle = NULL;
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d\n", status);
    handle = opened();
    fflush(stdout);
    if (fork() == 0) {
        CHECK(pcap_loop(handle, 50, count, NULL) == 0);
        puts("grandchild done");
        pcap_close(handle);
        exit(0);
    }
    _exit(0);
}

/* Two handles in one thread, each with its own filter. */
static void two_handles(void)
{
    pcap_t *first = handle = opened();
    int ours = 0, theirs = 0;
    filter("udp and ip[37] & 1 = 0");
    pcap_t *second = handle = opened();
    filter("udp and ip[37] & 1 = 1");
    for (int turn = 0; turn < 10; turn++) {
        CHECK(pcap_loop(first, 3, count, (u_char *)&ours) == 0);
        CHECK(pcap_loop(second, 3, count, (u_char *)&theirs) == 0);
    }
    pcap_close(first);
    CHECK(pcap_loop(second, 3, count, (u_char *)&theirs) == 0);
    pcap_close(second);
    printf("%d %d\n", ours, theirs);
}

static void *loop_on_own_handle(void *unused)
{
    pcap_t *own = opened();
    int ours = 0, result = pcap_loop(own, 200, count, (u_char *)&ours);
    pcap_close(own);
    printf("%d %d\n", result, ours);
    return unused;
}

static void two_threads(void)
{
    pthread_t threads[2];
    for (int at = 0; at < 2; at++)
        CHECK(pthread_create(&threads[at], NULL, loop_on_own_handle, NULL) == 0);
    for (int at = 0; at < 2; at++)
        pthread_join(threads[at], NULL);
}

static volatile int breaks, loops;

static void *break_at_random(void *unused)
{
    unsigned seed = 1;
    while (breaks < 200) {
        usleep((useconds_t)rand_r(&seed) % 3000);
        int before = loops;
        breaks++;
        pcap_breakloop(handle);
        /* Two breaks before the loop returns count as one. */
        for (double limit = now() + 10; loops == before && now() < limit;)
            usleep(50);
    }
    return unused;
}

/* Every break ends a loop with PCAP_ERROR_BREAK, while packets come in. */
static void break_races(void)
{
    pthread_t thread;
    handle = opened();
    CHECK(pthread_create(&thread, NULL, break_at_random, NULL) == 0);
    for (int at = 0; at < 200; at++) {
        CHECK(pcap_loop(handle, -1, count, NULL) == PCAP_ERROR_BREAK);
        loops++;
    }
    pthread_join(thread, NULL);
    printf("%d breaks, %d loops\n", breaks, loops);
    pcap_close(handle);
}

static int odd, even;

static void sort(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    (void)user;
    CHECK(header->caplen >= 54);
    *(bytes[14 + 37] & 1 ? &odd : &even) += 1;
}

/* After pcap_setfilter no packet is delivered that the filter rejects, even if many are waiting. */
static void filter_changes(void)
{
    handle = opened();
    for (int turn = 0; turn < 30; turn++) {
        filter(turn % 2 ? "udp and ip[37] & 1 = 1" : "udp and ip[37] & 1 = 0");
        odd = even = 0;
        CHECK(pcap_loop(handle, 20, sort, NULL) == 0);
        CHECK(turn % 2 ? even == 0 && odd == 20 : odd == 0 && even == 20);
    }
    puts("no packet that the filter rejects");
    pcap_close(handle);
}

/* Captures until an error, while the device goes down, comes up or disappears. */
static void until_error(void)
{
    int result;
    handle = opened();
    puts("ready");
    fflush(stdout);
    do {
        seen = 0;
        result = pcap_dispatch(handle, -1, count, NULL);
        if (seen) {
            puts("packets");
            fflush(stdout);
        }
    } while (result >= 0);
    printf("%d %s\n", result, pcap_geterr(handle));
    pcap_close(handle);
}

/* At the first packet, makes all allowed calls on its handle and sets a filter that rejects all. */
static void ask_all(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    static const u_char frame[60] = { 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5 };
    struct pcap_stat stats;
    char errbuf[PCAP_ERRBUF_SIZE];
    (void)user;
    (void)header;
    (void)bytes;
    seen++;
    CHECK(pcap_datalink(handle) == DLT_EN10MB && pcap_snapshot(handle) == 256);
    CHECK(pcap_fileno(handle) >= 0 && pcap_get_selectable_fd(handle) >= 0);
    CHECK(pcap_getnonblock(handle, errbuf) == 1);
    CHECK(pcap_stats(handle, &stats) == 0 && stats.ps_recv >= (unsigned)seen);
    CHECK(pcap_inject(handle, frame, sizeof(frame)) == sizeof(frame));
    filter("tcp port 9");
}

static void break_at_the_third(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    (void)user;
    (void)header;
    (void)bytes;
    if (++seen == 3)
        pcap_breakloop(handle);
}

/* A callback's calls on its own handle take effect with the next packet. */
static void in_callback(void)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    handle = opened();
    filter("udp");
    CHECK(pcap_setnonblock(handle, 1, errbuf) == 0);
    for (double end = now() + 0.3; now() < end; usleep(1000))
        CHECK(pcap_dispatch(handle, -1, ask_all, NULL) >= 0);
    printf("%d before the filter\n", seen);
    CHECK(pcap_setnonblock(handle, 0, errbuf) == 0);
    filter("udp");
    for (int turn = 0; turn < 50; turn++) {
        seen = 0;
        usleep(2000);
        CHECK(pcap_loop(handle, -1, break_at_the_third, NULL) == PCAP_ERROR_BREAK);
        CHECK(seen == 3);
    }
    puts("3 before each break");
    pcap_close(handle);
}

static void pause_once(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    (void)user;
    (void)header;
    (void)bytes;
    if (++seen == 20)
        usleep(2000000);
}

/* A pause of two seconds in a callback, as for a DNS query, loses no packet of light traffic. */
static void slow_callback(void)
{
    struct pcap_stat stats;
    handle = opened();
    CHECK(pcap_loop(handle, 300, pause_once, NULL) == 0);
    CHECK(pcap_stats(handle, &stats) == 0);
    printf("%u dropped\n", stats.ps_drop);
    pcap_close(handle);
}

/* Sending an invalid frame fails, and later frames are sent. */
static void refused_frames(void)
{
    static u_char frame[9000] = { 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5 };
    handle = opened();
    for (int turn = 0; turn < 3; turn++) {
        CHECK(pcap_inject(handle, frame, 5) == PCAP_ERROR);
        CHECK(pcap_inject(handle, frame, sizeof(frame)) == PCAP_ERROR);
        CHECK(pcap_sendpacket(handle, frame, 60) == 0 && pcap_inject(handle, frame, 60) == 60);
    }
    puts("each by itself");
    pcap_close(handle);
}

static int descriptors(void)
{
    int next = dup(0);
    close(next);
    return next;
}

/* Closed handles leave no descriptor open. */
static void many_handles(void)
{
    pcap_close(opened());
    int before = descriptors();
    for (int turn = 0; turn < 30; turn++)
        pcap_close(opened());
    printf("%d more descriptors\n", descriptors() - before);
}

/* Link types on all interfaces: the default, the other one, and one that is refused. */
static void on_any(void)
{
    int *types;
    interface = "any";
    handle = opened();
    int count = pcap_list_datalinks(handle, &types);
    printf("%d of %d: %d %d", pcap_datalink(handle), count, types[0], types[1]);
    printf(", then %d", pcap_set_datalink(handle, DLT_LINUX_SLL2));
    printf(" %d", pcap_datalink(handle));
    printf(" and %d\n", pcap_set_datalink(handle, DLT_EN10MB));
    pcap_free_datalinks(types);
    pcap_close(handle);
}

/* Sets a filter for VLAN tags after the program has dropped its privileges. */
static void tags_without_privilege(void)
{
    handle = opened();
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    filter("vlan 5");
    CHECK(pcap_loop(handle, 5, count, NULL) == 0);
    puts("tagged");
    pcap_close(handle);
}

static void *loop_for_ever(void *unused)
{
    pcap_loop(handle, -1, count, NULL);
    return unused;
}

static void end_thread(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    (void)header;
    (void)bytes;
    pthread_exit(user);
}

static void *loop_to_the_end(void *unused)
{
    pcap_loop(handle, -1, end_thread, NULL);
    return unused;
}

/* Threads that are cancelled in a loop, waiting or running, or that exit in its callback. */
static void ended_threads(void)
{
    pthread_t thread;
    handle = opened();
    for (int turn = 0; turn < 20; turn++) {
        filter(turn % 2 ? "udp" : "tcp port 9");
        CHECK(pthread_create(&thread, NULL, loop_for_ever, NULL) == 0);
        usleep(5000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    }
    filter("udp");
    CHECK(pthread_create(&thread, NULL, loop_to_the_end, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pcap_loop(handle, 5, count, NULL) == 0);
    puts("ended");
    pcap_close(handle);
}

static void activation(void)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    handle = pcap_create(interface, errbuf);
    CHECK(handle != NULL);
    int result = pcap_activate(handle);
    printf("%d %s\n", result, pcap_statustostr(result));
    pcap_close(handle);
    printf("%s\n", pcap_open_live(interface, 256, 1, 100, errbuf) ? "open" : errbuf);
}

/* Monitor mode, which an Ethernet interface does not support. */
static void monitor_mode(void)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    handle = pcap_create(interface, errbuf);
    CHECK(handle != NULL && pcap_set_rfmon(handle, 1) == 0);
    int result = pcap_activate(handle);
    printf("%d %s\n", result, pcap_geterr(handle));
    pcap_close(handle);
}

/* Closes a handle with unread packets, and counts the waits meanwhile. */
static void close_with_unread(void)
{
    struct rusage before, after;
    struct pcap_stat stat = { 0 };
    handle = opened();
    CHECK(pcap_loop(handle, 1, count, NULL) == 0);
    while (stat.ps_recv < 20)
        CHECK(pcap_stats(handle, &stat) == 0);
    getrusage(RUSAGE_SELF, &before);
    pcap_close(handle);
    handle = NULL;
    getrusage(RUSAGE_SELF, &after);
    printf("%s\n", after.ru_nvcsw - before.ru_nvcsw < 100 ? "few waits" : "many waits");
}

/* Children that do not read the capture query its statistics, and exit. */
static void children_that_do_not_read(void)
{
    struct pcap_stat stat;
    int status;
    handle = opened();
    CHECK(pcap_loop(handle, 50, count, NULL) == 0);
    for (int at = 0; at < 3; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(pcap_stats(handle, &stat) == 0);
            if (at == 1)
                pcap_close(handle);
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(pcap_stats(handle, &stat) == 0);
    printf("%s\n", stat.ps_recv >= 50 ? "all counted" : "some forgotten");
    pcap_close(handle);
}

/* A second handle on an open device. */
static void opened_twice(void)
{
    char errbuf[PCAP_ERRBUF_SIZE] = "open";
    handle = opened();
    const char *device = strchr(interface, ':') ? strchr(interface, ':') + 1 : interface;
    pcap_t *second = pcap_open_live(device, 256, 1, 100, errbuf);
    printf("%s\n", second ? "open" : errbuf);
    if (second)
        pcap_close(second);
    pcap_close(handle);
    handle = NULL;
    pcap_close(opened());
}

/* Handles on two devices, `LEFT+RIGHT`. One may be "any", and a prefix selects a path of Strait. */
static void opened_beside(void)
{
    char errbuf[PCAP_ERRBUF_SIZE] = "open";
    char first[64];
    snprintf(first, sizeof(first), "%s", interface);
    char *second = strchr(first, '+');
    CHECK(second);
    *second++ = 0;
    interface = first;
    handle = opened();
    pcap_t *other = pcap_open_live(second, 256, 1, 100, errbuf);
    printf("%s\n", other ? "open" : errbuf);
    if (other)
        pcap_close(other);
    pcap_close(handle);
}

static pthread_barrier_t together;
static pcap_t *racing[2];

static void *activate_one(void *at)
{
    pthread_barrier_wait(&together);
    return pcap_activate(*(pcap_t **)at) == 0 ? at : NULL;
}

/* Two threads activate a handle each on one device, one on a path that takes all packets. */
static void activated_together(void)
{
    static const char *const paths[2] = { "xdp", "v3" };
    char errbuf[PCAP_ERRBUF_SIZE], device[64];
    for (int turn = 0; turn < 20; turn++) {
        pthread_t threads[2];
        int active = 0;
        CHECK(pthread_barrier_init(&together, NULL, 2) == 0);
        for (int at = 0; at < 2; at++) {
            snprintf(device, sizeof(device), "%s:%s", paths[at], interface);
            racing[at] = pcap_create(device, errbuf);
            CHECK(racing[at]);
            CHECK(pthread_create(&threads[at], NULL, activate_one, &racing[at]) == 0);
        }
        for (int at = 0; at < 2; at++) {
            void *is_active;
            CHECK(pthread_join(threads[at], &is_active) == 0);
            active += is_active != NULL;
        }
        printf("%d active\n", active);
        for (int at = 0; at < 2; at++)
            pcap_close(racing[at]);
        CHECK(pthread_barrier_destroy(&together) == 0);
    }
}

/* In a callback, sets a filter with a loop and requests sent packets; the capture continues. */
static void set_once(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
    struct bpf_program program;
    (void)user;
    (void)header;
    (void)bytes;
    if (++seen > 1)
        return;
    CHECK(pcap_compile(handle, &program, "not ip6 protochain 6", 0, PCAP_NETMASK_UNKNOWN) == 0);
    int result = pcap_setfilter(handle, &program);
    printf("%d %s\n", result, result < 0 ? pcap_geterr(handle) : "");
    pcap_freecode(&program);
    result = pcap_setdirection(handle, PCAP_D_OUT);
    printf("%d %s\n", result, result < 0 ? pcap_geterr(handle) : "");
    CHECK(pcap_setdirection(handle, PCAP_D_IN) == 0);
}

static void loop_filter_in_callback(void)
{
    handle = opened();
    int result = pcap_loop(handle, 50, set_once, NULL);
    printf("%d %d seen\n", result, seen);
    pcap_close(handle);
}

static void without_privilege(void)
{
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    activation();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        { "forked", forked },
        { "two-handles", two_handles },
        { "two-threads", two_threads },
        { "break-races", break_races },
        { "filter-changes", filter_changes },
        { "in-callback", in_callback },
        { "slow-callback", slow_callback },
        { "refused-frames", refused_frames },
        { "many-handles", many_handles },
        { "on-any", on_any },
        { "tags-without-privilege", tags_without_privilege },
        { "ended-threads", ended_threads },
        { "until-error", until_error },
        { "activation", activation },
        { "without-privilege", without_privilege },
        { "monitor-mode", monitor_mode },
        { "close-with-unread", close_with_unread },
        { "children-that-do-not-read", children_that_do_not_read },
        { "opened-twice", opened_twice },
        { "opened-beside", opened_beside },
        { "activated-together", activated_together },
        { "loop-filter-in-callback", loop_filter_in_callback },
    };
    CHECK(argc == 3);
    interface = argv[2];
    for (unsigned at = 0; at < sizeof(cases) / sizeof(cases[0]); at++) {
        if (strcmp(argv[1], cases[at].name) == 0) {
            cases[at].run();
            return 0;
        }
    }
    return 2;
}
