//! HTTPS from the proxy's store: with kTLS the kernel encrypts the pages of the store, without it
//! the proxy must.

use std::path::Path;
use std::time::Duration;

use lab::vm::{Guest, Kernel, Run, vm_or_skip};
use lab::{Launch, program_or_skip};
use serde_json::Value;

use super::{assert_said, guest, run, strait};

const TOOL_LIMIT: Duration = Duration::from_mins(1);
/// What the object has, which is asked for twice: a fetch, then a hit.
const OBJECT_BYTES: u64 = 1 << 20;
/// What a hit may take through the proxy's own memory: heads, records of the handshake, lines of
/// the log.
const TALK_BYTES_MAX: u64 = 16 << 10;
/// A proxy before busybox's httpd; a hit on it over TLS, with every system call of the proxy traced
/// by the kernel.
const HIT: &str = r#"
mkdir www store
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
strait doctor --for proxy --cache store | grep ktls | tr -s ' '
strait proxy --config proxy.toml --json >report.json 2>proxy.err &
proxy=$!
until grep -q ':20FB .* 0A ' /proc/net/tcp; do kill -0 $proxy || { cat proxy.err; exit 1; }; sleep 0.1; done

# lines COUNT: waits until the log has so many.
lines() { until [ "$(wc -l <access.log)" -ge "$1" ]; do sleep 0.1; done; }
get() { curl --silent --show-error --fail --cacert /certificate.pem -o got https://127.0.0.1:8443/object; }
# sessions: those whose records the kernel has encrypted until now.
sessions() { [ -e /proc/net/tls_stat ] && awk '/^TlsTxSw/ { print $2 }' /proc/net/tls_stat || echo 0; }
get
lines 1

trace=/sys/kernel/tracing
mount -t tracefs trace $trace
echo 1 >$trace/options/event-fork
ls /proc/$proxy/task >$trace/set_event_pid
echo 'syscalls:*' >$trace/set_event
before=$(sessions)
get
lines 2
echo >$trace/set_event
cmp www/object got
kill -INT $proxy
wait $proxy
echo "access $(tail -n 1 access.log)"
echo "report $(cat report.json)"
echo "sessions $(($(sessions) - before))"
cat proxy.err
# What system calls returned: bytes that stayed in the kernel, and what else can be bytes (addresses and errors cannot).
sed -n 's/.* sys_\([a-z0-9_]*\) -> \(0x[0-9a-f]*\)$/\1 \2/p' $trace/trace | while read -r call result; do
    [ ${#result} -gt 10 ] || echo "$call $((result))"
done | awk '
    $1 ~ /^(sendfile64|splice|tee)$/ { kernel += $2; next }
    { memory += $2; sum[$1] += $2 }
    END { for (call in sum) print "call", call, sum[call]; print "kernel", kernel + 0; print "memory", memory + 0 }'
"#;

/// A guest with curl, and a certificate for the proxy; none where openssl makes none.
fn https() -> Option<Guest> {
    if !program_or_skip("openssl") || !program_or_skip("curl") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=proxy.test"];
    let launch = Launch::new("openssl").args(request).args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    let launch = launch.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let _ = launch.run(TOOL_LIMIT).unwrap().success();
    let read = |path: &Path| std::fs::read(path).unwrap();
    // Cargo builds the programs into one directory.
    let guest = guest(Kernel::V7_2).program(strait().with_file_name("strait-proxy")).program("/usr/bin/curl");
    Some(guest.file("/certificate.pem", &read(&certificate)).file("/key.pem", &read(&key)))
}

/// What stands behind `word` at the start of a line.
fn said<'r>(run: &'r Run, word: &str) -> &'r str {
    let line = run.said.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {word}:\n{}", run.said))
}

/// The number behind `word`.
fn number(run: &Run, word: &str) -> u64 {
    said(run, word).trim().parse().unwrap_or_else(|error| panic!("{word}: {error}:\n{}", run.said))
}

/// Fields of the hit's line in the access log.
fn access(run: &Run) -> [Value; 4] {
    let line: Value = serde_json::from_str(said(run, "access")).unwrap();
    ["cache", "mechanism", "copied", "sendfile"].map(|field| line[field].clone())
}

#[test]
fn with_ktls_a_hit_over_tls_stays_in_the_kernel() {
    if !vm_or_skip() {
        return;
    }
    let Some(guest) = https() else { return };
    let run = run(guest.module("tls").module("gcm").module("ctr").module("aesni-intel"), HIT);
    assert_said(&run, &["OK ktls the kernel encrypts"]);
    let [cache, mechanism, copied, sendfile] = access(&run);
    assert_eq!((cache, mechanism), ("hit".into(), "sendfile".into()), "{}", run.said);
    assert_eq!(sendfile.as_u64(), Some(OBJECT_BYTES), "{}", run.said);
    assert!(copied.as_u64() < Some(TALK_BYTES_MAX), "{}", run.said);
    // What the kernel saw of it: a session whose records it encrypted, and the bytes of system calls.
    assert_eq!(number(&run, "sessions"), 1, "{}", run.said);
    assert_eq!(number(&run, "kernel"), OBJECT_BYTES, "{}", run.said);
    assert!(number(&run, "memory") < TALK_BYTES_MAX, "{}", run.said);
}

#[test]
fn without_ktls_a_hit_over_tls_is_copied_and_counted_so() {
    if !vm_or_skip() {
        return;
    }
    let Some(guest) = https() else { return };
    let run = run(guest, HIT);
    assert_said(&run, &["better ktls TLS is encrypted in user space", "kTLS: the kernel has no tls module"]);
    let [cache, mechanism, copied, sendfile] = access(&run);
    assert_eq!((cache, mechanism, sendfile), ("hit".into(), "copy".into(), 0.into()), "{}", run.said);
    assert!(copied.as_u64() >= Some(OBJECT_BYTES), "{}", run.said);
    assert_eq!((number(&run, "sessions"), number(&run, "kernel")), (0, 0), "{}", run.said);
    // Read from the store, and written as records.
    assert!(number(&run, "memory") >= 2 * OBJECT_BYTES, "{}", run.said);
}

#[test]
fn a_kernel_that_lacks_the_cipher_is_told_from_one_without_ktls() {
    if !vm_or_skip() {
        return;
    }
    let script = "strait doctor --for proxy --cache /tmp | grep -A 1 ktls | tr -s ' '";
    for (module, says) in [
        ("tls", "the kernel has no AES-GCM\n -> modprobe gcm\n"),
        ("gcm", "the kernel has no tls module\n -> modprobe tls\n"),
    ] {
        let run = run(guest(Kernel::V7_2).module(module), script);
        assert_said(&run, &[&format!("better ktls TLS is encrypted in user space: {says}")]);
    }
}
