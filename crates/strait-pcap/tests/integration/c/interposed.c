/* Shared library that replaces functions of libpcap by ones that fail. It is preloaded behind the
   library under test. FAILS names the function that fails. */

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int fails(const char *name)
{
    const char *chosen = getenv("FAILS");
    return chosen && strcmp(chosen, name) == 0;
}

void *pcap_open_dead(int linktype, int snaplen)
{
    void *(*next)(int, int) = (void *(*)(int, int))dlsym(RTLD_NEXT, "pcap_open_dead");
    return fails("pcap_open_dead") ? NULL : next(linktype, snaplen);
}

int pcap_activate(void *p)
{
    int (*next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "pcap_activate");
    return fails("pcap_activate") ? -1 : next(p);
}
