//! Cost of a hit over TLS in guest instructions: with kTLS, with TLS in user space, without TLS.
//!
//! The guest has two processors, and two NICs on a wire. The first processor runs the proxy and
//! handles the interrupts of its NIC, the second runs the client, the origin and everything else.
//! Only the instructions of the first one count. The cost of a hit is the difference between few
//! and many hits on one connection, so that the handshake and the start of the connection cancel
//! out.

use std::fmt::Write as _;

use lab::program_or_skip;
use lab::vm::{Mark, Nic, vm_or_skip};

use super::cost::Cost;
use super::tls::https;
use super::{run, strait};

/// Name of a way to send, and its lines in the proxy's configuration.
type Way = (&'static str, &'static str);

const KERNEL: Way = ("kTLS", "");
const USER: Way = ("TLS in user space", "kernel = false");
const WAYS: [Way; 2] = [KERNEL, USER];
/// Versions of HTTP, with curl's options.
const VERSIONS: [(&str, &str); 2] = [("HTTP/1.1", "--http1.1"), ("HTTP/2", "--http2")];
/// Sizes of objects in KiB, with the numbers of few and of many hits.
const SIZES: [(u32, u32, u32); 3] = [(4, 20, 120), (64, 10, 40), (1024, 4, 12)];

/// Functions of a proxy on the first processor, and of a client on the second one.
const SCRIPT: &str = r#"
two_hosts
ethtool -L eth0 combined 1
far ethtool -L eth1 combined 1
up eth0
pin_interrupts eth0 1
pin_interrupts eth1 2
taskset -p 2 $$
mkdir www
httpd -p 127.0.0.1:8080 -h www
object() {
    dd if=/dev/urandom of="www/$1" bs=1024 count="$1" 2>/dev/null
    touch -d '2020-01-01 00:00' "www/$1"
}

# serve LINES: starts a proxy with LINES in the section of TLS.
serve() {
    rm -rf store
    mkdir store
    cat >proxy.toml <<END
listen = ["10.0.0.1:3128"]
origin = "http://127.0.0.1:8080"
cache.dir = "store"
workers = 1
[tls]
listen = ["10.0.0.1:8443"]
certificate = "/certificate.pem"
key = "/key.pem"
$1
END
    taskset 1 strait proxy --config proxy.toml --json >report.json 2>proxy.err &
    proxy=$!
    until grep -q ':20FB .* 0A ' /proc/net/tcp; do kill -0 $proxy || { cat proxy.err; exit 1; }; sleep 0.1; done
}

# end_proxy NAME: ends the proxy and prints its report.
end_proxy() {
    kill -INT $proxy
    wait $proxy
    echo "report $1: $(cat report.json)"
    grep TlsTxSw /proc/net/tls_stat
}

# hits VERSION OBJECT COUNT: requests the object on one connection with curl's option for a version of HTTP.
hits() {
    for _ in $(seq "$3"); do printf 'url = https://10.0.0.1:8443/%s\noutput = /dev/null\n' "$2"; done >urls
    # The clock of a metered guest starts before the certificate is valid.
    far curl --silent --show-error --fail --fail-early "$1" --insecure --config urls
    # The end of the connection belongs to the hits.
    sleep 1
}

# compare_hits VERSION OBJECT FEW MANY: stores the object and makes a mark before few hits, one after them and one after many.
compare_hits() {
    hits "$1" "$2" "$3"
    taskset 1 mark
    hits "$1" "$2" "$3"
    taskset 1 mark
    hits "$1" "$2" "$4"
    taskset 1 mark
}
"#;

fn script() -> String {
    let mut script = SCRIPT.to_owned();
    let mut add = |line: std::fmt::Arguments<'_>| {
        writeln!(script, "{line}").expect("writing to a String cannot fail");
    };
    for (kib, ..) in SIZES {
        add(format_args!("object {kib}"));
    }
    for (name, lines) in WAYS {
        add(format_args!("serve '{lines}'"));
        for (_, option) in VERSIONS {
            for (kib, few, many) in SIZES {
                add(format_args!("compare_hits {option} {kib} {few} {many}"));
            }
        }
        add(format_args!("end_proxy '{name}'"));
    }
    script
}

/// Returns the cost of a hit from the marks around `few` and `many` of them.
fn of_hit(marks: &[Mark], few: u32, many: u32) -> Cost {
    let per_hit = |count: fn(&Mark) -> u64| {
        let [before, after_few, after_many] = [0, 1, 2].map(|mark| count(&marks[mark]) as f64);
        ((after_many - after_few) - (after_few - before)) / f64::from(many - few)
    };
    Cost { kernel: per_hit(|mark| mark.kernel), user: per_hit(|mark| mark.user) }
}

#[test]
fn hits_over_tls() {
    if !vm_or_skip() || !program_or_skip("cc") || !program_or_skip("ethtool") {
        return;
    }
    let Some(guest) = https(&strait().with_file_name("strait-proxy")) else { return };
    let guest = guest.wire(Nic::Igb, Nic::Igb).program("/usr/sbin/ethtool").processors(2).metered_by_processor();
    let run = run(guest, &script());
    println!("{}\n{}", run.output, run.log);
    let mut marks = run.marks.chunks_exact(3);
    for (name, _) in WAYS {
        for (version, _) in VERSIONS {
            for (kib, few, many) in SIZES {
                let marks = marks.next().unwrap_or_else(|| panic!("too few marks: {}", run.output));
                let cost = of_hit(marks, few, many);
                println!(
                    "{name} {version} {kib} KiB: {:.0} ({:.0} + {:.0})",
                    cost.total(),
                    cost.kernel,
                    cost.user
                );
            }
        }
    }
}
