//! Queues of a NIC, with a socket each.

use std::sync::LazyLock;

use lab::vm::{Nic, Run, vm_or_skip};

use super::{kernels, ledger, line, pair_with};
use crate::{assert_output, part, run};

/// Sends mixed traffic of 64 flows from eth0, which is also in `reference.pcap`.
const MIXED_TRAFFIC: &str = "
mixed() {
    strait replay reference.pcap --output eth0 --rate 2000 --json >sent.json
    sleep 1
}
# text NAME: prints the packets of NAME.pcap without their times, sorted. The same packet is the same text each time.
text() { strait capture -S -r $1.pcap 2>read.err | cut -d' ' -f2- | sort; }
# flows NAME: prints the addresses and ports of NAME.pcap, without direction.
flows() { text $1 | sed 's/: .*//' | awk '{ print ($2 < $4) ? $2 \" \" $4 : $4 \" \" $2 }' | sort -u; }
up eth0 eth1
capture reference --path v3
strait generate --output eth0 --count 2000 --flows 64 --kind udp4,tcp4,udp6,tcp6 --size 64,594,1518 --rate 2000 --json >sent.json
arrived 2000
end_capture
take_for_zerocopy
up eth0 zc0
";

/// Returns the run of both scripts, which share a guest.
fn scripts() -> Run {
    static RUN: LazyLock<Run> = LazyLock::new(|| {
        let guest = pair_with(kernels()[0], Nic::Igb).processors(4);
        run(guest, &[MIXED_TRAFFIC, BY_FLOW, DEAD_READER].concat())
    });
    RUN.clone()
}

const BY_FLOW: &str = "
echo part by flow
capture all --path zerocopy --queues 0-3
mixed
end_capture
text reference >reference.text
text all >all.text
cmp reference.text all.text
echo all $(cat all.json)

# A process for each queue.
for queue in 0 1 2 3; do
    capture $queue --path zerocopy --queues $queue
    eval pid$queue=$captured
done
mixed
for queue in 0 1 2 3; do
    eval captured=\\$pid$queue
    end_capture
done
for queue in 0 1 2 3; do text $queue; done | sort >together.text
cmp reference.text together.text
for queue in 0 1 2 3; do flows $queue; done | sort | uniq -d >twice
cat twice
[ ! -s twice ]
[ $(flows reference | wc -l) -eq $(for queue in 0 1 2 3; do flows $queue; done | wc -l) ]
strait capture -i zc0 --path zerocopy --queues 4 2>queue.err && exit 1
cat queue.err
unharmed
";

#[test]
fn queues_share_the_frames_by_flow() {
    if !vm_or_skip() {
        return;
    }
    let run = part(&scripts(), "by flow");
    let all = ledger(&run, "all ");
    assert_eq!(all["delivered"], 2000, "{all}");
    let lanes: Vec<_> = all["lanes"].as_array().unwrap().iter().map(|lane| &lane["delivered"]).collect();
    assert!(lanes.len() == 4 && lanes.iter().all(|count| count.as_u64().unwrap() > 0), "{lanes:?}");
    assert_output(&run, &["zc0 has receive queues 0 to 3"]);
}

/// The ring of the stopped reader, of queue 2, is smaller than its share of the traffic; those of
/// the others have room for all of it.
const DEAD_READER: &str = "
echo part dead reader
for queue in 0 1 2 3; do
    capture $queue --path zerocopy --queues $queue --ring-mib $([ $queue = 2 ] && echo 1 || echo 8)
    eval pid$queue=$captured
done
mixed
pinned=$(pinned)
kill -9 $pid1
wait $pid1 || true
[ $(pinned) -lt $pinned ]
kill -STOP $pid2
for round in 1 2 3; do mixed; done
kill -CONT $pid2
for queue in 0 2 3; do
    eval captured=\\$pid$queue
    end_capture
    text $queue >$queue.text
done
# The others have received their flows four times.
others=0
for queue in 0 3; do
    [ -s $queue.text ]
    sort $queue.text | uniq -c | awk '$1 % 4 { exit 1 }'
    others=$((others + $(wc -l <$queue.text) / 4))
done
echo once $others
echo stopped $(cat 2.json)
capture next --path zerocopy --queues 1
mixed
end_capture
echo next $(cat next.json)
[ $(pinned) -eq 0 ]
unharmed
";

#[test]
fn dead_or_stopped_reader_affects_only_its_queue() {
    if !vm_or_skip() {
        return;
    }
    let run = part(&scripts(), "dead reader");
    // The stopped reader had one part of the 2,000 frames and, of the other three, no more than its
    // ring of 512 slots.
    let once: u64 = line(&run, "once ").parse().unwrap();
    let stopped = ledger(&run, "stopped ")["delivered"].as_u64().unwrap();
    assert!((1..=2000 - once + 512).contains(&stopped), "{stopped} frames, {once} for the others");
    assert!(ledger(&run, "next ")["delivered"].as_u64().unwrap() > 0);
}
