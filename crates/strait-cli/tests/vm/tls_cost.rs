//! Cost of a hit over TLS in guest instructions: with kTLS, with TLS in user space, without TLS.
//!
//! The guest has two processors, and two NICs on a wire. The first processor runs the proxy and
//! handles the interrupts of its NIC, the second runs the client, the origin and everything else.
//! Only the instructions of the first one count. The cost of a hit is the difference between few
//! and many hits on one connection, so that the handshake and the start of the connection cancel
//! out. Two runs differ by up to 5 %, by 11 % with kTLS at 4 KiB, as the client acknowledges at
//! other times.
//!
//! kTLS does not save instructions: both ways encrypt in loops of equal length, and the kernel does
//! more work for each page and record than the copies that it saves.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;

use lab::program_or_skip;
use lab::vm::{Mark, Nic, vm_or_skip};
use strait_bench::claim::{Bound, Claim};
use strait_bench::results::{Figures, Results};

use super::cost::{Cost, Costs};
use super::record::{
    RECORD, assert_not_higher, figures_of, higher_than_recorded, machine, name, rounded, write,
};
use super::tls::https;
use super::{run, strait};

/// Name of a way to send, its line in the section `[tls]`, and the beginning of its addresses.
type Way = (&'static str, &'static str, &'static str);

const KERNEL: Way = ("kTLS", "kernel = true", "https://10.0.0.1:8443");
const USER: Way = ("TLS in user space", "kernel = false", "https://10.0.0.1:8443");
const PLAIN: Way = ("no TLS", "kernel = false", "http://10.0.0.1:3128");
const WAYS: [Way; 3] = [KERNEL, USER, PLAIN];
/// Versions of HTTP, with curl's options.
const VERSIONS: [(&str, &str); 2] = [("HTTP/1.1", "--http1.1"), ("HTTP/2", "--http2")];
/// Sizes of objects in KiB, with the numbers of few and of many hits.
const SIZES: [(u32, u32, u32); 3] = [(4, 20, 220), (64, 10, 50), (1024, 4, 20)];
/// For the proxy and the client.
const PROCESSORS: u32 = 2;
/// The aim: instructions of a hit with kTLS, to those with TLS in user space.
const AIM: f64 = 0.5;
/// Tolerated increase of a cost above the recorded one, in percent.
const TOLERANCE_PERCENT: f64 = 10.0;
/// Name of the results, after `instructions`.
const PLAN: &str = "tls";
const ABOUT: &str = "Guest instructions of the proxy per hit, in the kernel and in the program; those of the client are not counted. \
    AES-256-GCM with the processor's instructions for AES and carry-less multiplication, in the kernel (generic-gcm-aesni-avx) and in \
    the program (ring). One connection of an igb. QEMU without KVM, processor model max without ERMS and FSRM. Instructions are not \
    time: one for AES counts as one, and caches and DMA cost nothing here.";

/// Functions of a proxy on the first processor, and of a client on the second one.
const SCRIPT: &str = r#"
grep -q generic-gcm-aesni-avx /proc/crypto
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
# sessions: prints the number of sessions that the kernel has encrypted so far.
sessions() { awk '/^TlsTxSw/ { print $2 }' /proc/net/tls_stat; }

# serve LINE: starts a proxy with LINE in the section of TLS.
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
    before=$(sessions)
    taskset 1 strait proxy --config proxy.toml --json >report.json 2>proxy.err &
    proxy=$!
    until grep -q ':20FB .* 0A ' /proc/net/tcp; do kill -0 $proxy || { cat proxy.err; exit 1; }; sleep 0.1; done
}

# end_proxy NAME: ends the proxy, and prints its report and the number of sessions that the kernel encrypted.
end_proxy() {
    kill -INT $proxy
    wait $proxy
    echo "report $1: $(cat report.json)"
    echo "sessions $1: $(($(sessions) - before))"
}

# hits OPTION ADDRESS COUNT: requests the address on one connection, with curl's option for a version of HTTP.
hits() {
    for _ in $(seq "$3"); do printf 'url = %s\noutput = /dev/null\n' "$2"; done >urls
    # The clock of a metered guest starts before the certificate is valid.
    far curl --silent --show-error --fail --fail-early "$1" --insecure --tls13-ciphers TLS_AES_256_GCM_SHA384 --config urls
    # The end of the connection belongs to the hits.
    sleep 1
}

# compare_hits OPTION ADDRESS FEW MANY: stores the object and makes a mark before few hits, one after them and one after many.
compare_hits() {
    hits "$1" "$2" "$3"
    taskset 1 mark
    hits "$1" "$2" "$3"
    taskset 1 mark
    hits "$1" "$2" "$4"
    taskset 1 mark
}
"#;

/// Returns the versions of HTTP for a way. Without TLS curl 7.88 sends only one request of HTTP/2
/// on a connection.
fn versions(way: Way) -> &'static [(&'static str, &'static str)] {
    if way == PLAIN { &VERSIONS[..1] } else { &VERSIONS }
}

/// Returns the labels of a record: each version of HTTP with each size.
fn labels() -> Vec<String> {
    let of_version = |version| SIZES.map(|(kib, ..)| format!("{version}, {kib} KiB"));
    VERSIONS.into_iter().flat_map(|(version, _)| of_version(version)).collect()
}

fn script() -> String {
    let mut script = SCRIPT.to_owned();
    let mut add = |line: std::fmt::Arguments<'_>| {
        writeln!(script, "{line}").expect("writing to a String cannot fail");
    };
    for (kib, ..) in SIZES {
        add(format_args!("object {kib}"));
    }
    for way in WAYS {
        let (name, line, address) = way;
        add(format_args!("serve '{line}'"));
        for (_, option) in versions(way) {
            for (kib, few, many) in SIZES {
                add(format_args!("compare_hits {option} {address}/{kib} {few} {many}"));
            }
        }
        add(format_args!("end_proxy '{name}'"));
    }
    script
}

/// Cost of a hit.
#[derive(Clone, Copy, Debug)]
struct Hit {
    cost: Cost,
    /// Those of its instructions in loops that encrypt.
    cipher: f64,
}

impl Hit {
    /// Returns the cost from the marks around `few` and `many` hits.
    fn between(marks: &[Mark], few: u32, many: u32) -> Self {
        let per_hit = |count: fn(&Mark) -> u64| {
            let [before, after_few, after_many] = [0, 1, 2].map(|mark| count(&marks[mark]) as f64);
            ((after_many - after_few) - (after_few - before)) / f64::from(many - few)
        };
        let cost = Cost { kernel: per_hit(|mark| mark.kernel), user: per_hit(|mark| mark.user) };
        Self { cost, cipher: per_hit(|mark| mark.cipher) }
    }
}

/// Costs of hits by way, in the order of the labels.
type Hits = BTreeMap<&'static str, Vec<Hit>>;

/// Measures all ways in one guest; None if a program is missing.
fn measure() -> Option<Hits> {
    let guest = https(&strait().with_file_name("strait-proxy"))?;
    let guest = guest.wire(Nic::Igb, Nic::Igb).program("/usr/sbin/ethtool");
    let run = run(guest.processors(PROCESSORS).metered_by_processor(), &script());
    for (way, encrypts) in [(KERNEL, true), (USER, false), (PLAIN, false)] {
        let none = run.output.contains(&format!("sessions {}: 0\n", way.0));
        assert_ne!(none, encrypts, "{}", run.output);
    }
    let mut marks = run.marks.chunks_exact(3);
    let mut hits = Hits::new();
    for way in WAYS {
        for (_, few, many) in versions(way).iter().flat_map(|_| SIZES) {
            let marks = marks.next().unwrap_or_else(|| panic!("too few marks: {}\n{}", run.output, run.log));
            hits.entry(way.0).or_default().push(Hit::between(marks, few, many));
        }
    }
    Some(hits)
}

/// Prints a line for each way.
fn print(hits: &Hits) {
    for (name, of_way) in hits {
        for (label, Hit { cost, cipher }) in labels().iter().zip(of_way) {
            let (total, kernel, user) = (cost.total(), cost.kernel, cost.user);
            println!("{name}, {label}: {total:.0} ({kernel:.0} + {user:.0}), {cipher:.0} encrypt");
        }
    }
}

fn figures(hit: Hit, user_space: Hit) -> Figures {
    let mut figures = figures_of(hit.cost);
    figures.insert("cipher_instructions".to_owned(), rounded(hit.cipher, 10.0));
    figures.insert("to_user_space".to_owned(), rounded(hit.cost.total() / user_space.cost.total(), 100.0));
    figures
}

fn results(commit: String, hits: &Hits) -> Results {
    let mut results = Results {
        benchmark: format!("instructions {PLAN}"),
        about: ABOUT.to_owned(),
        axis: "hit".to_owned(),
        labels: labels(),
        machine: machine(commit, PROCESSORS),
        complete: true,
        rounds: 1,
        ..Results::default()
    };
    for (name, ..) in WAYS {
        for (place, (&hit, &user_space)) in hits[name].iter().zip(&hits[USER.0]).enumerate() {
            results.record(name, place as f64, Ok((figures(hit, user_space), String::new())));
        }
    }
    for (label, (kernel, user)) in labels().into_iter().zip(hits[KERNEL.0].iter().zip(&hits[USER.0])) {
        let text = format!("{label}: instructions of a hit with kTLS, to TLS in user space");
        let ratio = rounded(kernel.cost.total() / user.cost.total(), 100.0);
        results.claims.push(Claim::of_values(text, &[ratio], "x", Bound::AtMost(AIM)));
    }
    results
}

/// Returns the costs in the form in which they are compared.
fn costs(hits: &Hits) -> Costs {
    let of_way = |of_way: &Vec<Hit>| labels().into_iter().zip(of_way.iter().map(|hit| hit.cost)).collect();
    hits.iter().map(|(&name, hits)| (name, of_way(hits))).collect()
}

/// Asserts what kTLS moves into the kernel: the program neither encrypts nor reads the body. The
/// kernel encrypts with the processor's instructions; without them, it would in no block that
/// counts.
fn assert_kernel_encrypts(hits: &Hits) {
    for (label, (kernel, user)) in labels().into_iter().zip(hits[KERNEL.0].iter().zip(&hits[USER.0])) {
        let ratio = kernel.cipher / user.cipher;
        assert!((0.8..1.25).contains(&ratio), "{label}: {ratio} of the instructions that encrypt");
        assert!(kernel.cipher < kernel.cost.kernel, "{label}: {kernel:?}");
        assert!(kernel.cost.user + user.cipher < user.cost.user, "{label}: {kernel:?} {user:?}");
    }
}

#[test]
fn hits_over_tls() {
    if !vm_or_skip() || !program_or_skip("cc") || !program_or_skip("ethtool") {
        return;
    }
    let Some(hits) = measure() else { return };
    print(&hits);
    assert_kernel_encrypts(&hits);
    if let Ok(commit) = env::var(RECORD) {
        write(&name(PLAN), &results(commit, &hits));
    } else {
        let find_higher = |costs: &Costs| higher_than_recorded(PLAN, &labels(), TOLERANCE_PERCENT, costs);
        let measure_again = || costs(&measure().expect("the programs were there before"));
        assert_not_higher(PLAN, &mut costs(&hits), find_higher, measure_again);
    }
}
