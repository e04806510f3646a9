//! The page of instructions per frame and per hit, from the results of the virtual machines.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::results::section_of;
use crate::source::Result;

const HEAD: &str = "# Instructions per frame

Each cell is the sum of kernel and program. The results, which have both, are `bench/results/instructions-*.json`, with a plot beside each.
`STRAIT_VM_RECORD=COMMIT make test-vm` measures them, `cargo xtask reference` writes this page.
[PF_ZEROCOPY](../internals/pf-zerocopy.md#cost) explains them.

A contestant is a program, or the path of `strait capture`, with the cheapest of the largest frames first. A \"bare reader\" does nothing but
count: alone, with one copy of each frame, or with a filter that accepts or rejects all frames by their EtherType. \"all accepted\" alone is
`strait capture` with the filter `ip`. \"libpcap\" is a program that counts, with a timeout of a second, in immediate mode, or with timestamps
in nanoseconds; recvfrom receives frame by frame from a packet socket. A reader with a timeout waits for half of its ring, for a second at most.
Others wake for each burst. The cost of programs that poll, DPDK's among them, is that of the polls that found frames. A cell is one
measurement: two of a single frame differ by up to 20 %, of bursts of 32 and more by about a percent.

The last section has the instructions of the proxy for each hit, with kTLS, with TLS in user space and without TLS: see
[TLS in the proxy](../internals/proxy-tls.md#instructions-of-a-hit). Two measurements differ by up to 5 %, by 11 % with kTLS at 4 KiB.
";

/// Title of each section, and the name of its result.
const SECTIONS: [(&str, &str); 7] = [
    ("igb", "instructions-igb"),
    ("virtio-net", "instructions-virtio-net"),
    ("e1000", "instructions-e1000"),
    ("igb, by the length of a burst", "instructions-igb-bursts"),
    ("e1000, by the length of a burst", "instructions-e1000-bursts"),
    ("igb, by the number of queues", "instructions-igb-queues"),
    ("hits over TLS", "instructions-tls"),
];

/// Returns the page.
pub(super) fn page(root: &Path) -> Result<String> {
    let mut page = HEAD.to_owned();
    for (title, name) in SECTIONS {
        let path = root.join("bench/results").join(name).with_extension("json");
        page.push_str(&section_of(&path, |result| section(title, result))?);
    }
    Ok(page)
}

/// Returns the section of a result; None if it is not complete.
fn section(title: &str, result: &Value) -> Option<String> {
    let machine = &result["machine"];
    let date = machine["date"].as_str()?.split('T').next()?;
    let (about, commit, kernel) =
        (result["about"].as_str()?, machine["commit"].as_str()?, machine["kernel"].as_str()?);
    let labels: Vec<&str> = result["labels"].as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
    let mut section = format!("\n## {title}\n\n{about} {kernel}; commit {commit}; {date}.\n\n");
    let _ = writeln!(section, "| {} | {} |", result["axis"].as_str()?, labels.join(" | "));
    let _ = writeln!(section, "|---|{}", "---|".repeat(labels.len()));
    for (contestant, costs) in contestants(result)? {
        let cells: Vec<String> = (0..labels.len())
            .map(|place| costs.get(place).copied().flatten().map_or("-".to_owned(), rounded))
            .collect();
        let _ = writeln!(section, "| {contestant} | {} |", cells.join(" | "));
    }
    Some(section)
}

/// Costs of a contestant, by place of the label.
type Costs = Vec<Option<f64>>;

/// Returns the contestants with their costs, the lowest of the last label first.
fn contestants(result: &Value) -> Option<Vec<(&str, Costs)>> {
    let places = result["labels"].as_array()?.len();
    let mut contestants: Vec<(&str, Costs)> = Vec::new();
    for series in result["series"].as_array()? {
        let name = series["contestant"].as_str()?;
        let cost = series["summary"]["instructions"]["median"].as_f64()?;
        let place = (0..places).find(|place| series["at"].as_f64() == Some(*place as f64))?;
        let known = contestants.iter().position(|(known, _)| *known == name);
        let at = known.unwrap_or_else(|| {
            contestants.push((name, vec![None; places]));
            contestants.len() - 1
        });
        contestants[at].1[place] = Some(cost);
    }
    contestants.sort_by(|(_, one), (_, other)| {
        one.last().partial_cmp(&other.last()).unwrap_or(std::cmp::Ordering::Equal)
    });
    Some(contestants)
}

/// Returns a number without decimals, with separators between thousands.
fn rounded(cost: f64) -> String {
    let digits = format!("{cost:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contestants_are_sorted_by_their_last_cost() {
        let point = |name: &str, at: u32, cost: f64| json!({"contestant": name, "at": at, "summary": {"instructions": {"median": cost}}});
        let result = json!({
            "about": "About.", "axis": "size", "labels": ["64", "1518"],
            "machine": {"date": "2026-01-02T03:04:05Z", "commit": "abc", "kernel": "Linux"},
            "series": [point("slow", 0, 1.0), point("slow", 1, 1_234_567.4), point("fast", 1, 99.6)],
        });
        let wanted = "\n## Title\n\nAbout. Linux; commit abc; 2026-01-02.\n\n| size | 64 | 1518 |\n|---|---|---|\n\
                      | fast | - | 100 |\n| slow | 1 | 1,234,567 |\n";
        assert_eq!(section("Title", &result).as_deref(), Some(wanted));
        assert_eq!(section("Title", &json!({})), None);
    }
}
