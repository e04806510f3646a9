/*
 * Everything at once: nine threads bind, receive, send, filter, overwrite rings, fork, splice, set
 * the interface down, change its queues and try to unload the module. Runs in a guest of the lab,
 * as root, while another program sends frames to the interface.
 *
 *   stress INTERFACE QUEUES SECONDS FRAMES BINDS
 *
 * Ends after SECONDS, and not before FRAMES frames were received (by the module's counters) and
 * BINDS sockets bound. Fails if one of the others never happened. The kernel reports its own errors
 * (KASAN, lockdep, DMA debugging).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pf_zerocopy.h"

#define SLOTS 256
#define BYTES (SLOTS * ZEROCOPY_SLOT_BYTES)
#define RING_BYTES (sizeof(struct zerocopy_ring) + SLOTS * sizeof(struct zerocopy_desc))
#define SOCKETS 4

static const char *interface;
static unsigned int queues;
static atomic_bool over;
static atomic_ulong frames, sent, binds, filters, scribbles, forks, splices, flaps, channels, unloads;

/* Sockets that all threads use; each is replaced by its owner under the lock. */
static struct shared {
	pthread_rwlock_t lock;
	int fd;
	struct zerocopy_ring *rx, *tx;
	char *buffer;
} sockets[SOCKETS];

static unsigned int pick(unsigned int *seed, unsigned int below)
{
	return rand_r(seed) % below;
}

static void nap(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static int new_socket(void)
{
	int fd = socket(PF_ZEROCOPY, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		err(1, "socket");
	return fd;
}

static void *map(size_t length, int flags, int fd, off_t offset)
{
	void *start = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, offset);

	if (start == MAP_FAILED)
		err(1, "mmap");
	return start;
}

static void close_socket(struct shared *shared)
{
	munmap(shared->rx, RING_BYTES);
	munmap(shared->tx, RING_BYTES);
	munmap(shared->buffer, 2 * BYTES);
	close(shared->fd);
}

static void open_socket(struct shared *shared)
{
	struct zerocopy_ring_req request = { .slots = SLOTS };

	shared->fd = new_socket();
	shared->buffer = map(2 * BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	request.addr = (uintptr_t)shared->buffer;
	if (setsockopt(shared->fd, SOL_ZEROCOPY, ZEROCOPY_RX_RING, &request, sizeof(request)) != 0)
		err(1, "receive ring");
	request.addr += BYTES;
	if (setsockopt(shared->fd, SOL_ZEROCOPY, ZEROCOPY_TX_RING, &request, sizeof(request)) != 0)
		err(1, "transmit ring");
	shared->rx = map(RING_BYTES, MAP_SHARED, shared->fd, ZEROCOPY_PGOFF_RX_RING);
	shared->tx = map(RING_BYTES, MAP_SHARED, shared->fd, ZEROCOPY_PGOFF_TX_RING);
}

/* Binds to its queue, or to another one, which may have a socket or not exist. */
static bool bind_socket(struct shared *shared, unsigned int queue)
{
	struct sockaddr_zerocopy address = {
		.szc_family = AF_ZEROCOPY, .szc_queue = queue, .szc_ifindex = if_nametoindex(interface)
	};

	if (bind(shared->fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		return false;
	binds++;
	return true;
}

static void take(struct shared *shared, bool faulty)
{
	unsigned int next = shared->rx->read % SLOTS;

	for (unsigned int i = 0; i < SLOTS; i++, next = (next + 1) % SLOTS) {
		struct zerocopy_desc *desc = &shared->rx->desc[next];

		if (__atomic_load_n(&desc->state, __ATOMIC_ACQUIRE) != ZEROCOPY_READABLE)
			break;
		__atomic_store_n(&desc->state, ZEROCOPY_WRITABLE, __ATOMIC_RELEASE);
	}
	if (!faulty)
		__atomic_store_n(&shared->rx->read, next, __ATOMIC_RELEASE);
}

static void fill(struct shared *shared, unsigned int *seed)
{
	for (unsigned int i = 0; i < 16; i++) {
		struct zerocopy_desc *desc = &shared->tx->desc[pick(seed, SLOTS)];

		if (__atomic_load_n(&desc->state, __ATOMIC_ACQUIRE) != ZEROCOPY_WRITABLE)
			continue;
		desc->length = 60 + pick(seed, 1400);
		__atomic_store_n(&desc->state, ZEROCOPY_READABLE, __ATOMIC_RELEASE);
	}
}

/* Threads 1 to 4: a socket each, bound for a moment; they receive and send. */
static void *use(void *argument)
{
	struct shared *shared = argument;
	unsigned int seed = shared - sockets + 1, queue = (shared - sockets) % queues;

	while (!over) {
		struct zerocopy_statistics statistics;
		socklen_t length = sizeof(statistics);
		struct pollfd poller = { .fd = shared->fd, .events = POLLIN };
		unsigned int rounds = pick(&seed, 4) ? 50 : pick(&seed, 4);

		pthread_rwlock_wrlock(&shared->lock);
		close_socket(shared);
		open_socket(shared);
		pthread_rwlock_unlock(&shared->lock);
		poller.fd = shared->fd;
		bind_socket(shared, pick(&seed, 8) ? queue : pick(&seed, 9));
		for (unsigned int i = 0; i < rounds && !over; i++) {
			poll(&poller, 1, 5);
			take(shared, !pick(&seed, 64));
			if (pick(&seed, 2)) {
				fill(shared, &seed);
				send(shared->fd, NULL, 0, MSG_DONTWAIT | MSG_NOSIGNAL);
			}
		}
		if (!pick(&seed, 3))
			shutdown(shared->fd, SHUT_RDWR);
		if (getsockopt(shared->fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length) == 0) {
			sent += statistics.tx_frames;
			frames += statistics.rx_frames;
		}
	}
	return NULL;
}

static void scribble(struct zerocopy_ring *ring, unsigned int *seed)
{
	struct zerocopy_desc *desc = &ring->desc[pick(seed, SLOTS)];

	switch (pick(seed, 5)) {
	case 0: desc->addr = rand_r(seed); break;
	case 1: desc->length = rand_r(seed); break;
	case 2: ring->read = rand_r(seed); break;
	case 3: ring->write = rand_r(seed); break;
	default: __atomic_store_n(&desc->state, pick(seed, 4), __ATOMIC_RELEASE); break;
	}
	scribbles++;
}

/* Changes the type of a frame, also to that of a tag, while the filter may read it. */
static void rewrite_type(char *frame, unsigned int *seed)
{
	static const unsigned short types[] = { 0x0800, 0x8100, 0x88a8, 0 };

	for (unsigned int at = 12; at <= 16; at += 2)
		*(volatile unsigned short *)(frame + at) = htons(types[pick(seed, 4)]);
}

/* Half of the filters decide by the EtherType alone. */
static void filter(int fd, unsigned int *seed)
{
	static const unsigned short jumps[] = { BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET };
	struct sock_filter load[] = {
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, pick(seed, 100)),
	};
	struct sock_filter code[] = {
		load[pick(seed, 2)],
		BPF_STMT(BPF_JMP | BPF_JA, 0),
		BPF_JUMP(BPF_JMP | jumps[pick(seed, 4)] | BPF_K, 1u << pick(seed, 12), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 1),
		BPF_STMT(BPF_RET | BPF_K, pick(seed, 2)),
	};
	struct sock_fprog program = { .len = 5, .filter = code };
	int value = pick(seed, 2);

	setsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_MODERATION, &value, sizeof(value));
	if (pick(seed, 2))
		filters += setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
	else
		setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &value, sizeof(value));
}

/* Thread 5: other people's rings and filters. */
static void *disturb(void *argument)
{
	unsigned int seed = 50;

	(void)argument;
	while (!over) {
		struct shared *shared = &sockets[pick(&seed, SOCKETS)];

		pthread_rwlock_rdlock(&shared->lock);
		if (!pick(&seed, 20))
			scribble(pick(&seed, 2) ? shared->rx : shared->tx, &seed);
		if (!pick(&seed, 20))
			filter(shared->fd, &seed);
		rewrite_type(shared->buffer + pick(&seed, SLOTS) * ZEROCOPY_SLOT_BYTES, &seed);
		if (!pick(&seed, 50))
			madvise(shared->buffer, 2 * BYTES, MADV_DONTNEED);
		pthread_rwlock_unlock(&shared->lock);
		nap(1);
	}
	return NULL;
}

/* Thread 6: processes with copies of all sockets, also in other namespaces. */
static void *multiply(void *argument)
{
	unsigned int seed = 60;

	(void)argument;
	while (!over) {
		pid_t child = syscall(SYS_fork);

		if (child == 0) {
			if (pick(&seed, 2))
				unshare(CLONE_NEWNET);
			_exit(0);
		}
		if (child > 0 && waitpid(child, NULL, 0) == child)
			forks++;
		pick(&seed, 2);
		nap(50);
	}
	return NULL;
}

/* Thread 7: splice from and to a socket. */
static void *join_pipes(void *argument)
{
	unsigned int seed = 70;
	int ends[2];

	(void)argument;
	if (pipe2(ends, O_NONBLOCK) != 0)
		err(1, "pipe");
	while (!over) {
		struct shared *shared = &sockets[pick(&seed, SOCKETS)];

		pthread_rwlock_rdlock(&shared->lock);
		if (splice(shared->fd, NULL, ends[1], NULL, 4096, SPLICE_F_NONBLOCK) > 0)
			errx(1, "splice returned bytes");
		if (write(ends[1], "x", 1) == 1 && splice(ends[0], NULL, shared->fd, NULL, 1, SPLICE_F_NONBLOCK) != 1)
			(void)!read(ends[0], &(char){ 0 }, 1);
		pthread_rwlock_unlock(&shared->lock);
		splices++;
		nap(2);
	}
	return NULL;
}

static void set_up(int fd, bool up)
{
	struct ifreq request = { 0 };

	strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
	if (ioctl(fd, SIOCGIFFLAGS, &request) != 0)
		err(1, "SIOCGIFFLAGS");
	request.ifr_flags = up ? request.ifr_flags | IFF_UP | IFF_PROMISC : request.ifr_flags & ~IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &request) != 0)
		err(1, "SIOCSIFFLAGS");
}

/* Thread 8: the interface goes down, and its queues change if they have no sockets. */
static void *flap(void *argument)
{
	unsigned int seed = 80;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	(void)argument;
	while (!over) {
		struct ethtool_channels request = {
			.cmd = ETHTOOL_SCHANNELS, .combined_count = 1 + pick(&seed, queues)
		};
		struct ifreq named = { .ifr_data = (char *)&request };

		strncpy(named.ifr_name, interface, IFNAMSIZ - 1);
		set_up(fd, false);
		nap(pick(&seed, 20));
		set_up(fd, true);
		flaps++;
		channels += ioctl(fd, SIOCETHTOOL, &named) == 0;
		request.combined_count = queues;
		ioctl(fd, SIOCETHTOOL, &named);
		nap(5000);
	}
	close(fd);
	return NULL;
}

/* Thread 9: the module stays, because sockets use it. */
static void *unload(void *argument)
{
	(void)argument;
	while (!over) {
		if (syscall(SYS_delete_module, "pf_zerocopy", O_NONBLOCK) == 0)
			errx(1, "the module was unloaded with open sockets");
		unloads++;
		nap(20);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	void *(*const others[])(void *) = { disturb, multiply, join_pipes, flap, unload };
	pthread_t threads[SOCKETS + sizeof(others) / sizeof(others[0])];
	unsigned int count = 0;
	unsigned long frames_min, binds_min;
	int held;

	if (argc != 6)
		errx(2, "usage: stress INTERFACE QUEUES SECONDS FRAMES BINDS");
	interface = argv[1];
	queues = atoi(argv[2]);
	frames_min = strtoul(argv[4], NULL, 10);
	binds_min = strtoul(argv[5], NULL, 10);
	held = new_socket(); /* so that the module always has one */
	for (unsigned int i = 0; i < SOCKETS; i++) {
		pthread_rwlock_init(&sockets[i].lock, NULL);
		open_socket(&sockets[i]);
		pthread_create(&threads[count++], NULL, use, &sockets[i]);
	}
	for (unsigned int i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		pthread_create(&threads[count++], NULL, others[i], NULL);
	nap(atol(argv[3]) * 1000);
	/* On a busy machine it takes longer; the guest has a time limit. */
	while (frames < frames_min || binds < binds_min)
		nap(1000);
	over = true;
	for (unsigned int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	for (unsigned int i = 0; i < SOCKETS; i++)
		close_socket(&sockets[i]);
	close(held);
	printf("stress: %lu frames, %lu sent, %lu binds, %lu filters, %lu scribbles, %lu forks, %lu splices, %lu flaps, "
	       "%lu channels, %lu unloads\n", frames, sent, binds, filters, scribbles, forks, splices, flaps, channels, unloads);
	/* The queues change only if no socket is bound at that moment. */
	if (!sent || !filters || !scribbles || !forks || !splices || !flaps || !unloads)
		errx(1, "something never happened");
	return 0;
}
