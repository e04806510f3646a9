/*
 * A receiver that waits for eight frames (SO_RCVLOWAT) on a PF_ZEROCOPY socket, and the sender of
 * its frames. Runs in a guest of the lab, as root.
 *
 *   low_water INTERFACE SENDER ROUNDS
 *
 * In each round the receiver takes some frames, and waits for eight others while they arrive. No
 * frame follows, so that a lost wake-up is not hidden by a later one. At the end three frames wait,
 * until the script sets the INTERFACE down.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pf_zerocopy.h"

#define SLOTS 16
#define WANTED 8 /* half of the ring: the most that a socket waits for */
#define RING_BYTES (sizeof(struct zerocopy_ring) + SLOTS * sizeof(struct zerocopy_desc))
#define ETHER_TYPE 0x88b5 /* for experiments: frames without IP arrive in queue 0 */
#define FRAME_BYTES 60
/* Of a round, long enough for a busy machine: an alarm ends it. */
#define DEADLINE_S 120

static struct zerocopy_ring *ring;
static int fd;
static struct sockaddr_ll wire;
static int sender;
static uint64_t sent;
/* Frames of the sender's next turn, and its start. */
static unsigned int due;
static sem_t turn;

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

static void open_socket(const char *interface, int wanted)
{
	struct zerocopy_ring_req request = { .slots = SLOTS };
	struct sockaddr_zerocopy address = {
		.szc_family = AF_ZEROCOPY, .szc_ifindex = if_nametoindex(interface)
	};

	fd = socket(PF_ZEROCOPY, SOCK_RAW, 0);
	if (fd < 0)
		err(1, "socket");
	request.addr = (uintptr_t)map(SLOTS * ZEROCOPY_SLOT_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	check(setsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_RX_RING, &request, sizeof(request)), "ZEROCOPY_RX_RING");
	check(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted)), "SO_RCVLOWAT");
	ring = map(RING_BYTES, MAP_SHARED, fd);
	check(bind(fd, (struct sockaddr *)&address, sizeof(address)), "bind");
}

static void open_sender(const char *interface)
{
	wire = (struct sockaddr_ll){
		.sll_family = AF_PACKET, .sll_protocol = htons(ETHER_TYPE),
		.sll_ifindex = if_nametoindex(interface), .sll_halen = 6,
		.sll_addr = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff },
	};
	sender = socket(AF_PACKET, SOCK_DGRAM, 0);
	if (sender < 0)
		err(1, "packet socket");
}

static void send_frames(unsigned int count)
{
	static const char payload[FRAME_BYTES - 14];

	for (unsigned int i = 0; i < count; i++)
		if (sendto(sender, payload, sizeof(payload), 0, (struct sockaddr *)&wire, sizeof(wire)) < 0)
			err(1, "send");
	sent += count;
}

static void *take_turns(void *rounds)
{
	for (long i = 0; i < *(long *)rounds; i++) {
		while (sem_wait(&turn) != 0)
			;
		send_frames(due);
	}
	return NULL;
}

/* Waits until all sent frames are readable, without a call that waits for frames. */
static void await_frames(void)
{
	struct zerocopy_statistics statistics = { 0 };

	while (statistics.rx_frames < sent) {
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

/* Takes at most @most readable frames, and returns their slots. */
static unsigned int take(unsigned int most)
{
	unsigned int next = ring->read, count = 0;

	while (count < most &&
	       __atomic_load_n(&ring->desc[next].state, __ATOMIC_ACQUIRE) == ZEROCOPY_READABLE) {
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
	taken = take(SLOTS);
	if (taken != frames)
		errx(1, "%u frames, wanted %u", taken, frames);
}

/*
 * Keeps more than half of the ring: a kept frame in place of the last of those that are waited for
 * is no reason to wake, and a new frame is one.
 */
static void keep_frames(void)
{
	unsigned int first = ring->read, next = (first + WANTED + 1) % SLOTS;

	send_frames(WANTED + 1);
	await_frames();
	__atomic_store_n(&ring->read, next, __ATOMIC_RELEASE);
	expect_no_wake();
	send_frames(1);
	await_frames();
	check(recv(fd, NULL, 0, 0), "recv");
	__atomic_store_n(&ring->read, first, __ATOMIC_RELEASE);
	if (take(SLOTS) != WANTED + 2)
		errx(1, "the kept frames are gone");
}

static void *wait_for_all(void *id)
{
	__atomic_store_n((pid_t *)id, gettid(), __ATOMIC_RELEASE);
	check(recv(fd, NULL, 0, 0), "recv");
	return NULL;
}

/* Waits until a thread sleeps: the state in its stat is S (proc_pid_stat(5)). */
static void await_sleep(const pid_t *id)
{
	char path[64], state = 0;

	while (state != 'S') {
		FILE *stat;

		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", __atomic_load_n(id, __ATOMIC_ACQUIRE));
		stat = fopen(path, "r");
		if (stat) {
			if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
				errx(1, "%s", path);
			fclose(stat);
		}
		poll(NULL, 0, 10);
	}
}

/* Lowering the number wakes a process that waits for more frames than are readable. */
static void lower(void)
{
	int few = 3, many = WANTED;
	pthread_t thread;
	pid_t id = 0;

	send_frames(few);
	await_frames();
	expect_no_wake();
	errno = pthread_create(&thread, NULL, wait_for_all, &id);
	check(errno, "thread");
	await_sleep(&id);
	check(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &few, sizeof(few)), "SO_RCVLOWAT");
	errno = pthread_join(thread, NULL);
	check(errno, "thread");
	expect_wake(few);
	check(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &many, sizeof(many)), "SO_RCVLOWAT");
}

/*
 * An edge-triggered epoll does not call the module again. The ring fills up, the process returns
 * all slots, and further frames wake it.
 */
static void wait_by_edges(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int one = 1, many = WANTED, edges = epoll_create1(0);

	check(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one)), "SO_RCVLOWAT");
	check(epoll_ctl(edges, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
	/* The NIC has the last slot only when others are filled. */
	send_frames(SLOTS - 1);
	await_frames();
	send_frames(1);
	await_frames();
	if (epoll_wait(edges, &event, 1, -1) != 1 || take(SLOTS) != SLOTS)
		errx(1, "the ring is not full");
	send_frames(1);
	if (epoll_wait(edges, &event, 1, -1) != 1)
		err(1, "epoll_wait");
	close(edges);
	await_frames();
	expect_wake(1);
	check(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &many, sizeof(many)), "SO_RCVLOWAT");
	puts("low_water: edges are seen");
}

/* Also by poll(2), which waits in another way. */
static void await_others(long round)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };

	if (round % 2 && (poll(&poller, 1, -1) != 1 || poller.revents != POLLIN))
		errx(1, "poll: %#x", poller.revents);
	expect_wake(WANTED);
}

static void race(long rounds)
{
	pthread_t thread;

	sem_init(&turn, 0, 0);
	errno = pthread_create(&thread, NULL, take_turns, &rounds);
	check(errno, "thread");
	for (long round = 0; round < rounds; round++) {
		unsigned int first = round % WANTED, taken = 0;

		alarm(DEADLINE_S);
		due = first + WANTED;
		sem_post(&turn);
		while (taken < first) {
			taken += take(first - taken);
			sched_yield();
		}
		await_others(round);
	}
	errno = pthread_join(thread, NULL);
	check(errno, "thread");
}

static void report_lost_wake_up(int signal)
{
	static const char message[] = "low_water: no wake-up\n";

	(void)signal;
	(void)!write(STDERR_FILENO, message, sizeof(message) - 1);
	_exit(1);
}

int main(int argc, char **argv)
{
	long rounds;

	if (argc != 4)
		errx(2, "usage: low_water INTERFACE SENDER ROUNDS");
	rounds = atol(argv[3]);
	setlinebuf(stdout);
	signal(SIGALRM, report_lost_wake_up);
	alarm(DEADLINE_S);
	open_sender(argv[2]);
	/* More than half of the ring: the module takes half. */
	open_socket(argv[1], SLOTS);
	send_frames(WANTED - 1);
	await_frames();
	expect_no_wake();
	send_frames(1);
	expect_wake(WANTED);
	keep_frames();
	lower();
	wait_by_edges();
	race(rounds);
	alarm(DEADLINE_S);
	send_frames(3);
	await_frames();
	expect_no_wake();
	puts("low_water: three wake no one");
	/* No others will come once the link is down. */
	expect_wake(3);
	puts("low_water: three are received at the end");
	return 0;
}
