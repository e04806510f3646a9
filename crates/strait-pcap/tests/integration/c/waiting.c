/*
 * Waiting for the handle's descriptor: poll, select and epoll, with and without nonblocking
 * mode, wake for packets and only for them.
 */
#include "check.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

static int wait_by_poll(int fd, int ms)
{
    struct pollfd polled = { .fd = fd, .events = POLLIN };
    return poll(&polled, 1, ms);
}

static int wait_by_select(int fd, int ms)
{
    struct timeval limit = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &limit);
}

static int wait_by_epoll(int fd, int ms)
{
    struct epoll_event event = { .events = EPOLLIN };
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    int found = epoll_wait(set, &event, 1, ms);
    close(set);
    return found;
}

static void wakes_for_packets(int (*wait)(int, int), int nonblocking)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    int fd = pcap_get_selectable_fd(handle);
    CHECK(pcap_setnonblock(handle, nonblocking, errbuf) == 0);
    CHECK(pcap_getnonblock(handle, errbuf) == nonblocking);
    seen = 0;
    for (int turns = 0; seen < 20; turns++) {
        CHECK(turns < 1000);
        CHECK(wait(fd, 2000) == 1);
        CHECK(pcap_dispatch(handle, -1, count, NULL) >= 0);
    }
    CHECK(pcap_setnonblock(handle, 1, errbuf) == 0);
    filter("tcp port 9");
    CHECK(pcap_get_selectable_fd(handle) == fd);
    /* A block that was read before it was full may still cause one wake-up. */
    usleep(300000);
    while (wait(fd, 0) == 1)
        CHECK(pcap_dispatch(handle, -1, count, NULL) == 0);
    CHECK(wait(fd, 100) == 0);
    filter("udp port 20000");
    CHECK(wait(fd, 2000) == 1);
    CHECK(pcap_setnonblock(handle, 0, errbuf) == 0);
}

void waiting(void)
{
    int (*const ways[])(int, int) = { wait_by_poll, wait_by_select, wait_by_epoll };
    CHECK(pcap_get_selectable_fd(handle) >= 0);
    CHECK(pcap_fileno(handle) == pcap_get_selectable_fd(handle));
    CHECK(pcap_get_required_select_timeout(handle) == NULL);
    for (int way = 0; way < 3; way++) {
        wakes_for_packets(ways[way], 1);
        wakes_for_packets(ways[way], 0);
    }
}
