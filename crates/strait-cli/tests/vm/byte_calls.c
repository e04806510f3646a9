/*
 * Every system call that could treat a PF_ZEROCOPY socket as a stream of bytes. The family moves
 * frames by its rings alone, so that each call must fail or report no bytes: a count of unwritten
 * bytes would leak kernel memory. Runs in a guest of the lab, as root, while frames arrive.
 *
 *   byte_calls IFINDEX
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pf_zerocopy.h"

#define PAGE 4096
#define SLOTS 64
#define BYTES (SLOTS * ZEROCOPY_SLOT_BYTES)
#define ASKED 200
#define GARBAGE_MIB 256

static int fd;
static struct zerocopy_ring *rings[2];
static unsigned int failures;

static void check(const char *call, long returned, int errno_wanted)
{
	int got = returned < 0 ? errno : 0;

	if (returned == (errno_wanted ? -1 : 0) && got == errno_wanted)
		return;
	printf("%s: returned %ld (%s), wanted %s\n", call, returned, strerror(got),
	       errno_wanted ? strerror(errno_wanted) : "0");
	failures++;
}

#define REFUSED(call, errno_wanted) (errno = 0, check(#call, call, errno_wanted))
#define NO_BYTES(call) REFUSED(call, 0)

static void *map(size_t bytes, int flags, int file, off_t offset)
{
	void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, offset);

	if (start == MAP_FAILED)
		err(1, "mmap");
	return start;
}

/* Fills free memory of the kernel with a pattern. It is not zeroed on allocation. */
static void leave_garbage(void)
{
	char *start = map((size_t)GARBAGE_MIB << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(start, 0x5a, (size_t)GARBAGE_MIB << 20);
	munmap(start, (size_t)GARBAGE_MIB << 20);
}

static void open_bound(unsigned int ifindex)
{
	struct sockaddr_zerocopy address = { .szc_family = AF_ZEROCOPY, .szc_ifindex = ifindex };
	static const off_t offsets[2] = { ZEROCOPY_PGOFF_RX_RING, ZEROCOPY_PGOFF_TX_RING };

	fd = socket(PF_ZEROCOPY, SOCK_RAW, 0);
	if (fd < 0)
		err(1, "socket");
	for (int i = 0; i < 2; i++) {
		struct zerocopy_ring_req request = {
			.addr = (uintptr_t)map(BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .slots = SLOTS,
		};

		if (setsockopt(fd, SOL_ZEROCOPY, ZEROCOPY_RX_RING + i, &request, sizeof(request)))
			err(1, "setsockopt");
		rings[i] = map(PAGE, MAP_SHARED, fd, offsets[i]);
	}
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		err(1, "bind");
}

/* Waits until frames are readable. They stay readable, as no slot is returned. */
static void await_frames(void)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };

	if (poll(&poller, 1, 20000) != 1 || poller.revents != POLLIN)
		errx(1, "no frame arrives: %#x", poller.revents);
}

/* The rings' memory holds descriptors and zeroes. */
static void check_shared_memory(void)
{
	for (int i = 0; i < 2; i++) {
		const unsigned char *bytes = (const unsigned char *)rings[i];
		size_t end = sizeof(struct zerocopy_ring) + SLOTS * sizeof(struct zerocopy_desc);

		for (size_t at = 0; at < PAGE; at++) {
			bool padding = at < 128 ? at % 64 >= 4 : at >= end || (at - 128) % 32 >= 24;

			if (padding && bytes[at]) {
				printf("ring %d: byte %zu of the padding is %#x\n", i, at, bytes[at]);
				failures++;
				break;
			}
		}
	}
}

/* A splice that delivers pages is reported with the bytes that were found in them. */
static void splice_to_pipe(void)
{
	unsigned char bytes[PAGE];
	int ends[2];
	long got, seen = 0;

	if (pipe2(ends, O_NONBLOCK))
		err(1, "pipe");
	REFUSED(splice(fd, NULL, ends[1], NULL, ASKED, 0), EINVAL);
	REFUSED(splice(fd, NULL, ends[1], NULL, ASKED, SPLICE_F_NONBLOCK), EINVAL);
	REFUSED(splice(fd, NULL, ends[1], NULL, 16 * PAGE, SPLICE_F_MOVE | SPLICE_F_MORE), EINVAL);
	while ((got = read(ends[0], bytes, sizeof(bytes))) > 0)
		for (long i = 0; i < got; i++)
			seen += bytes[i] != 0;
	if (seen)
		printf("splice: %ld bytes of the kernel's memory in the pipe\n", seen);
	REFUSED(write(ends[1], "x", 1) == 1 ? splice(ends[0], NULL, fd, NULL, 1, 0) : 0, EOPNOTSUPP);
	close(ends[0]);
	close(ends[1]);
}

static void between_files(void)
{
	int file = memfd_create("byte_calls", 0);
	off_t start = 0;

	if (file < 0 || pwrite(file, "content", 7, 0) != 7)
		err(1, "memfd_create");
	REFUSED(sendfile(file, fd, NULL, ASKED), EINVAL);
	REFUSED(sendfile(fd, file, &start, 7), EOPNOTSUPP);
	REFUSED(copy_file_range(fd, NULL, file, NULL, ASKED, 0), EINVAL);
	REFUSED(copy_file_range(file, NULL, fd, NULL, 7, 0), EINVAL);
	close(file);
}

static void receive(void)
{
	char bytes[ASKED], control[64];
	struct sockaddr_zerocopy address = { .szc_ifindex = 0x5a5a5a5a };
	socklen_t address_length = sizeof(address);
	struct iovec parts[2] = { { bytes, 1 }, { bytes + 1, ASKED - 1 } };
	struct msghdr message = {
		.msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof(control),
	};
	struct mmsghdr messages[2] = { { .msg_hdr = message }, { .msg_hdr = message } };

	REFUSED(read(fd, bytes, 1), EOPNOTSUPP);
	REFUSED(readv(fd, parts, 2), EOPNOTSUPP);
	REFUSED(pread(fd, bytes, 1, 0), ESPIPE);
	REFUSED(recv(fd, bytes, 1, 0), EOPNOTSUPP);
	REFUSED(recv(fd, bytes, 1, MSG_PEEK), EOPNOTSUPP);
	REFUSED(recv(fd, NULL, 0, MSG_PEEK), EOPNOTSUPP);
	REFUSED(recv(fd, NULL, 0, MSG_TRUNC), EOPNOTSUPP);
	REFUSED(recv(fd, NULL, 0, MSG_WAITALL), EOPNOTSUPP);
	REFUSED(recv(fd, NULL, 0, MSG_ERRQUEUE), EOPNOTSUPP);
	REFUSED(recv(fd, NULL, 0, MSG_OOB), EOPNOTSUPP);
	REFUSED(recvmsg(fd, &message, 0), EOPNOTSUPP);
	REFUSED(recvmmsg(fd, messages, 2, 0, NULL), EOPNOTSUPP);
	/* Without room for a byte it is the wait for a frame. */
	NO_BYTES(read(fd, bytes, 0));
	NO_BYTES(recv(fd, NULL, 0, 0));
	NO_BYTES(recvfrom(fd, NULL, 0, 0, (struct sockaddr *)&address, &address_length));
	NO_BYTES((long)address_length);
	NO_BYTES((long)(address.szc_ifindex ^ 0x5a5a5a5a));
	message.msg_iovlen = 0;
	NO_BYTES(recvmsg(fd, &message, 0));
	NO_BYTES((long)(message.msg_controllen | message.msg_namelen | message.msg_flags));
}

static void fill(unsigned int slot)
{
	rings[1]->desc[slot].length = 60;
	__atomic_store_n(&rings[1]->desc[slot].state, ZEROCOPY_READABLE, __ATOMIC_RELEASE);
}

static void send_frames(void)
{
	struct iovec part = { (void *)"x", 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	REFUSED(write(fd, "x", 1), EOPNOTSUPP);
	REFUSED(writev(fd, &part, 1), EOPNOTSUPP);
	REFUSED(send(fd, "x", 1, 0), EOPNOTSUPP);
	REFUSED(sendmsg(fd, &message, 0), EOPNOTSUPP);
	REFUSED(sendmsg(fd, &message, MSG_ZEROCOPY), EOPNOTSUPP);
	/* The frames that go out are no bytes of the message either. */
	fill(0);
	fill(1);
	NO_BYTES(send(fd, NULL, 0, 0));
	fill(2);
	message.msg_iovlen = 0;
	NO_BYTES(sendmsg(fd, &message, 0));
	NO_BYTES(send(fd, NULL, 0, 0));
}

/* One ring of one entry, driven by io_uring_enter(2). */
struct uring {
	int fd;
	unsigned char *ring;
	struct io_uring_params params;
	struct io_uring_sqe *entry;
};

static void open_uring(struct uring *uring)
{
	uring->fd = syscall(SYS_io_uring_setup, 1, &uring->params);
	if (uring->fd < 0)
		err(1, "io_uring_setup");
	uring->ring = map(4 * PAGE, MAP_SHARED, uring->fd, IORING_OFF_SQ_RING);
	uring->entry = map(PAGE, MAP_SHARED, uring->fd, IORING_OFF_SQES);
}

static void submit(struct uring *uring, const char *name, struct io_uring_sqe entry, int wanted)
{
	unsigned int *tail = (unsigned int *)(uring->ring + uring->params.sq_off.tail);
	unsigned int *head = (unsigned int *)(uring->ring + uring->params.cq_off.head);
	unsigned int cq_mask = *(unsigned int *)(uring->ring + uring->params.cq_off.ring_mask);
	struct io_uring_cqe *done = (struct io_uring_cqe *)(uring->ring + uring->params.cq_off.cqes);
	int result;

	*uring->entry = entry;
	((unsigned int *)(uring->ring + uring->params.sq_off.array))[0] = 0;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, uring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		err(1, "io_uring_enter");
	result = done[*head & cq_mask].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	if (result != wanted) {
		printf("io_uring %s: %d, wanted %d\n", name, result, wanted);
		failures++;
	}
}

static void by_uring(void)
{
	struct uring uring = { 0 };
	char bytes[ASKED];
	int ends[2];

	if (pipe(ends))
		err(1, "pipe");
	open_uring(&uring);
#define ENTRY(operation, file, length) \
	.opcode = (operation), .fd = (file), .addr = (uintptr_t)bytes, .len = (length)
	submit(&uring, "read", (struct io_uring_sqe){ ENTRY(IORING_OP_READ, fd, 1) }, -EOPNOTSUPP);
	submit(&uring, "recv", (struct io_uring_sqe){ ENTRY(IORING_OP_RECV, fd, 1) }, -EOPNOTSUPP);
	submit(&uring, "recv of nothing", (struct io_uring_sqe){ ENTRY(IORING_OP_RECV, fd, 0) }, 0);
	submit(&uring, "send", (struct io_uring_sqe){ ENTRY(IORING_OP_SEND, fd, 1) }, -EOPNOTSUPP);
	submit(&uring, "send of nothing", (struct io_uring_sqe){ ENTRY(IORING_OP_SEND, fd, 0) }, 0);
	submit(&uring, "splice",
	       (struct io_uring_sqe){ .opcode = IORING_OP_SPLICE, .fd = ends[1], .splice_fd_in = fd, .len = ASKED,
				      .off = -1ull, .splice_off_in = -1ull },
	       -EINVAL);
	/* The kernel selects the buffer, which has room regardless of the entry's length. */
	submit(&uring, "provide buffers",
	       (struct io_uring_sqe){ ENTRY(IORING_OP_PROVIDE_BUFFERS, 1, ASKED), .buf_group = 7 }, 0);
	submit(&uring, "recv to a provided buffer",
	       (struct io_uring_sqe){ .opcode = IORING_OP_RECV, .fd = fd, .flags = IOSQE_BUFFER_SELECT, .buf_group = 7 },
	       -EOPNOTSUPP);
	close(uring.fd);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: byte_calls IFINDEX");
	alarm(60);
	open_bound(atoi(argv[1]));
	check_shared_memory();
	await_frames();
	leave_garbage();
	splice_to_pipe();
	between_files();
	receive();
	send_frames();
	by_uring();
	if (failures)
		errx(1, "%u calls treated the socket as a stream of bytes", failures);
	puts("byte_calls: all refused or without a byte");
	return 0;
}
