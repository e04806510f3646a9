//! HTTPS from the proxy's store: with kTLS the kernel encrypts the pages of the store, without it
//! the proxy must.

use std::path::Path;
use std::time::Duration;

use lab::vm::{Guest, Kernel, Run, vm_or_skip};
use lab::{Launch, program_or_skip};
use serde_json::Value;

use super::{assert_output, guest, part, run};

const TOOL_LIMIT: Duration = Duration::from_mins(1);
/// Bytes of the object. It is requested twice: a miss, then a hit.
const OBJECT_BYTES: u64 = 1 << 20;
/// Maximum bytes of a hit in the proxy's memory: heads, handshake records, log lines.
const MEMORY_BYTES_MAX: u64 = 16 << 10;
/// Script of a proxy in front of busybox's httpd, and of hits over TLS with a kernel trace of all
/// system calls of the proxy: with kTLS, and without it.
const SCRIPT: &str = r#"
mkdir www
dd if=/dev/urandom of=www/object bs=65536 count=16 2>/dev/null
touch -d '2020-01-01 00:00' www/object
httpd -p 127.0.0.1:8080 -h www
cat >proxy.toml <<'END'
listen = ["127.0.0.1:3128"]
origin = "http://127.0.0.1:8080"
cache.dir = "store"
workers = 1
log.access = "access.log"
log.format = "json"
[tls]
listen = ["127.0.0.1:8443"]
certificate = "/certificate.pem"
key = "/key.pem"
END
trace=/sys/kernel/tracing
mount -t tracefs trace $trace
echo 1 >$trace/options/event-fork

doctor() { strait doctor --for proxy --cache /tmp | grep -A 1 ktls | tr -s ' '; }
# lines COUNT: waits until the log has that many lines.
lines() { until [ "$(wc -l <access.log)" -ge "$1" ]; do sleep 0.1; done; }
# get VERSION: requests the object with curl's option for a version of HTTP.
get() { curl --silent --show-error --fail "$1" --cacert /certificate.pem -o got https://127.0.0.1:8443/object; }
# sessions: prints the number of sessions that the kernel has encrypted so far.
sessions() { [ -e /proc/net/tls_stat ] && awk '/^TlsTxSw/ { print $2 }' /proc/net/tls_stat || echo 0; }

# hit VERSION: starts a proxy, and prints what it and the kernel say of a hit.
hit() {
    rm -rf store access.log
    mkdir store
    strait proxy --config proxy.toml --json >report.json 2>proxy.err &
    proxy=$!
    until grep -q ':20FB .* 0A ' /proc/net/tcp; do kill -0 $proxy || { cat proxy.err; exit 1; }; sleep 0.1; done
    get "$1"
    lines 1

    echo >$trace/trace
    ls /proc/$proxy/task >$trace/set_event_pid
    echo 'syscalls:*' >$trace/set_event
    before=$(sessions)
    get "$1"
    lines 2
    echo >$trace/set_event
    cmp www/object got
    kill -INT $proxy
    wait $proxy
    echo "access $(tail -n 1 access.log)"
    echo "report $(cat report.json)"
    echo "sessions $(($(sessions) - before))"
    cat proxy.err
    # Results of system calls: bytes that stayed in the kernel, and other possible byte counts (no addresses or errors).
    sed -n 's/.* sys_\([a-z0-9_]*\) -> \(0x[0-9a-f]*\)$/\1 \2/p' $trace/trace | while read -r call result; do
        [ ${#result} -gt 10 ] || echo "$call $((result))"
    done | awk '
        $1 ~ /^(sendfile64|splice|tee)$/ { kernel += $2; next }
        { memory += $2; sum[$1] += $2 }
        END { for (call in sum) print "call", call, sum[call]; print "kernel", kernel + 0; print "memory", memory + 0 }'
}

echo part complete
doctor
hit --http1.1
echo part http2
hit --http2
echo part no-cipher
rmmod aesni_intel gcm
doctor
echo part no-tls
insmod /modules/gcm.ko
rmmod tls
doctor
echo part neither
rmmod gcm
hit --http1.1
"#;

/// Modules with which the kernel encrypts on a processor with instructions for AES.
const KERNEL_TLS: [&str; 4] = ["tls", "gcm", "ctr", "aesni-intel"];

/// Returns a guest with curl, a certificate for the proxy and the modules for kTLS, or `None`
/// without openssl or curl.
pub(super) fn https(proxy: &Path) -> Option<Guest> {
    if !program_or_skip("openssl") || !program_or_skip("curl") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=proxy.test"];
    let launch =
        Launch::new("openssl").args(request).args(["-addext", "subjectAltName=IP:127.0.0.1,IP:10.0.0.1"]);
    let launch = launch.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let _ = launch.run(TOOL_LIMIT).unwrap().success();
    let read = |path: &Path| std::fs::read(path).unwrap();
    let guest = guest(Kernel::V7_2).program(proxy).program("/usr/bin/curl");
    let guest = KERNEL_TLS.into_iter().fold(guest, Guest::module);
    Some(guest.file("/certificate.pem", &read(&certificate)).file("/key.pem", &read(&key)))
}

/// Returns the rest of the output line that begins with `word`.
fn rest_of_line<'r>(run: &'r Run, word: &str) -> &'r str {
    let line = run.output.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {word}:\n{}", run.output))
}

/// Returns the number after `word`.
fn number(run: &Run, word: &str) -> u64 {
    rest_of_line(run, word).trim().parse().unwrap_or_else(|error| panic!("{word}: {error}:\n{}", run.output))
}

/// Returns fields of the hit's line in the access log: cache, mechanism, bytes copied, bytes sent
/// by sendfile, bytes sent by splice.
fn access(run: &Run) -> [Value; 5] {
    let line: Value = serde_json::from_str(rest_of_line(run, "access")).unwrap();
    ["cache", "mechanism", "copied", "sendfile", "spliced"].map(|field| line[field].clone())
}

#[test]
fn hit_over_tls_stays_in_the_kernel_with_ktls_and_is_copied_without_it() {
    if !vm_or_skip() {
        return;
    }
    // Cargo builds the programs of the tests into one directory. Nothing of this one is measured.
    let proxy = Path::new(env!("CARGO_BIN_EXE_strait")).with_file_name("strait-proxy");
    let Some(guest) = https(&proxy) else { return };
    let run = run(guest, SCRIPT);
    let complete = part(&run, "complete");
    assert_output(&complete, &["OK ktls the kernel encrypts"]);
    assert_in_kernel(&complete, "sendfile", OBJECT_BYTES);
    // Each payload goes from the store to a pipe, and from there, behind its frame's head, to the
    // connection.
    assert_in_kernel(&part(&run, "http2"), "splice", 2 * OBJECT_BYTES);
    for (name, finding) in [
        ("no-cipher", "the kernel has no AES-GCM\n -> boot a kernel with CONFIG_CRYPTO_GCM; "),
        ("no-tls", "the kernel has no tls module\n -> boot a kernel with CONFIG_TLS; "),
    ] {
        let finding = format!("better ktls TLS is encrypted in user space: {finding}");
        assert_output(&part(&run, name), &[&finding]);
    }
    assert_copied(&part(&run, "neither"));
}

/// Asserts what a run with a hit says if the kernel encrypts: the mechanism of the body, and the
/// minimum bytes of the system calls that copy nothing.
fn assert_in_kernel(run: &Run, mechanism: &str, kernel_bytes: u64) {
    let [cache, used, copied, sendfile, spliced] = access(run);
    assert_eq!((cache, used), ("hit".into(), mechanism.into()), "{}", run.output);
    let bytes = if mechanism == "sendfile" { sendfile } else { spliced };
    assert_eq!(bytes.as_u64(), Some(OBJECT_BYTES), "{}", run.output);
    assert!(copied.as_u64() < Some(MEMORY_BYTES_MAX), "{}", run.output);
    // The kernel's counts: an encrypted session, and the bytes of system calls.
    assert_eq!(number(run, "sessions"), 1, "{}", run.output);
    let heads = number(run, "kernel").checked_sub(kernel_bytes);
    assert!(heads.is_some_and(|bytes| bytes < MEMORY_BYTES_MAX), "{}", run.output);
    assert!(number(run, "memory") < MEMORY_BYTES_MAX, "{}", run.output);
}

/// Asserts what a run with a hit says if the proxy encrypts.
fn assert_copied(run: &Run) {
    assert_output(run, &["kTLS: the kernel has no tls module"]);
    let [cache, mechanism, copied, sendfile, _] = access(run);
    assert_eq!((cache, mechanism, sendfile), ("hit".into(), "copy".into(), 0.into()), "{}", run.output);
    assert!(copied.as_u64() >= Some(OBJECT_BYTES), "{}", run.output);
    assert_eq!((number(run, "sessions"), number(run, "kernel")), (0, 0), "{}", run.output);
    // The bytes are read from the store and written as records.
    assert!(number(run, "memory") >= 2 * OBJECT_BYTES, "{}", run.output);
}
