# Functions for the scripts in the guests, for busybox's shell.

# monitor COMMAND: passes a command to QEMU's monitor through the I/O port.
monitor() {
    for byte in $(printf '%s\n' "$1" | od -An -v -tu1); do
        printf "\\$(printf %o "$byte")" | dd of=/dev/port bs=1 seek=$((0xe9)) 2>dd.err
    done
}

# up NIC...: sets the NICs up and waits for their links.
up() {
    for nic; do ip link set "$nic" up; done
    for nic; do
        until [ "$(cat "/sys/class/net/$nic/operstate")" = up ]; do sleep 0.1; done
    done
}

# far COMMAND ARGUMENT...: runs a command on the host at the other end of the wire; after `two_hosts`.
far() {
    nsenter -t "$far" -n "$@"
}

# two_hosts: gives eth1 to another host; 10.0.0.1 is this one and 10.0.0.2 the other.
two_hosts() {
    unshare -n sleep 100000 &
    far=$!
    until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
    ip link set eth1 netns $far
    far ip link set lo up
    far ip addr add 10.0.0.2/24 dev eth1
    far ip link set eth1 up
    ip addr add 10.0.0.1/24 dev eth0
    up eth0
    until ping -c 1 -W 1 10.0.0.2 >/dev/null; do :; done
}

# pin_interrupts NIC MASK: lets the processors of MASK, a hexadecimal number, handle the interrupts of a NIC that is up.
pin_interrupts() {
    awk -v nic="$1" '$NF == nic || index($NF, nic "-") == 1 { sub(":", "", $1); print $1 }' /proc/interrupts |
        while read -r interrupt; do echo "$2" >"/proc/irq/$interrupt/smp_affinity"; done
}

# capturing PID: waits until that `strait capture` is open, which is when it drops its capabilities.
capturing() {
    until [ "$(grep CapEff "/proc/$1/status")" != "$(grep CapEff /proc/self/status)" ]; do sleep 0.1; done
}

# NICs of captures and of senders.
receiver=eth1
sender=eth0

# take_for_zerocopy: binds eth1 to the module pf_zerocopy, as zc0.
take_for_zerocopy() {
    address=$(basename "$(readlink /sys/class/net/eth1/device)")
    echo "$address" >/sys/class/net/eth1/device/driver/unbind
    insmod /pf_zerocopy.ko
    echo pf_zerocopy >"/sys/bus/pci/devices/$address/driver_override"
    echo "$address" >/sys/bus/pci/drivers_probe
    receiver=zc0
}

# give_back: returns eth1 from the module pf_zerocopy to its stock driver, with both NICs down.
give_back() {
    killall -q -9 strait misuse || true
    until rmmod pf_zerocopy 2>rmmod.err || grep -q 'No such' rmmod.err; do sleep 0.1; done
    for override in /sys/bus/pci/devices/*/driver_override; do
        if [ "$(cat "$override")" = pf_zerocopy ]; then
            echo >"$override"
            basename "${override%/*}" >/sys/bus/pci/drivers_probe
        fi
    done
    # The NIC receives the frames that QEMU has kept for it.
    up eth0 eth1
    sleep 1
    ip link set eth0 down
    ip link set eth1 down
}

# run_together NAME...: runs the scripts /scripts/NAME one after another, also after one has failed.
run_together() {
    for name; do
        echo "script: start $name"
        mkdir "$HOME/$name"
        cd "$HOME/$name"
        status=0
        sh -eu "/scripts/$name" || status=$?
        echo "script: exit $status"
        give_back
    done
}

# take_for_dpdk: binds the receiver to the kernel's driver that lets DPDK access it; no interface is left.
take_for_dpdk() {
    device=$(readlink -f "/sys/class/net/$receiver/device")
    # A virtio device is on a bus of its own, below the PCI device.
    device=${device%/virtio*}
    address=$(basename "$device")
    echo "$address" >"$device/driver/unbind"
    echo uio_pci_generic >"/sys/bus/pci/devices/$address/driver_override"
    echo "$address" >/sys/bus/pci/drivers_probe
    receiver=
}

# prepare_pump HUGE_PAGES: prepares the program pump, which needs one huge page; DPDK needs more. $pump is the address of its NIC,
# which has no driver, so the receiver is eth0 until it is renamed.
prepare_pump() {
    pump=$(cat /modules/driverless)
    echo "$1" >/proc/sys/vm/nr_hugepages
    ip link set eth0 name eth1
}

# queues COUNT: sets the number of the receiver's queues; it may have that number already.
queues() {
    up "$receiver"
    ethtool -L "$receiver" combined "$1" 2>queues.err || cat queues.err
    set -- "$1" /sys/class/net/"$receiver"/queues/rx-*
    [ $# -eq $(($1 + 1)) ]
}

# promiscuous STATE: lets the receiver take all frames, or not. A program that drives its NIC does it itself.
promiscuous() {
    [ -z "$receiver" ] || ip link set "$receiver" promisc "$1"
}

# capture NAME ARGUMENT...: captures on the receiver into NAME.pcap, with the ledger in NAME.json; $captured is its process id.
capture() {
    name=$1
    shift
    came_before=$(came)
    strait capture -i "$receiver" --json -w "$name.pcap" "$@" >"$name.json" 2>"$name.err" &
    captured=$!
    capturing $captured
    # A driver that allocates its rings again loses its link, and raises its first interrupts some time after the link is up.
    up "$receiver"
    sleep 2
}

# arrived COUNT: waits until the receiver has received so many packets since `capture`, which a filter may have rejected.
arrived() {
    until [ "$(came)" -ge $((came_before + $1)) ]; do sleep 0.1; done
}

# end_capture: ends the capture.
end_capture() {
    kill -INT $captured && wait $captured || { cat *.err; return 1; }
}

# read_kept: receives the frames that QEMU has kept for the receiver while it had none.
read_kept() {
    ip link set "$receiver" promisc on
    strait capture -i "$receiver" --path zerocopy --duration 4 --quiet 2>kept.err
    ip link set "$receiver" promisc off
}

# ends NAME WORDS: waits until the capture ends by itself; it must fail with WORDS in its error.
ends() {
    if wait $captured; then echo "$1: it did not fail"; return 1; fi
    echo "$1: $(cat "$1.err")"
    grep -q "$2" "$1.err"
}

# says NAME WORDS: waits until the capture has printed WORDS.
says() {
    until grep -q "$2" "$1.err"; do sleep 0.1; done
}

# came: prints the number of packets that the receiver has received.
came() {
    cat "/sys/class/net/$receiver/statistics/rx_packets"
}

# refused COMMAND...: runs a command that must be refused (exit code 3) with an error of one line.
refused() {
    status=0
    "$@" >refused.out 2>refused.err || status=$?
    echo "refused with $status: $(cat refused.err)"
    [ $status -eq 3 ]
    [ "$(wc -l <refused.err)" -eq 1 ]
}

# unharmed: fails if the kernel has logged a warning. An oops ends the guest (panic_on_oops).
unharmed() {
    if dmesg | grep -E 'WARNING|BUG:|Oops|Bad page|Call Trace'; then return 1; fi
}

# pinned: prints the number of pages pinned for DMA.
pinned() {
    cat /proc/sys/vm/stat_refresh
    awk '/nr_foll_pin_acquired/ { a = $2 } /nr_foll_pin_released/ { r = $2 } END { print a - r }' /proc/vmstat
}

# send COUNT SIZES: sends frames at a rate that an emulated receiver can handle.
send() {
    strait generate --output "$sender" --count "$1" --size "$2" --rate 2000 --json >sent.json 2>sent.err
}

# compare NAME PATH [ARGUMENT...]: sends reference.pcap again and captures it by PATH with ARGUMENTs. The result must equal
# the packets that strait reads from reference.pcap with ARGUMENTs.
compare() {
    name=$1 path=$2
    shift 2
    capture "$name" --path "$path" "$@"
    strait replay reference.pcap --output "$sender" --rate 2000 --json >sent.json
    sleep 1
    end_capture
    cat "$name.json"
    # Several queues do not keep the order.
    order=cat
    [ ! -e "/sys/class/net/$receiver/queues/rx-1" ] || order=sort
    strait capture -r "$name.pcap" 2>read.err | cut -d' ' -f2- | $order >"$name.text"
    strait capture -r reference.pcap "$@" 2>read.err | cut -d' ' -f2- | $order >reference.text
    cmp reference.text "$name.text"
    echo "$name: $(wc -l <"$name.text") frames alike"
}

# begin_receiver COMMAND: starts a receiver, and waits until it has opened the interface.
begin_receiver() {
    # Not every program sets promiscuous mode. Without a receiver the NIC must drop all frames.
    promiscuous on
    opened=$(wc -l </proc/net/packet)
    # Those of the one before it are ready already.
    rm -f meter.out meter.err
    touch meter.err
    frames=0
    eval "exec $1" >meter.out 2>meter.err &
    captured=$!
    until grep -q ready meter.err || [ "$(wc -l </proc/net/packet)" -gt "$opened" ]; do
        kill -0 $captured || { cat meter.err; return 1; }
        sleep 0.1
    done
    # shellcheck disable=SC2086 # it is empty if no interface is left
    up $receiver
    sleep 2
}

# send_pumped BURSTS FRAMES PAUSE_US SIZE...: sends to the receiver, and adds the number of frames to $frames.
send_pumped() {
    pumped=$(pump "$pump" "$@")
    frames=$((frames + $(echo "$pumped" | cut -d' ' -f2)))
    # libpcap delivers the last frames after its read timeout of a second.
    sleep 2
}

# try_rate COMMAND SIZE PAUSE_US: sends 66,560 frames in bursts with that pause, and returns 0 if the receiver has lost none. It
# prints the frame size, the numbers of sent and received frames, and how many of them were sent in how many microseconds.
try_rate() {
    begin_receiver "$1"
    send_pumped 512 128 "$3" "$2"
    end_capture
    promiscuous off
    received=$(grep -o '"delivered": *[0-9]*' meter.out | grep -o -m 1 '[0-9]*$')
    # shellcheck disable=SC2086 # words of a line
    set -- "$2" $pumped
    echo "rate $1 $3 $received $5 ${10}"
    [ "$received" -ne "$frames" ] || return 0
    # QEMU keeps frames for a NIC without a receiver, and delivers them to the next one.
    [ "$receiver" != zc0 ] || read_kept
    return 1
}

# find_rate COMMAND SIZE: finds the shortest pause between bursts with which the receiver loses nothing in one of two attempts.
find_rate() {
    command=$1 size=$2
    up "$receiver"
    set -- 1 100 200 300 450 650 900 1300 1900 2700 3900 5600 8000 11500 16000
    # The highest rate first: fast receivers need no other. Twice, as the sender may have been slow once.
    if try_rate "$command" "$size" "$1" && try_rate "$command" "$size" "$1"; then return; fi
    low=2 high=$#
    while [ $low -le $high ]; do
        middle=$(((low + high) / 2))
        eval "pause=\${$middle}"
        if try_rate "$command" "$size" "$pause" || try_rate "$command" "$size" "$pause"; then
            high=$((middle - 1))
        else
            low=$((middle + 1))
        fi
    done
}

# end_receiver NAME COUNTER: ends the receiver. Its COUNTER, if there is one, must have all frames.
end_receiver() {
    end_capture
    promiscuous off
    [ -z "$2" ] || grep -qE "\"$2\": *$frames[,}]|^$frames packets captured" meter.out meter.err || { echo "$1: not $frames frames:"; cat meter.out meter.err; return 1; }
}
