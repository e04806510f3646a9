//! Benchmarks measure, save their results, compare them, and draw a page that a browser shows.

use std::fs;

use lab::{Launch, program_or_skip, root_or_skip, wait_until};
use serde_json::{Value, json};

use crate::rig::{LIMIT, bench, run, turn};

/// Arguments of a short measurement, of which only the form of the results counts.
const QUICK: [&str; 9] =
    ["capture", "--paths", "v3,xdp-zc,libpcap", "--sizes", "64,1518", "--rounds", "1", "--seconds", "0.1"];

fn figure(results: &Value, contestant: &str, at: f64, name: &str) -> f64 {
    let found = figure_if_any(results, contestant, at, name);
    found.unwrap_or_else(|| panic!("no {name} of {contestant} at {at}: {results}"))
}

/// Returns a figure; None if a busy machine gave too few values for it.
fn figure_if_any(results: &Value, contestant: &str, at: f64, name: &str) -> Option<f64> {
    let series = results["series"].as_array().unwrap();
    let found = series.iter().find(|series| series["contestant"] == contestant && series["at"] == at);
    let found = found.unwrap_or_else(|| panic!("no {contestant} at {at}: {results}"));
    found["summary"][name]["median"].as_f64()
}

#[test]
fn capture_benchmark_finds_rates_costs_and_delays_and_lists_skipped_paths() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (saved, page) = (path("a.json"), path("a.html"));
    let arguments = [&QUICK[..], &["--json", "--commit", "abc", "--save", &saved, "--html", &page]].concat();
    let printed: Value = serde_json::from_str(&run(&arguments).success().text()).unwrap();
    let saved_results: Value = serde_json::from_str(&fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(printed, saved_results);
    for (contestant, at) in [("v3", 64.0), ("v3", 1518.0), ("libpcap", 64.0), ("libpcap", 1518.0)] {
        let of = |name| figure(&saved_results, contestant, at, name);
        let lossfree = of("lossfree_pps");
        assert!(lossfree >= 0.0 && of("tolerated_pps") >= lossfree && of("tries") > 0.0);
        // On a machine too busy for any rate without loss there are no other figures.
        if lossfree > 0.0 {
            assert!(of("cpu_s_per_million") > 0.0 && of("loss_percent").abs() < f64::EPSILON);
            let median = figure_if_any(&saved_results, contestant, at, "p50_us");
            assert!(median.is_none_or(|median| median > 0.0 && of("max_us") >= median));
        }
    }
    assert_eq!(saved_results["skipped"][0]["contestant"], "xdp-zc");
    assert_eq!(saved_results["machine"]["commit"], "abc");
    assert!(
        saved_results["machine"]["command"].as_str().unwrap().starts_with("strait bench capture --paths v3")
    );
    let again = path("b.html");
    let _ = run(&["report", &saved, &again]).success();
    assert_eq!(fs::read_to_string(page).unwrap(), fs::read_to_string(again).unwrap());
    let same = run(&["compare", &saved, &saved]).success().text();
    assert!(same.contains("1.000") && same.contains("one round: no spread known"), "{same}");
}

#[test]
fn latency_benchmark_shows_the_timeout_of_libpcap() {
    if !root_or_skip() {
        return;
    }
    let arguments = ["latency", "--paths", "v3,libpcap", "--rates", "200", "--wait", "balanced"];
    let results =
        run(&[&arguments[..], &["--rounds", "1", "--seconds", "1", "--json"]].concat()).success().text();
    let results: Value = serde_json::from_str(&results).unwrap();
    // A busy machine delays both; the timer comes on top of that.
    let median = |contestant| figure(&results, contestant, 200.0, "p50_us");
    assert!(median("libpcap") > median("v3"), "{results}");
}

/// A private bridge, a wire and a connection carry traffic with each capture and without one.
#[test]
fn tax_benchmark_compares_each_capture_with_none() {
    if !root_or_skip() {
        return;
    }
    let arguments =
        ["tax", "--paths", "v3,libpcap,tcpdump,xdp-native", "--rounds", "1", "--seconds", "0.1", "--json"];
    let results: Value = serde_json::from_str(&run(&arguments).success().text()).unwrap();
    let labels = results["labels"].as_array().unwrap();
    let at = |label: &str| labels.iter().position(|place| place == label).unwrap() as f64;
    let skipped = results["skipped"].as_array().unwrap();
    for place in ["60 B", "1514 B", "60 B, rejected", "bridge", "port, rejected"] {
        let base = figure(&results, "no capture", at(place), "host_cpu_us");
        assert!(base > 0.0 && figure(&results, "no capture", at(place), "offered_pps") > 0.0);
        for contestant in ["v3", "libpcap"] {
            let of = |name| figure(&results, contestant, at(place), name);
            // The figures' decimal digits are rounded.
            assert!((of("host_us") - (of("host_cpu_us") - base)).abs() < 1e-9, "{place}: {results}");
            assert!((of("tax_us") - (of("host_us") + of("reader_us"))).abs() < 1e-9, "{place}: {results}");
        }
    }
    for contestant in ["no capture", "v3", "libpcap"] {
        assert!(figure(&results, contestant, at("bridge"), "forwarded_pps") > 0.0, "{contestant}");
        for place in ["TCP, 96 B", "TCP", "TCP, rejected"] {
            assert!(
                figure(&results, contestant, at(place), "tcp_bytes_per_s") > 0.0,
                "{contestant}, {place}"
            );
        }
    }
    if !skipped.iter().any(|skipped| skipped["contestant"] == "xdp-native") {
        assert!(figure(&results, "xdp-native", at("TCP, rejected"), "tcp_bytes_per_s") > 0.0);
        let series = results["series"].as_array().unwrap();
        let took = |series: &Value| series["contestant"] == "xdp-native" && series["at"] == at("TCP");
        assert!(!series.iter().any(took), "it takes the host's packets: {results}");
    }
}

/// Runs a short benchmark of sends and returns its results.
fn bench_send(arguments: &[&str]) -> Value {
    let quick = ["--rounds", "1", "--seconds", "0.3", "--json"];
    let results = run(&[&["send"][..], arguments, &quick].concat()).success().text();
    serde_json::from_str(&results).unwrap()
}

/// Checks that the results of a route have exactly these ways, and that each moved bytes. On a
/// kernel without io_uring, the ways of SEND_ZC are skipped with that reason.
fn moves_bytes_by(results: &Value, over: &str, ways: &[&str], at: f64) {
    let names = |list: &str| -> Vec<_> {
        let entries = results[list].as_array().unwrap().iter();
        entries.map(|entry| entry["contestant"].as_str().unwrap().to_owned()).collect()
    };
    let expected: Vec<_> = ways.iter().map(|way| format!("{over} {way}")).collect();
    let all = [names("series"), names("skipped")].concat();
    assert!(all.iter().all(|name| expected.contains(name)), "{all:?} instead of {expected:?}");
    for skipped in results["skipped"].as_array().unwrap() {
        assert!(skipped["reason"].as_str().unwrap().contains("io_uring"), "{skipped}");
    }
    for name in expected.iter().filter(|name| !names("skipped").contains(name)) {
        assert!(figure(results, name, at, "bytes_per_s") > 0.0, "{name}: {results}");
    }
}

#[test]
fn large_buffers_are_sent_by_zero_copy_only_on_a_route_without_copies() {
    if !root_or_skip() {
        return;
    }
    let _turn = turn();
    let results = bench_send(&["--ways", "strait,zc", "--at", "1048576"]);
    let skipped = results["skipped"].as_array().unwrap();
    if let Some(zc) = skipped.iter().find(|skipped| skipped["contestant"] == "loopback zc") {
        return lab::skip(zc["reason"].as_str().unwrap());
    }
    for way in ["strait", "zc"] {
        let share = |over| figure(&results, &format!("{over} {way}"), 1_048_576.0, "zero_copy_percent");
        // The kernel merges the notifications of concurrent sends. Such a notification may report a
        // copy for a send without one.
        assert!(share("no-copy") > 75.0, "{way}: {results}");
        assert!(share("loopback") < 1.0 && share("veth") < 1.0, "{way}: {results}");
    }
}

#[test]
fn short_and_slow_connections_get_zero_copy_only_on_a_route_without_copies() {
    if !root_or_skip() {
        return;
    }
    let _turn = turn();
    // Two runs: the slow loads take 13 s for each way and route, and one run has a limit.
    let others = bench_send(&["peers", "--ways", "send,zc", "--over", "veth"]);
    for load in [0.0, 1.0, 2.0, 3.0, 4.0] {
        moves_bytes_by(&others, "veth", &["send", "zc"], load);
    }
    if let Some(zc) = others["skipped"].as_array().unwrap().first() {
        return lab::skip(zc["reason"].as_str().unwrap());
    }
    // On a busy machine the kernel merges more notifications, and one that reports a copy for a
    // send without one ends zero-copy for a while. So one of three runs must have the shares.
    let mut short = Vec::new();
    for _ in 0..3 {
        let results = bench_send(&["peers", "--ways", "strait"]);
        let share = |over, load| figure(&results, &format!("{over} strait"), load, "lent_percent");
        let least = [(0.0, 90.0), (1.0, 85.0), (2.0, 85.0), (3.0, 85.0), (4.0, 85.0)];
        assert!(least.iter().all(|(load, _)| share("veth", *load) <= 3.0), "{results}");
        if least.iter().all(|(load, least)| share("no-copy", *load) >= *least) {
            return;
        }
        short.push(results);
    }
    panic!("too little zero-copy in three runs: {short:?}");
}

#[test]
fn every_way_sends_its_loads() {
    if !root_or_skip() {
        return;
    }
    let _turn = turn();
    let buffer = bench_send(&["--over", "loopback", "--at", "100000"]);
    moves_bytes_by(&buffer, "loopback", &["send", "zc", "zc-registered", "mmap-zc", "strait"], 100_000.0);
    let mixed = bench_send(&["mixed", "--over", "loopback", "--at", "3,1500"]);
    for pieces in [3.0, 1500.0] {
        moves_bytes_by(&mixed, "loopback", &["send", "coalesce", "zc", "split", "strait"], pieces);
    }
    let file = bench_send(&["file", "--over", "veth", "--at", "100000"]);
    moves_bytes_by(&file, "veth", &["send", "sendfile", "mmap-zc", "strait"], 100_000.0);
    let relay = bench_send(&["relay", "--ways", "send,strait", "--at", "65536"]);
    moves_bytes_by(&relay, "loopback", &["send", "strait"], 65_536.0);
}

#[test]
fn mapped_file_is_sent_by_zero_copy_only_on_a_route_without_copies() {
    if !root_or_skip() {
        return;
    }
    let _turn = turn();
    let results =
        bench_send(&["file", "--ways", "send,mmap-zc", "--over", "veth,no-copy", "--at", "1048576"]);
    if let Some(left_out) = results["skipped"].as_array().unwrap().first() {
        return lab::skip(left_out["reason"].as_str().unwrap());
    }
    let share = |over| figure(&results, &format!("{over} mmap-zc"), 1_048_576.0, "zero_copy_percent");
    // The kernel merges the notifications of concurrent sends. Such a notification may report a
    // copy for a send without one.
    assert!(share("no-copy") > 75.0, "{results}");
    assert!(share("veth") < 1.0, "{results}");
}

#[test]
fn interrupted_benchmark_prints_and_saves_its_results_so_far() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("saved.json");
    let launch = bench(&[])
        .args(["latency", "--paths", "v2", "--wait", "balanced", "--rates", "1000,10000", "--json"])
        .args(["--rounds", "100", "--seconds", "0.2", "--save", &saved.display().to_string()]);
    let running = launch.spawn().unwrap();
    assert!(wait_until(LIMIT, || saved.exists()), "nothing was saved");
    running.signal(rustix::process::Signal::INT);
    let ended = running.wait(LIMIT).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    let results: Value = serde_json::from_str(&ended.text()).unwrap();
    assert!(!results["series"].as_array().unwrap().is_empty() && results["complete"] == false);
    let saved_results: Value = serde_json::from_str(&fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(results, saved_results);
}

#[test]
fn path_has_the_requested_number_of_lanes() {
    if !root_or_skip() {
        return;
    }
    let arguments = ["capture", "--paths", "v3,xdp-native", "--lanes", "1,2", "--sizes", "64"];
    let results = run(&[&arguments[..], &["--rounds", "1", "--seconds", "0.1", "--json"]].concat()).success();
    let results: Value = serde_json::from_str(&results.text()).unwrap();
    for contestant in ["v3", "v3 x2", "xdp-native", "xdp-native x2"] {
        assert!(figure(&results, contestant, 64.0, "tries") > 0.0);
    }
    assert_eq!(results["skipped"], json!([]));
}

/// Returns results of two contestants at two sizes, as a benchmark writes them.
fn example_results() -> Value {
    let series = |contestant: &str, at: f64, rate: f64| {
        let summary =
            |median: f64| json!({ "median": median, "min": median * 0.9, "max": median * 1.1, "rounds": 3 });
        json!({
            "contestant": contestant, "at": at, "got": "somehow", "rounds": [],
            "summary": { "lossfree_pps": summary(rate), "cpu_s_per_million": summary(0.1), "p99_us": summary(5000.0 / rate) },
        })
    };
    json!({
        "benchmark": "capture", "about": "made up <for> a test", "axis": "frame size, bytes", "complete": true, "rounds": 3, "seconds": 1.0,
        "machine": { "date": "", "command": "strait bench capture", "commit": "", "program": "strait", "kernel": "Linux",
            "cpu": "", "cpus": 2, "memory_kib": 1, "load_average": "", "libpcap": "" },
        "series": [series("v3", 64.0, 2e6), series("v3", 1518.0, 1e6), series("xdp", 64.0, 4e6), series("xdp", 1518.0, 2e6)],
        "skipped": [{ "contestant": "testpmd", "reason": "not there" }],
    })
}

/// Script that writes true for each visible plot: one with a size and two drawn lines.
const LOOK: &str = "<script>addEventListener('load', () => {
    const drawn = line => line.getBBox().width > 0 && getComputedStyle(line).stroke != 'none';
    const seen = plot => plot.getBoundingClientRect().width > 100 && plot.getBoundingClientRect().height > 100
        && plot.querySelectorAll('polyline').length == 2 && [...plot.querySelectorAll('polyline')].every(drawn);
    document.body.dataset.plots = [...document.querySelectorAll('section svg')].map(seen);
});</script>";

#[test]
fn browser_without_network_shows_every_plot_without_an_error() {
    const BROWSER: &str = "chromium-headless-shell";
    if !program_or_skip(BROWSER) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("results.json"), example_results().to_string()).unwrap();
    let _ = run(&["report", &path("results.json"), &path("page.html")]).success();
    let _ = run(&["report", &path("results.json"), &path("plot.svg")]).success();
    let browse = |file: &str| {
        let profile = format!("--user-data-dir={}", path("profile"));
        let options =
            ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr"];
        let offline = "--host-resolver-rules=MAP * ~NOTFOUND";
        let launch = Launch::new(BROWSER).args(options).args([offline, &profile, "--dump-dom"]);
        let shown = launch.arg(format!("file://{}", path(file))).run(LIMIT).unwrap().success();
        assert!(!shown.stderr.contains("CONSOLE"), "{}", shown.stderr);
        shown.text()
    };
    let page = fs::read_to_string(path("page.html")).unwrap();
    fs::write(path("looked.html"), page.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    let dom = browse("looked.html");
    assert!(dom.contains("data-plots=\"true,true,true\""), "{dom}");
    assert!(dom.contains("made up &lt;for&gt; a test") && dom.contains("testpmd left out: not there"));
    assert!(browse("plot.svg").contains("<polyline"));
}

#[test]
fn wrong_command_line_or_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no.json").display().to_string();
    fs::write(&file, "{}").unwrap();
    for (arguments, code, words) in [
        (vec!["capture", "--paths", "v9"], 2, "give one of recv, v2"),
        (vec!["capture", "-i", "lo"], 2, "--send-on"),
        (vec!["capture", "-i", "lo", "-o", "lo"], 2, "both ends"),
        (vec!["send", "--ways", "sendfile"], 2, "does not carry this load: give send, zc"),
        (vec!["send", "mixed", "--ways", "mmap-zc"], 2, "does not carry this load: give send, coalesce"),
        (vec!["send", "--over", "eth9"], 2, "give loopback, veth or no-copy"),
        (vec!["send", "--to", "nowhere"], 2, "write it as HOST:PORT"),
        (vec!["send", "-i", "lo"], 2, "--to"),
        (vec!["send", "-i", "no9", "--to", "127.0.0.1:9"], 2, "no9"),
        (vec!["send", "relay", "--over", "veth"], 2, "measured over loopback"),
        (vec!["send", "--to", "127.0.0.1:9", "--ways", "send"], 1, "127.0.0.1:9"),
        (vec!["compare", &file, &file], 2, "not results of strait bench"),
        (vec!["report", "/no/such/file", &file], 1, "/no/such/file"),
        (vec!["capture", "--save", "/no/such/directory/a.json"], 1, "/no/such/directory/a.json"),
    ] {
        let finished = run(&arguments);
        assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(words) && !finished.stderr.contains("panicked"),
            "{}",
            finished.stderr
        );
    }
}
