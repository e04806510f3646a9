/*
 * Captures on an interface by libpcap and answers each frame with another one in the callback.
 * Runs in a guest of the lab.
 *
 *   inject INTERFACE FRAMES    answers without root; prints a failed answer
 *   inject INTERFACE down      sends on a link that is down, and frames of invalid sizes
 */
#define _GNU_SOURCE
#include <err.h>
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOBODY 65534
#define SIZE_MIN 60
#define SIZE_MAX_BYTES 1514
#define ETHER_TYPE_HIGH 0x88 /* 0x88b5, for experiments */
#define ETHER_TYPE_LOW 0xb5

static pcap_t *handle;
static unsigned int captured, injected;

/* Writes answer number n. Its size differs from those of its neighbours, and its bytes are n. */
static size_t answer(unsigned char *frame, unsigned int n)
{
	static const unsigned char head[14] = {
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, ETHER_TYPE_HIGH, ETHER_TYPE_LOW,
	};
	size_t size = SIZE_MIN + n * 37 % (SIZE_MAX_BYTES - SIZE_MIN + 1);

	memset(frame, n, size);
	memcpy(frame, head, sizeof(head));
	return size;
}

static void take(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes)
{
	unsigned char frame[SIZE_MAX_BYTES];
	size_t size = answer(frame, captured++);

	(void)user, (void)header, (void)bytes;
	if (pcap_inject(handle, frame, size) == (int)size)
		injected++;
	else if (captured == 1)
		printf("not injected: %s\n", pcap_geterr(handle));
}

static void refused(size_t size, const char *words)
{
	unsigned char frame[4096] = { 0 };

	if (pcap_sendpacket(handle, frame, size) == 0)
		errx(1, "a frame of %zu bytes was accepted", size);
	if (!strstr(pcap_geterr(handle), words))
		errx(1, "%zu bytes: \"%s\" instead of \"%s\"", size, pcap_geterr(handle), words);
}

static void run(const char *command)
{
	if (system(command))
		errx(1, "%s", command);
}

/* Refused frames are not sent later, and frames after the link is up are sent. */
static void go_down(const char *interface)
{
	unsigned char frame[SIZE_MAX_BYTES];
	size_t size = answer(frame, 1);
	char command[64];

	refused(13, "Invalid argument");
	refused(1515, "Message too long");
	refused(4000, "Message too long");
	snprintf(command, sizeof(command), "ip link set %s down", interface);
	run(command);
	for (int i = 0; i < 200; i++)
		refused(60, "bring it up");
	snprintf(command, sizeof(command), ". /rig.sh; up %s; sleep 2", interface);
	run(command);
	for (int i = 0; i < 200; i++)
		if (pcap_sendpacket(handle, frame, size))
			errx(1, "after it is up: %s", pcap_geterr(handle));
	puts("refused, then sent");
}

int main(int argc, char **argv)
{
	char errbuf[PCAP_ERRBUF_SIZE];

	if (argc != 3)
		errx(2, "usage: inject INTERFACE FRAMES|down");
	handle = pcap_open_live(argv[1], 65535, 1, 100, errbuf);
	if (!handle)
		errx(1, "%s", errbuf);
	if (!strcmp(argv[2], "down")) {
		go_down(argv[1]);
		return 0;
	}
	if (getuid() == 0 && setuid(NOBODY))
		err(1, "setuid");
	puts("listening");
	fflush(stdout);
	if (pcap_loop(handle, atoi(argv[2]), take, NULL))
		errx(1, "%s", pcap_geterr(handle));
	printf("captured %u, injected %u\n", captured, injected);
	pcap_close(handle);
	return 0;
}
