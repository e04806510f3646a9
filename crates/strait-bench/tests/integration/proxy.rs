//! `strait bench proxy`: client and origin without a proxy, and with Strait's proxy; every body is
//! right.

use std::time::Instant;

use serde_json::Value;

use crate::rig::run;

/// Runs a short benchmark of proxies and returns its results.
fn bench_proxy(arguments: &[&str]) -> Value {
    let quick = ["--rounds", "1", "--seconds", "1", "--json"];
    let results = run(&[&["proxy"][..], arguments, &quick].concat()).success().text();
    serde_json::from_str(&results).unwrap()
}

/// Returns a figure of a contestant at the place of this number.
fn figure(results: &Value, contestant: &str, place: usize, figure: &str) -> f64 {
    let series = results["series"].as_array().unwrap();
    let found =
        series.iter().find(|series| series["contestant"] == contestant && series["at"] == place as f64);
    let found = found.unwrap_or_else(|| panic!("no {contestant} at {place}: {results}"));
    found["summary"][figure]["median"].as_f64().unwrap_or_else(|| panic!("no {figure}: {found}"))
}

#[test]
fn certificates_of_both_types_are_loaded_and_reloaded() {
    let arguments = ["certificates", "--certificates", "3", "--rounds", "1", "--json"];
    let results: Value = serde_json::from_str(&run(&arguments).success().text()).unwrap();
    for contestant in ["none", "ecdsa-p256", "rsa-2048"] {
        let of = |name| figure(&results, contestant, 3, name);
        assert!(of("start_ms") > 0.0 && of("reload_ms") > 0.0, "{results}");
        assert!(of("at_rest_mib") > 0.0 && of("start_peak_mib") >= of("at_rest_mib"), "{results}");
    }
}

#[test]
fn origin_alone_answers_every_request_with_the_right_body() {
    let results = bench_proxy(&[
        "--only",
        "direct",
        "--sizes",
        "polymix",
        "--hits",
        "0.5",
        "--cacheable",
        "0.8",
        "--verify-all",
    ]);
    let of = |name| figure(&results, "direct", 0, name);
    assert!((of("verified_percent") - 100.0).abs() < 1e-9, "{results}");
    assert!(of("requests_per_s") > 0.0 && of("cpu_us_per_request") > 0.0 && of("memory_mib") > 0.0);
    assert!(of("p50_us") <= of("p99_us") && of("p99_us") <= of("max_us"));
}

#[test]
fn open_loop_makes_no_request_before_it_is_due() {
    const RATE: f64 = 200.0;
    let began = Instant::now();
    let results = bench_proxy(&["--only", "direct", "--sizes", "1k", "--rate", "200"]);
    let due = RATE * began.elapsed().as_secs_f64();
    // The requests of 1 s at least, and those that a busy machine delayed before.
    let requests = figure(&results, "direct", 0, "requests_per_s");
    assert!(requests > 0.0 && requests <= due, "{requests} of {due}");
}

#[test]
fn tunnel_carries_every_message_to_the_origin() {
    let results = bench_proxy(&["--only", "strait", "--work", "connect-13k", "--verify-all"]);
    let of = |name| figure(&results, "strait", 0, name);
    assert!(of("requests_per_s") > 0.0 && of("hit_percent") < 50.0, "{results}");
    assert!((of("verified_percent") - 100.0).abs() < 1e-9, "{results}");
}

#[test]
fn cache_answers_repeated_requests_and_forwards_the_others() {
    let arguments = ["--only", "strait", "--work", "hit-4k,miss-13k,store-13k,hit-1m", "--verify-all"];
    let results = bench_proxy(&arguments);
    let hits = |place| figure(&results, "strait", place, "hit_percent");
    // A request in flight at the start or the end of the time counts at the client or at the origin
    // alone, so the shares are not exactly 100 and 0.
    assert!(hits(0).min(hits(3)) > 50.0 && hits(1).max(hits(2)) < 50.0, "{results}");
    assert_eq!(results["labels"][1], "miss-13k");
}
