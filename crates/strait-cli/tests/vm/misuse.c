/*
 * Malicious and wrong uses of PF_ZEROCOPY. Runs in a guest of the lab, as root.
 *
 *   misuse rules IFINDEX          every error that pf_zerocopy.h documents
 *   misuse fuzz IFINDEX SEED N    N random calls on sockets with constantly overwritten rings
 *   misuse after IFINDEX          pages freed by close() under traffic are not written to
 *   misuse elsewhere IFINDEX      an interface of another network namespace is inaccessible
 *   misuse nobody IFINDEX         it is inaccessible for root of a user namespace
 *   misuse as none|raw PROGRAM... runs PROGRAM without root, with no capability or CAP_NET_RAW
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pf_zerocopy.h"

#define PAGE 4096
#define SOCKETS 4
#define SLOTS 64
#define BYTES (SLOTS * ZEROCOPY_SLOT_BYTES)
#define PATTERN 0x5a
#define NOBODY 65534
#define DEADLINE_MS 120000 /* for a frame: on a busy machine its sender starts slowly */

static unsigned int ifindex;

#define REFUSED(call, errno_wanted)                                                        \
	do {                                                                               \
		errno = 0;                                                                 \
		if ((call) != -1 || errno != (errno_wanted))                               \
			errx(1, "%s: %s, wanted %s", #call, strerror(errno), strerror(errno_wanted)); \
	} while (0)
#define DONE(call)                          \
	do {                                \
		if ((call) == -1)           \
			err(1, "%s", #call); \
	} while (0)

static int open_socket(void)
{
	int fd = socket(PF_ZEROCOPY, SOCK_RAW | SOCK_NONBLOCK, 0);

	DONE(fd);
	return fd;
}

static void *buffer(size_t bytes)
{
	void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED)
		err(1, "mmap");
	return start;
}

static void *remade(void *start)
{
	munmap(start, 2 * BYTES);
	return buffer(2 * BYTES);
}

static int set_ring(int fd, int option, void *addr, unsigned int slots)
{
	struct zerocopy_ring_req request = { .addr = (uintptr_t)addr, .slots = slots };

	return setsockopt(fd, SOL_ZEROCOPY, option, &request, sizeof(request));
}

static int bind_to_queue(int fd, unsigned int index, unsigned int queue)
{
	struct sockaddr_zerocopy address = {
		.szc_family = AF_ZEROCOPY, .szc_queue = queue, .szc_ifindex = index
	};

	return bind(fd, (struct sockaddr *)&address, sizeof(address));
}

static int bind_to(int fd, unsigned int index)
{
	return bind_to_queue(fd, index, 0);
}

static void refuse_rings(void)
{
	char *start = buffer(2 * BYTES);
	int fd = open_socket();

	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start, 4), EINVAL);
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS - 1), EINVAL);
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start, 2 * ZEROCOPY_SLOTS_MAX), EINVAL);
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start + 1, SLOTS), EINVAL);
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, (void *)-PAGE, SLOTS), EINVAL);
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, NULL, SLOTS), EFAULT);
	REFUSED(set_ring(fd, 99, start, SLOTS), ENOPROTOOPT);
	/* Memory that is shorter than its slots, and read-only memory. */
	DONE(munmap(start + BYTES / 2, BYTES / 2));
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS), EFAULT);
	start = remade(start);
	DONE(mprotect(start, BYTES, PROT_READ));
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS), EFAULT);
	start = remade(start);
	REFUSED(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0, EINVAL);
	DONE(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS));
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start + BYTES, SLOTS), EBUSY);
	REFUSED(mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0, EINVAL);
	close(fd);
	munmap(start, 2 * BYTES);
}

static void refuse_binds(void)
{
	int fd = open_socket(), second = open_socket();
	void *start = buffer(BYTES);

	REFUSED(bind_to(fd, ifindex), EINVAL); /* no ring */
	DONE(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS));
	DONE(set_ring(second, ZEROCOPY_RX_RING, start, SLOTS));
	REFUSED(bind_to(fd, 12345), ENODEV);
	REFUSED(bind_to(fd, 1), EOPNOTSUPP); /* the loopback */
	REFUSED(shutdown(fd, SHUT_RDWR), ENOTCONN);
	REFUSED(bind_to_queue(fd, ifindex, ZEROCOPY_SLOTS_MAX), EINVAL);
	REFUSED(bind_to_queue(fd, ifindex, 65535), EINVAL);
	DONE(bind_to(fd, ifindex));
	REFUSED(bind_to(fd, ifindex), EINVAL);
	REFUSED(bind_to(second, ifindex), EBUSY);
	REFUSED(recv(fd, NULL, 0, 0), EAGAIN);
	REFUSED(send(fd, NULL, 0, 0), ENOTCONN); /* no transmit ring */
	REFUSED(send(fd, "x", 1, 0), EOPNOTSUPP);
	DONE(shutdown(fd, SHUT_RDWR));
	DONE(bind_to(second, ifindex));
	close(fd);
	close(second);
	munmap(start, BYTES);
}

static int polled(int fd)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN | POLLRDHUP };

	DONE(poll(&poller, 1, 0));
	return poller.revents;
}

/* Waits until a process waits in a call. */
static void await_sleep(pid_t pid)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			errx(1, "read %s", path);
		fclose(file);
	}
}

/* Calls on a socket without a device must not block. An alarm ends a blocked one. */
static void refuse_to_wait(void)
{
	int fd = socket(PF_ZEROCOPY, SOCK_RAW, 0);
	void *start = buffer(2 * BYTES);
	pid_t child;

	DONE(fd);
	alarm(DEADLINE_MS / 1000);
	DONE(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS));
	DONE(set_ring(fd, ZEROCOPY_TX_RING, (char *)start + BYTES, SLOTS));
	REFUSED(recv(fd, NULL, 0, 0), ENOTCONN);
	REFUSED(send(fd, NULL, 0, 0), ENOTCONN);
	if (polled(fd) != (POLLHUP | POLLRDHUP))
		errx(1, "poll before bind: %#x", polled(fd));
	/* Twice: bind() works again after each shutdown(). */
	for (int round = 0; round < 2; round++) {
		DONE(bind_to(fd, ifindex));
		if (polled(fd) & ~POLLIN)
			errx(1, "poll after bind: %#x", polled(fd));
		if (send(fd, NULL, 0, 0) != 0)
			err(1, "send nothing");
		child = fork();
		DONE(child);
		if (child == 0) {
			await_sleep(getppid());
			DONE(shutdown(fd, SHUT_RDWR));
			_exit(0);
		}
		/* Ended by frames or by shutdown(). */
		DONE(recv(fd, NULL, 0, 0));
		DONE(waitpid(child, NULL, 0));
		DONE(recv(fd, NULL, 0, 0));
		REFUSED(send(fd, NULL, 0, MSG_NOSIGNAL), EPIPE);
		if ((polled(fd) & ~POLLIN) != (POLLHUP | POLLRDHUP))
			errx(1, "poll after shutdown: %#x", polled(fd));
	}
	alarm(0);
	close(fd);
	munmap(start, 2 * BYTES);
}

static struct zerocopy_statistics statistics_of(int fd)
{
	struct zerocopy_statistics statistics;
	socklen_t length = sizeof(statistics);

	DONE(getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length));
	return statistics;
}

/* An invalid length is refused, and the slot can be used again. */
static void refuse_lengths(void)
{
	struct zerocopy_ring *ring;
	unsigned char *start = buffer(BYTES);
	int fd = open_socket();

	DONE(set_ring(fd, ZEROCOPY_TX_RING, start, SLOTS));
	ring = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ZEROCOPY_PGOFF_TX_RING);
	DONE(ring == MAP_FAILED ? -1 : bind_to(fd, ifindex));
	for (unsigned int length = 0; length < 70000; length += 1 + length / 3) {
		if (length >= 14 && length <= 1518)
			continue;
		ring->desc[0].length = length;
		__atomic_store_n(&ring->desc[0].state, ZEROCOPY_READABLE, __ATOMIC_RELEASE);
		REFUSED(send(fd, NULL, 0, 0), EINVAL);
	}
	/* The shortest frame is filled up with zeros to the least length of Ethernet. */
	memset(start, 0xff, 64);
	ring->desc[0].length = 14;
	DONE(send(fd, NULL, 0, 0));
	for (int byte = 14; byte < 64; byte++)
		if (start[byte] != (byte < 60 ? 0 : 0xff))
			errx(1, "byte %d of a short frame is %d", byte, start[byte]);
	alarm(DEADLINE_MS / 1000);
	while (statistics_of(fd).tx_frames != 1) {
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
		DONE(send(fd, NULL, 0, 0)); /* which looks how far the NIC has come */
	}
	close(fd);
	munmap(ring, PAGE);
	munmap(start, BYTES);
}

static void refuse_questions(void)
{
	struct zerocopy_statistics statistics;
	socklen_t length = sizeof(statistics);
	int fd = open_socket();

	REFUSED(getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_RX_RING, &statistics, &length), ENOPROTOOPT);
	REFUSED(getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, NULL, &length), EFAULT);
	length = -1;
	REFUSED(getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length), EINVAL);
	/* A shorter structure of an older program is filled up to its length. */
	memset(&statistics, PATTERN, sizeof(statistics));
	length = offsetof(struct zerocopy_statistics, rx_errors);
	DONE(getsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length));
	if (length != 16 || statistics.rx_no_buffer || statistics.rx_errors >> 56 != PATTERN)
		errx(1, "a short structure was filled wrongly");
	close(fd);
}

static void refuse_users(void)
{
	const struct rlimit none = { 0, 0 };
	void *start = buffer(BYTES);
	int fd = open_socket();

	DONE(setrlimit(RLIMIT_MEMLOCK, &none));
	DONE(setuid(NOBODY)); /* which drops every capability */
	REFUSED(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS), ENOBUFS);
	REFUSED(socket(PF_ZEROCOPY, SOCK_RAW, 0), EPERM);
}

/* The interface is in another network namespace. */
static void reach_from_elsewhere(void)
{
	int fd = open_socket();

	DONE(set_ring(fd, ZEROCOPY_RX_RING, buffer(BYTES), SLOTS));
	REFUSED(bind_to(fd, ifindex), ENODEV);
}

/* An unprivileged user with all capabilities in a new user namespace. */
static void reach_as_nobody(void)
{
	int fd, status;

	DONE(setuid(NOBODY));
	if (fork() == 0) {
		DONE(unshare(CLONE_NEWUSER));
		REFUSED(socket(PF_ZEROCOPY, SOCK_RAW, 0), EPERM);
		exit(0);
	}
	if (wait(&status) < 0 || status)
		errx(1, "a user namespace alone gives access to the network");
	DONE(unshare(CLONE_NEWUSER | CLONE_NEWNET));
	fd = open_socket();
	DONE(set_ring(fd, ZEROCOPY_RX_RING, buffer(BYTES), SLOTS));
	REFUSED(bind_to(fd, ifindex), ENODEV);
}

static void run_as_nobody(bool raw, char **command)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	const __u32 kept = raw ? 1 << CAP_NET_RAW : 0;
	const struct __user_cap_data_struct capabilities[2] = { { kept, kept, kept } };

	DONE(prctl(PR_SET_KEEPCAPS, 1));
	DONE(setgroups(0, NULL));
	DONE(setgid(NOBODY));
	DONE(setuid(NOBODY));
	DONE(syscall(SYS_capset, &header, capabilities));
	if (raw)
		DONE(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_RAW, 0, 0));
	execvp(command[0], command);
	err(1, "%s", command[0]);
}

static uint64_t random_state;

static unsigned int pick(unsigned int below)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (random_state >> 33) % below;
}

struct victim {
	int fd;
	char *start;
	struct zerocopy_ring *rings[2];
};

/* Successful calls of the fuzz. A fuzz in which all calls fail tests nothing. */
static struct {
	unsigned long rings, binds, receives;
	unsigned long long frames, sends;
} done;

static void scribble(struct victim *victim)
{
	struct zerocopy_ring *ring = victim->rings[pick(2)];

	if (!ring)
		return;
	for (unsigned int i = 0; i < 8; i++) {
		struct zerocopy_desc *desc = &ring->desc[pick(SLOTS)];

		switch (pick(5)) {
		case 0: desc->addr = random_state; break;
		case 1: desc->length = pick(4) ? pick(2048) : random_state; break;
		case 2: ring->read = random_state; break;
		case 3: ring->write = random_state; break;
		default: __atomic_store_n(&desc->state, pick(4), __ATOMIC_RELEASE); break;
		}
	}
}

static void map_ring(struct victim *victim, unsigned int which)
{
	void *ring;

	if (victim->rings[which])
		return;
	ring = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, victim->fd,
		    which ? ZEROCOPY_PGOFF_TX_RING : ZEROCOPY_PGOFF_RX_RING);
	if (ring != MAP_FAILED)
		victim->rings[which] = ring;
}

static void note_frames(int fd)
{
	struct zerocopy_statistics statistics = statistics_of(fd);

	done.frames += statistics.rx_frames;
	done.sends += statistics.tx_frames;
}

static void start_over(struct victim *victim)
{
	for (unsigned int i = 0; i < 2; i++)
		if (victim->rings[i])
			munmap(victim->rings[i], PAGE);
	if (victim->fd > 0) {
		note_frames(victim->fd);
		close(victim->fd);
	}
	if (victim->start)
		munmap(victim->start, 2 * BYTES);
	*victim = (struct victim){ .fd = open_socket(), .start = buffer(2 * BYTES) };
}

/* A positive result would be a count of bytes, but recv() and send() move no bytes here. */
static void without_bytes(ssize_t returned)
{
	if (returned > 0)
		errx(1, "%zd unwritten bytes", returned);
}

static void receive(int fd)
{
	char bytes[64];
	ssize_t returned = recv(fd, NULL, 0, MSG_DONTWAIT);

	done.receives += returned == 0;
	without_bytes(returned);
	without_bytes(read(fd, bytes, pick(sizeof(bytes))));
}

/*
 * A process that ends with copies of all sockets and rings. The parent waits for it: a socket that
 * it still holds would keep its interface, which the next case binds.
 */
static void end_in_child(void)
{
	pid_t child = syscall(SYS_fork);

	DONE(child);
	if (child == 0)
		_exit(0);
	DONE(waitpid(child, NULL, 0));
}

/* What a filter loads: bytes in the frame, beyond its end, and what the kernel knows about it. */
static unsigned int load_offset(void)
{
	if (pick(2))
		return (const unsigned int[]){ random_state, SKF_NET_OFF, SKF_LL_OFF }[pick(3)] + pick(2100);
	return pick(3) ? pick(80) : SKF_AD_OFF + 4 * pick(16);
}

/* Filters that accept and reject, some by the EtherType. The kernel refuses unknown offsets. */
static void set_filter(int fd)
{
	bool by_type = !pick(3);
	struct sock_filter code[] = {
		BPF_STMT(by_type ? BPF_JMP | BPF_JA : BPF_LDX | BPF_B | BPF_MSH, by_type ? 0 : load_offset()),
		BPF_STMT(BPF_LD | (by_type ? BPF_H : BPF_W) | (by_type || pick(2) ? BPF_ABS : BPF_IND), by_type ? 12 : load_offset()),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1u << pick(32), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 1), BPF_STMT(BPF_RET | BPF_K, pick(2)),
	};
	struct sock_fprog program = { .len = 5, .filter = code };

	setsockopt(fd, SOL_SOCKET, pick(3) ? SO_ATTACH_FILTER : SO_DETACH_FILTER, &program, sizeof(program));
}

static void misuse(struct victim *victim)
{
	struct pollfd poller = { .fd = victim->fd, .events = POLLIN | POLLOUT };
	struct zerocopy_statistics statistics;
	socklen_t length = pick(64);

	switch (pick(18)) {
	case 0: start_over(victim); break;
	case 1: done.rings += !set_ring(victim->fd, 1 + pick(3), victim->start + pick(2) * BYTES, SLOTS); break;
	case 2: set_ring(victim->fd, 1 + pick(2), victim->start + pick(2 * BYTES), pick(5000)); break;
	case 3: done.binds += !bind_to_queue(victim->fd, pick(3) ? ifindex : pick(5), pick(8) / 6); break;
	case 4: map_ring(victim, pick(2)); break;
	case 5: shutdown(victim->fd, pick(3)); break;
	case 6: getsockopt(victim->fd, SOL_ZEROCOPY, ZEROCOPY_STATISTICS, &statistics, &length); break;
	case 7: madvise(victim->start, 2 * BYTES, MADV_DONTNEED); break;
	case 8: mprotect(victim->start, BYTES, pick(2) ? PROT_READ : PROT_READ | PROT_WRITE); break;
	case 9: end_in_child(); break;
	case 10: receive(victim->fd); break;
	case 11: without_bytes(send(victim->fd, NULL, 0, MSG_DONTWAIT)); break;
	case 12: poll(&poller, 1, 0); break;
	case 13: set_filter(victim->fd); break;
	default: scribble(victim); break;
	}
}

/*
 * Overwrites rings while frames are received and sent. Random calls would not keep a socket bound
 * that long: QEMU's NIC receives nothing in the second after its receiver is started.
 */
static void scribble_in_traffic(struct victim *victims)
{
	struct victim *victim = &victims[pick(SOCKETS)];
	struct pollfd poller = { .events = POLLIN };

	for (unsigned int i = 0; i < SOCKETS; i++)
		start_over(&victims[i]);
	poller.fd = victim->fd;
	DONE(set_ring(victim->fd, ZEROCOPY_RX_RING, victim->start, SLOTS));
	DONE(set_ring(victim->fd, ZEROCOPY_TX_RING, victim->start + BYTES, SLOTS));
	map_ring(victim, 0);
	map_ring(victim, 1);
	DONE(bind_to(victim->fd, ifindex));
	if (poll(&poller, 1, DEADLINE_MS) != 1 || poller.revents != POLLIN)
		errx(1, "no frame arrives during the overwriting: %#x", poller.revents);
	for (unsigned int i = 0; i < SLOTS / 2; i++) {
		victim->rings[1]->desc[i].length = 60;
		__atomic_store_n(&victim->rings[1]->desc[i].state, ZEROCOPY_READABLE, __ATOMIC_RELEASE);
	}
	poller.events = POLLIN | POLLOUT;
	for (unsigned int i = 0; i < 500; i++) {
		receive(victim->fd);
		without_bytes(send(victim->fd, NULL, 0, MSG_DONTWAIT));
		DONE(poll(&poller, 1, 0));
		if (!pick(8))
			set_filter(victim->fd);
		scribble(victim);
		nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
	}
}

static void fuzz(uint64_t seed, long count)
{
	struct victim victims[SOCKETS] = { 0 };

	random_state = seed;
	for (unsigned int i = 0; i < SOCKETS; i++)
		start_over(&victims[i]);
	for (long i = 0; i < count || (!done.sends && i < 20 * count); i++) { /* until one sends */
		if (i % count == count / 2)
			scribble_in_traffic(victims);
		misuse(&victims[pick(SOCKETS)]);
	}
	for (unsigned int i = 0; i < SOCKETS; i++)
		note_frames(victims[i].fd);
	printf("misuse fuzz: %lu rings, %lu binds, %lu receives, %llu sends, %llu frames\n",
	       done.rings, done.binds, done.receives, done.sends, done.frames);
	if (done.rings < (unsigned long)count / 60 || done.binds < (unsigned long)count / 300 ||
	    done.receives < 20 || !done.sends || done.frames < SLOTS / 2)
		errx(1, "too few calls of the fuzz succeeded");
}

/* Closes the socket under traffic. Memory that gets its pages must keep its content. */
static void look_after(void)
{
	for (int round = 0; round < 20; round++) {
		void *start = buffer(BYTES);
		int fd = open_socket();
		struct pollfd poller = { .fd = fd, .events = POLLIN };
		unsigned char *heir;

		DONE(set_ring(fd, ZEROCOPY_RX_RING, start, SLOTS));
		DONE(bind_to(fd, ifindex));
		if (poll(&poller, 1, DEADLINE_MS) != 1)
			errx(1, "no frame arrives");
		munmap(start, BYTES);
		close(fd);
		heir = buffer(4 * BYTES);
		memset(heir, PATTERN, 4 * BYTES);
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
		for (size_t i = 0; i < 4 * BYTES; i++)
			if (heir[i] != PATTERN)
				errx(1, "byte %zu was written to", i);
		munmap(heir, 4 * BYTES);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		errx(2, "usage: misuse rules|fuzz|after|elsewhere|nobody IFINDEX [SEED N]");
	if (!strcmp(argv[1], "as") && argc > 3)
		run_as_nobody(!strcmp(argv[2], "raw"), argv + 3);
	ifindex = atoi(argv[2]);
	if (!strcmp(argv[1], "rules")) {
		refuse_questions();
		refuse_rings();
		refuse_binds();
		refuse_to_wait();
		refuse_lengths();
		refuse_users();
	} else if (!strcmp(argv[1], "fuzz") && argc == 5) {
		fuzz(strtoull(argv[3], NULL, 10), atol(argv[4]));
	} else if (!strcmp(argv[1], "after")) {
		look_after();
	} else if (!strcmp(argv[1], "elsewhere")) {
		reach_from_elsewhere();
	} else if (!strcmp(argv[1], "nobody")) {
		reach_as_nobody();
	} else {
		errx(2, "misuse %s: unknown case", argv[1]);
	}
	printf("misuse %s: done\n", argv[1]);
	return 0;
}
