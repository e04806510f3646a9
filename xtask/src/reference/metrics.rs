//! The page of metrics, from the response of a running proxy to `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cell;

const HEAD: &str = "# Metrics

The proxy serves these at `http://ADMIN/metrics` in Prometheus' text format (`--admin`, `admin.listen`). Counters count since
the start of the proxy. Metrics of the store exist with `--cache-dir`. `cargo xtask reference` writes this page from the answer of a
running proxy.

| metric | type | labels | meaning |
|---|---|---|---|
";
/// Maximum number of values of a label that are listed.
const VALUES_MAX: usize = 12;

#[derive(Default)]
struct Metric<'a> {
    help: &'a str,
    kind: &'a str,
    labels: BTreeMap<&'a str, Vec<&'a str>>,
}

pub(super) fn page(exposition: &str) -> String {
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
    let mut page = HEAD.to_owned();
    for name in names {
        let metric = &metrics[name];
        let _ =
            writeln!(page, "| `{name}` | {} | {} | {} |", metric.kind, metric.labels(), cell(metric.help));
    }
    page
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
            if values.len() > VALUES_MAX || !values.iter().all(is_name) || values.iter().any(is_number) {
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
        let page = page(text);
        let rows = page.strip_prefix(HEAD).unwrap();
        assert_eq!(
            rows,
            "| `a_total` | counter | `kind`: x, y | Things. |\n| `t_seconds` | histogram | `le` | Time. |\n"
        );
    }
}
