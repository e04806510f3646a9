/* Prints how calls end while functions of libpcap fail: failing DEVICE [FILTER]. */

#include <pcap/pcap.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    char error[PCAP_ERRBUF_SIZE] = "";
    pcap_t *p = pcap_create(argv[1], error);
    if (!p) {
        printf("create: %s\n", error);
        return 0;
    }
    if (argc < 3) {
        printf("create: a handle\n");
        return 0;
    }
    if (pcap_activate(p) < 0) {
        printf("activate: %s\n", pcap_geterr(p));
        return 0;
    }
    struct bpf_program program;
    int code = pcap_compile(p, &program, argv[2], 1, PCAP_NETMASK_UNKNOWN);
    printf("compile: %s\n", code < 0 ? pcap_geterr(p) : "a program");
    return 0;
}
