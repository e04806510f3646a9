//! The page of metrics, from the responses of running programs to `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::table::cell;

const HEAD: &str = "# Metrics

Three commands serve metrics at `http://ADDRESS/metrics` in Prometheus' text format. Counters count since the start of the
command. `cargo xtask reference` writes this page from the answers of running programs.
";
const TABLE: &str = "
| metric | type | labels | meaning |
|---|---|---|---|
";
/// Sections of the page, with the text above their tables.
const SECTIONS: [(&str, &str); 3] = [
    (
        "strait proxy --admin",
        "In the configuration: `admin.listen`. Metrics of the store exist with `--cache-dir`.",
    ),
    (
        "strait capture --metrics",
        "Updated twice a second. `queue` is the lane's; counts of no lane have an empty one, so that a sum over \
         `queue` is the capture's total. Targets, exports and spools have metrics with `--to`.",
    ),
    ("strait relay --metrics", "Updated twice a second."),
];
/// Maximum number of values of a label that are listed.
const VALUES_MAX: usize = 12;

#[derive(Default)]
struct Metric<'a> {
    help: &'a str,
    kind: &'a str,
    labels: BTreeMap<&'a str, Vec<&'a str>>,
}

/// Returns the page. A section without an exposition stays as in `old`: its program could not run.
pub(super) fn page(old: &str, seen: &[(&str, String)]) -> String {
    let mut page = HEAD.to_owned();
    for (title, text) in SECTIONS {
        let heading = format!("\n## {title}\n");
        match seen.iter().find(|(name, _)| *name == title) {
            Some((_, exposition)) => {
                let _ = writeln!(page, "{heading}\n{text}\n{TABLE}{}", table(exposition).trim_end());
            }
            None => page.push_str(section(old, &heading)),
        }
    }
    page
}

/// Returns the section of a page that begins with `heading`.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let Some(begin) = page.find(heading) else { return "" };
    let end = page[begin + 1..].find("\n## ").map_or(page.len(), |end| begin + 1 + end);
    &page[begin..end]
}

/// Returns the rows for the metrics of an exposition.
fn table(exposition: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut metrics: BTreeMap<&str, Metric<'_>> = BTreeMap::new();
    for line in exposition.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            names.push(name);
            metrics.entry(name).or_default().help = help;
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            metrics.entry(name).or_default().kind = kind;
        } else if let Some((sample, labels)) = line.split_once('{') {
            let name =
                metrics.keys().copied().filter(|name| sample.starts_with(name)).max_by_key(|n| n.len());
            if let Some(metric) = name.and_then(|name| metrics.get_mut(name)) {
                metric.add_labels(labels);
            }
        }
    }
    let mut rows = String::new();
    for name in names {
        let metric = &metrics[name];
        let _ =
            writeln!(rows, "| `{name}` | {} | {} | {} |", metric.kind, metric.labels(), cell(metric.help));
    }
    rows
}

impl<'a> Metric<'a> {
    fn add_labels(&mut self, labels: &'a str) {
        let inside = labels.split('}').next().unwrap_or_default();
        for (name, value) in inside.split(',').filter_map(|label| label.split_once('=')) {
            let value = value.trim_matches('"');
            let values = self.labels.entry(name).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }

    fn labels(&self) -> String {
        let label = |(name, values): (&&str, &Vec<&str>)| {
            let is_name = |value: &&str| value.starts_with(|c: char| c.is_ascii_alphanumeric());
            let is_number = |value: &&str| value.contains('.') || *value == "+Inf";
            // A single value is that of this run, such as the name of an interface.
            let is_listed = (2..=VALUES_MAX).contains(&values.len());
            if !is_listed || !values.iter().all(is_name) || values.iter().any(is_number) {
                return format!("`{name}`");
            }
            format!("`{name}`: {}", values.join(", "))
        };
        self.labels.iter().map(label).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_type_labels_and_meaning() {
        let text = "# HELP a_total Things.\n# TYPE a_total counter\na_total{kind=\"x\"} 1\na_total{kind=\"y\"} 2\n\
            # HELP t_seconds Time.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"0.1\"} 1\nt_seconds_count 1\n";
        assert_eq!(
            table(text),
            "| `a_total` | counter | `kind`: x, y | Things. |\n| `t_seconds` | histogram | `le` | Time. |\n"
        );
    }

    #[test]
    fn section_of_a_program_that_cannot_run_stays() {
        let exposition = |name: &str| format!("# HELP {name} Things.\n# TYPE {name} counter\n{name} 1\n");
        let [proxy, capture, relay] = SECTIONS.map(|(title, _)| title);
        let all = [(proxy, exposition("a")), (capture, exposition("b")), (relay, exposition("c"))];
        let old = page("", &all);
        assert_eq!(page(&old, &all[2..]), old);
        let new = page(&old, &[(proxy, exposition("d")), (relay, exposition("c"))]);
        assert_eq!(new, old.replace("`a`", "`d`"));
    }
}
