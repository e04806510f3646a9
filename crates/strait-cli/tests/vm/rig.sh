# What the scripts of the guests share; busybox's shell.

# up NIC...: brings them up and waits for their links.
up() {
    for nic; do ip link set "$nic" up; done
    for nic; do
        until [ "$(cat "/sys/class/net/$nic/operstate")" = up ]; do sleep 0.1; done
    done
}

# capturing PID: waits until that `strait capture` has its ring: it then drops its capabilities.
capturing() {
    until [ "$(grep CapEff "/proc/$1/status")" != "$(grep CapEff /proc/self/status)" ]; do sleep 0.1; done
}

# Where captures are, and what sends to them.
receiver=eth1
sender=eth0

# take_for_zerocopy: gives eth1, an e1000, to the module pf_zerocopy: it becomes zc0.
take_for_zerocopy() {
    address=$(basename "$(readlink /sys/class/net/eth1/device)")
    echo "$address" >/sys/bus/pci/drivers/e1000/unbind
    insmod /pf_zerocopy.ko
    echo pf_zerocopy >"/sys/bus/pci/devices/$address/driver_override"
    echo "$address" >/sys/bus/pci/drivers_probe
    receiver=zc0
}

# capture NAME ARGUMENT...: captures on the receiver into NAME.pcap, with the ledger in NAME.json; $captured is its process id.
capture() {
    name=$1
    shift
    strait capture -i "$receiver" --json -w "$name.pcap" "$@" >"$name.json" 2>"$name.err" &
    captured=$!
    capturing $captured
    # A driver that sets up its rings anew loses its link, and raises its first interrupts some time after it is back.
    up "$receiver"
    sleep 2
}

# end_capture: ends that capture.
end_capture() {
    kill -INT $captured && wait $captured || { cat *.err; return 1; }
}

# ends NAME WORDS: that capture must end by itself, and fail for the reason WORDS.
ends() {
    if wait $captured; then echo "$1: it did not fail"; return 1; fi
    echo "$1: $(cat "$1.err")"
    grep -q "$2" "$1.err"
}

# says NAME WORDS: waits until that capture has said WORDS.
says() {
    until grep -q "$2" "$1.err"; do sleep 0.1; done
}

# came: packets that the receiver has received so far.
came() {
    cat "/sys/class/net/$receiver/statistics/rx_packets"
}

# refused COMMAND...: must be refused (exit code 3), for a reason in one line.
refused() {
    status=0
    "$@" >refused.out 2>refused.err || status=$?
    echo "refused with $status: $(cat refused.err)"
    [ $status -eq 3 ]
    [ "$(wc -l <refused.err)" -eq 1 ]
}

# unharmed: the kernel has found nothing wrong so far. One that oopses ends the guest (panic_on_oops).
unharmed() {
    if dmesg | grep -E 'WARNING|BUG|Oops|Bad page|stack trace'; then return 1; fi
}

# pinned: pages that are pinned for DMA now.
pinned() {
    cat /proc/sys/vm/stat_refresh
    awk '/nr_foll_pin_acquired/ { a = $2 } /nr_foll_pin_released/ { r = $2 } END { print a - r }' /proc/vmstat
}

# send COUNT SIZES: from the sender, no faster than an emulated receiver can follow.
send() {
    strait generate --output "$sender" --count "$1" --size "$2" --rate 2000 --json >sent.json 2>sent.err
}

# compare NAME PATH [ARGUMENT...]: captures by PATH what reference.pcap has, sent once more: it must be what the ARGUMENTs
# leave of it.
compare() {
    name=$1 path=$2
    shift 2
    capture "$name" --path "$path" "$@"
    strait replay reference.pcap --output "$sender" --rate 2000 --json >sent.json
    sleep 1
    end_capture
    cat "$name.json"
    strait capture -r "$name.pcap" 2>read.err | cut -d' ' -f2- >"$name.text"
    strait capture -r reference.pcap "$@" 2>read.err | cut -d' ' -f2- >reference.text
    cmp reference.text "$name.text"
    echo "$name: $(wc -l <"$name.text") frames alike"
}

# meter NAME COMMAND PUMP BURSTS FRAMES PAUSE_US SIZE...: has COMMAND receive what pump sends; it must receive all of it.
meter() {
    name=$1 command=$2 pump=$3
    shift 3
    up "$receiver"
    if [ -n "$command" ]; then
        # Not every program asks for what is not addressed to it. Without one the NIC takes nothing.
        ip link set "$receiver" promisc on
        opened=$(wc -l </proc/net/packet)
        eval "exec $command" >meter.out 2>meter.err &
        captured=$!
        until [ "$(wc -l </proc/net/packet)" -gt "$opened" ]; do sleep 0.1; done
        up "$receiver"
        sleep 2
    fi
    pumped=$(pump "$pump" "$@")
    if [ -n "$command" ]; then
        # libpcap hands over what is left when its read timeout of a second is over.
        sleep 2
        end_capture
        ip link set "$receiver" promisc off
        frames=$(echo "$pumped" | cut -d' ' -f2)
        grep -qE "\"delivered\": *$frames[,}]|^$frames packets captured" meter.out meter.err || { echo "$name: not $frames frames:"; cat meter.out meter.err; return 1; }
    fi
}
