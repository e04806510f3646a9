//! Reception by interrupts, by the softirq after a timer, and by a thread.

use lab::program_or_skip;
use lab::vm::vm_or_skip;

use super::together::together;
use super::{ledger, line, machines};

/// Frames that come one by one, so that each has an interrupt of its own.
const FRAMES: u64 = 300;

pub(super) const INTERRUPTS: &str = "
# watch_polls: counts from now on how often NAPI polls the receiver's queues, if the kernel traces that.
watch_polls() {
    tracing=/sys/kernel/tracing
    [ -e $tracing/events ] || mount -t tracefs tracefs $tracing 2>mount.err || return 0
    echo 'dev_name == \"zc0\"' >$tracing/events/napi/napi_poll/filter
    echo 1 >$tracing/events/napi/napi_poll/enable
}
# polls: prints the number of polls since the last call.
polls() {
    [ -e $tracing/events ] || { echo unknown; return 0; }
    grep -c ' napi_poll: ' $tracing/trace || true
    echo >$tracing/trace
}
one_by_one() {
    capture $1 --path zerocopy
    polls >polls.before
    strait generate --output eth0 --count 300 --rate 500 --json >sent.json 2>sent.err
    arrived 300
    end_capture
    echo $1 $(cat $1.json)
    echo polls $1 $(polls)
}
# switches: prints how often the threads of the receiver's queues have waited.
switches() {
    total=0
    for process in /proc/[0-9]*; do
        case $(cat $process/comm 2>comm.err) in
        napi/zc0*) total=$((total + $(sed -n 's/^voluntary_ctxt_switches:\\t//p' $process/status)));;
        esac
    done
    echo $total
}
take_for_zerocopy
up eth0 zc0
watch_polls
one_by_one interrupts
device=/sys/class/net/zc0
echo 2 >$device/napi_defer_hard_irqs
echo 1000000 >$device/gro_flush_timeout
one_by_one deferred
echo 0 >$device/napi_defer_hard_irqs
echo 0 >$device/gro_flush_timeout
echo 1 >$device/threaded
one_by_one thread
echo switches $(switches)
unharmed
";

#[test]
fn frames_one_by_one_are_received_by_interrupts_timers_and_threads() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "interrupts");
        for receiver in ["interrupts ", "deferred ", "thread "] {
            let ledger = ledger(&run, receiver);
            assert_eq!(
                (&ledger["received"], &ledger["delivered"]),
                (&FRAMES.into(), &FRAMES.into()),
                "{ledger}"
            );
        }
        let polls = |receiver| match line(&run, &format!("polls {receiver} ")) {
            "unknown" if kernel.is_checking() => None,
            polls => Some(polls.parse::<u64>().unwrap()),
        };
        // The interrupts receive the frames, unless the timer polls for them.
        assert!(polls("interrupts").is_none_or(|polls| polls < FRAMES / 10), "{:?}", polls("interrupts"));
        assert!(polls("deferred").is_none_or(|polls| polls >= FRAMES / 10), "{:?}", polls("deferred"));
        // An interrupt takes no frame from a thread: each wakes it, or it still runs.
        let switches: u64 = line(&run, "switches ").parse().unwrap();
        assert!(switches >= FRAMES / 10, "the threads waited {switches} times");
    }
}
