/*
 * Sends frames from an e1000 without a driver at almost no cost in guest instructions: descriptors
 * are written once and reused, so that a burst is one write to the NIC's tail register. The
 * instructions of a metered guest are then those of the receiver. Runs as root in a guest of the
 * lab.
 *
 *   pump PCI-ADDRESS BURSTS FRAMES PAUSE_US SIZE...
 *
 * sends BURSTS bursts of FRAMES frames and sleeps PAUSE_US microseconds after each. Frame sizes,
 * without frame check sequence, are chosen from SIZE... Mark 1 is before the first burst, mark 2
 * after the last pause. Before them it sends WARM_UP such bursts. It reports the number of frames,
 * and how many of them it sent in how many microseconds between the marks. Each SIZE is a flow of
 * its own, also if it is given twice.
 *
 * Registers: Intel's "PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's
 * Manual", chapter 13.
 */
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define DESCRIPTORS 4096 /* of 16 bytes: the most that the NIC takes */
#define HUGE_PAGE (2 << 20) /* physically contiguous */
#define SIZES_MAX 64
#define SIZE_MIN 60
#define SIZE_MAX_BYTES 1514
#define WARM_UP 8
#define BAR_BYTES 0x20000

enum { CTRL = 0x0, IMC = 0xd8, TCTL = 0x400, TIPG = 0x410, TDBAL = 0x3800, TDBAH = 0x3804, TDLEN = 0x3808 };
enum { TDH = 0x3810, TDT = 0x3818 };

struct descriptor {
	uint64_t address;
	uint16_t length;
	uint8_t checksum_offset, command, status, checksum_start;
	uint16_t special;
};

#define END_OF_PACKET 1
#define INSERT_CHECK_SEQUENCE 2

static volatile uint32_t *registers;

#define MARK(low) __asm__ volatile("nopl 0x53540000+" #low "(%%rax)" ::: "memory")

/* Returns the physical address of a locked page: proc(5), /proc/pid/pagemap. */
static uint64_t physical(const void *page)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry;

	if (fd < 0 || pread(fd, &entry, sizeof(entry), (uintptr_t)page / PAGE * sizeof(entry)) != sizeof(entry))
		err(1, "pagemap");
	close(fd);
	return (entry & ((1ULL << 55) - 1)) * PAGE;
}

static void *locked_pages(size_t count)
{
	void *pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1, 0);

	if (pages == MAP_FAILED)
		err(1, "mmap");
	return pages;
}

/* Maps contiguous memory; the guest's script reserves it (vm.nr_hugepages). */
static void *huge_page(void)
{
	void *page = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_HUGETLB, -1, 0);

	if (page == MAP_FAILED)
		err(1, "a huge page (vm.nr_hugepages)");
	return page;
}

static void write_to(const char *device, const char *file, const void *bytes, size_t len, off_t at)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", device, file);
	fd = open(path, O_WRONLY);
	if (fd < 0 || pwrite(fd, bytes, len, at) != (ssize_t)len)
		err(1, "%s", path);
	close(fd);
}

/* Enables memory space and bus mastering (PCI command register) and maps the registers. */
static void open_device(const char *device)
{
	const uint16_t command = 0x0006;
	char path[256];
	int fd;

	write_to(device, "enable", "1", 1, 0);
	write_to(device, "config", &command, sizeof(command), 4);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource0", device);
	fd = open(path, O_RDWR);
	if (fd < 0)
		err(1, "%s", path);
	registers = mmap(NULL, BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (registers == MAP_FAILED)
		err(1, "map %s", path);
}

/* Writes an Ethernet frame with IPv4 and UDP from 10.0.flow.1 to an unused address. */
static void write_frame(uint8_t *frame, size_t size, uint8_t flow)
{
	static const uint8_t head[42] = {
		0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00, /* addresses, type */
		0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, /* IPv4 */
		0x04, 0x00, 0x04, 0x01, /* ports; length and checksum follow */
	};
	uint32_t sum = 0;

	memset(frame, 0xa5, size);
	memcpy(frame, head, sizeof(head));
	frame[28] = flow;
	frame[16] = (size - 14) >> 8, frame[17] = size - 14;
	frame[38] = (size - 34) >> 8, frame[39] = size - 34;
	for (int i = 14; i < 34; i += 2)
		sum += frame[i] << 8 | frame[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~((sum & 0xffff) + (sum >> 16));
	frame[24] = sum >> 8, frame[25] = sum;
}

/* Fills the ring of descriptors; sizes have a pseudo-random order, equal in every run. */
static void fill_ring(char **sizes, int count)
{
	struct descriptor *ring = huge_page();
	uint64_t at[SIZES_MAX];
	uint32_t random = 1;

	for (int i = 0; i < count; i++) {
		int size = atoi(sizes[i]);
		uint8_t *page = locked_pages(1);

		if (size < SIZE_MIN || size > SIZE_MAX_BYTES)
			errx(1, "%s bytes: give %d to %d", sizes[i], SIZE_MIN, SIZE_MAX_BYTES);
		write_frame(page, size, i);
		at[i] = physical(page);
	}
	for (int i = 0; i < DESCRIPTORS; i++) {
		random = random * 1664525 + 1013904223;
		int which = count == 1 ? 0 : (random >> 8) % count;

		ring[i] = (struct descriptor){ .address = at[which],
					       .length = atoi(sizes[which]),
					       .command = END_OF_PACKET | INSERT_CHECK_SEQUENCE };
	}
	registers[TDBAL / 4] = physical(ring);
	registers[TDBAH / 4] = physical(ring) >> 32;
	registers[TDLEN / 4] = DESCRIPTORS * sizeof(struct descriptor);
}

static void start(void)
{
	registers[IMC / 4] = ~0u;
	registers[CTRL / 4] = 1u << 6; /* set link up */
	registers[TIPG / 4] = 10 | 8 << 10 | 6 << 20;
	registers[TDH / 4] = 0;
	registers[TDT / 4] = 0;
	registers[TCTL / 4] = 1 << 1 | 1 << 3 | 0x0f << 4 | 0x40 << 12;
}

static void send_bursts(long bursts, unsigned int frames, long pause_us)
{
	static unsigned int tail;
	const struct timespec pause = { .tv_sec = pause_us / 1000000, .tv_nsec = pause_us % 1000000 * 1000 };

	for (long i = 0; i < bursts; i++) {
		tail = (tail + frames) % DESCRIPTORS;
		registers[TDT / 4] = tail;
		nanosleep(&pause, NULL);
	}
}

static long clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	if (argc < 6 || argc - 5 > SIZES_MAX)
		errx(2, "usage: pump PCI-ADDRESS BURSTS FRAMES PAUSE_US SIZE...");
	long bursts = atol(argv[2]), frames = atol(argv[3]), pause_us = atol(argv[4]);

	if (bursts < 1 || frames < 1 || frames >= DESCRIPTORS || pause_us < 1)
		errx(2, "give at least one burst, 1 to %d frames, and a pause", DESCRIPTORS - 1);
	open_device(argv[1]);
	fill_ring(argv + 5, argc - 5);
	start();
	send_bursts(WARM_UP, frames, pause_us);
	const long start_us = clock_us();

	MARK(1);
	send_bursts(bursts, frames, pause_us);
	MARK(2);
	const long taken_us = clock_us() - start_us;

	printf("pump: %ld frames, %ld of them metered in %ld us\n", (WARM_UP + bursts) * frames, bursts * frames,
	       taken_us);
	return 0;
}
