/*
 * A receiver that waits for eight frames (SO_RCVLOWAT) on a PF_ZEROCOPY socket. Runs in a guest of
 * the lab, as root; its script sends the frames.
 *
 *   low_water IFINDEX
 */
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "pf_zerocopy.h"

#define SLOTS 16
#define WANTED 8 /* half of the ring: the most that a socket waits for */
#define RING_BYTES (sizeof(struct zerocopy_ring) + SLOTS * sizeof(struct zerocopy_desc))

static struct zerocopy_ring *ring;
static int fd;

static void check(int status, const char *call)
{
	if (status != 0)
		err(1, "%s", call);
}

static void *map(size_t bytes, int flags, int file)
{
	void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);

	if (start == MAP_FAILED)
		err(1, "mmap");
	return start;
}

static void open_socket(unsigned int ifindex, int wanted)
{
	struct zerocopy_ring_req request = { .slots = SLOTS };
	struct sockaddr_zerocopy address = { .szc_family = AF_ZEROCOPY, .szc_ifindex = ifindex };

	fd = socket(PF_ZEROCOPY, SOCK_RAW, 0);
	if (fd < 0)
		err(1, "socket");
	request.addr = (uintptr_t)map(SLOTS * ZEROCOPY_SLOT_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	check(setsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_RX_RING, &request, sizeof(request)), "ZEROCOPY_RX_RING");
	check(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted)), "SO_RCVLOWAT");
	ring = map(RING_BYTES, MAP_SHARED, fd);
	check(bind(fd, (struct sockaddr *)&address, sizeof(address)), "bind");
}

/* Waits until the module has made so many frames readable, without a call that waits for frames. */
static void await_frames(uint64_t frames)
{
	struct zerocopy_statistics statistics = { 0 };

	while (statistics.rx_frames < frames) {
		socklen_t length = sizeof(statistics);

		check(getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length), "statistics");
		poll(NULL, 0, 10);
	}
}

static void expect_no_wake(void)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };

	if (poll(&poller, 1, 0) != 0)
		errx(1, "poll: %#x", poller.revents);
	if (recv(fd, NULL, 0, MSG_DONTWAIT) != -1 || errno != EAGAIN)
		err(1, "recv");
}

/* Returns the number of readable frames, and their slots. */
static unsigned int take(void)
{
	unsigned int next = ring->read, count = 0;

	while (__atomic_load_n(&ring->desc[next].state, __ATOMIC_ACQUIRE) == ZEROCOPY_READABLE) {
		__atomic_store_n(&ring->desc[next].state, ZEROCOPY_WRITABLE, __ATOMIC_RELEASE);
		next = (next + 1) % SLOTS;
		count++;
	}
	__atomic_store_n(&ring->read, next, __ATOMIC_RELEASE);
	return count;
}

static void expect_wake(unsigned int frames)
{
	unsigned int taken;

	check(recv(fd, NULL, 0, 0), "recv");
	taken = take();
	if (taken != frames)
		errx(1, "%u frames, wanted %u", taken, frames);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: low_water IFINDEX");
	setlinebuf(stdout);
	/* More than half of the ring: the module takes half. */
	open_socket(atoi(argv[1]), SLOTS);
	puts("low_water: bound");
	await_frames(WANTED - 1);
	expect_no_wake();
	puts("low_water: seven wake no one");
	expect_wake(WANTED);
	puts("low_water: eight are received");
	await_frames(WANTED + 3);
	expect_no_wake();
	puts("low_water: three wake no one");
	/* No others will come once the link is down. */
	expect_wake(3);
	puts("low_water: three are received at the end");
	return 0;
}
