//! Text tables: one row for each series, one column for each figure, with the ratio to a reference
//! row.

use std::fmt::Write as _;

use strait_bench::Summary;

use crate::claim::Claim;
use crate::results::Results;

/// Column: a figure, its unit and its precision.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) figure: &'static str,
    pub(crate) scale: f64,
    pub(crate) decimals: usize,
    /// True if a column with the ratio to the reference follows.
    pub(crate) ratio: bool,
}

/// Formats the series with a name that begins with `prefix`, which is cut off, with ratios to the
/// series `reference`, and an empty line. Returns an empty text if there is no such series.
pub(crate) fn of_series(results: &Results, prefix: &str, reference: &str, columns: &[Column]) -> String {
    let mut titles = vec![prefix.trim_end_matches('/').to_owned()];
    for column in columns {
        titles.push(column.title.into());
        if column.ratio {
            titles.push(format!("x {reference}"));
        }
    }
    let mut rows = vec![titles];
    let mut failures = String::new();
    for series in &results.series {
        let Some(name) = series.name.strip_prefix(prefix) else { continue };
        rows.push(row(results, name, &series.name, &format!("{prefix}{reference}"), columns));
        if let Some(failure) = series.failures().first() {
            let failed = series.failures().len();
            // Writing to a String cannot fail.
            let _ =
                writeln!(failures, "{name}: {failed} of {} rounds failed: {failure}", series.rounds.len());
        }
    }
    if rows.len() == 1 { String::new() } else { render(&rows) + &failures + "\n" }
}

fn row(results: &Results, name: &str, key: &str, reference: &str, columns: &[Column]) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    for column in columns {
        let summary = results.summary(key, column.figure);
        cells.push(summary.map_or("-".into(), |summary| summary.scaled(column.scale).text(column.decimals)));
        if column.ratio {
            let ratios = results.ratios((key, column.figure), (reference, column.figure));
            cells.push(Summary::of(&ratios).map_or("-".into(), |ratio| format!("{:.2}", ratio.median)));
        }
    }
    cells
}

/// Formats the claims with their figures and verdicts.
pub(crate) fn of_claims<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> String {
    let mut rows = vec![["claim", "bound", "measured", "verdict"].map(str::to_owned).to_vec()];
    for claim in claims {
        let measured = claim.measured.map_or("-".into(), |measured| measured.text(3));
        let bound = format!("{} {}", claim.bound, claim.unit);
        rows.push(vec![claim.text.clone(), bound.trim_end().into(), measured, claim.verdict.to_string()]);
    }
    render(&rows)
}

/// Aligns the cells: the first column to the left, the rest to the right, a rule below the titles.
fn render(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
        if i == 0 {
            text += &"-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn table_has_ratios_and_failures() {
        let results =
            results(&[("live/ours", &[3.0, 5.0]), ("live/theirs", &[2.0, f64::NAN]), ("else", &[1.0])]);
        let column = Column { title: "x", figure: "x", scale: 1.0, decimals: 1, ratio: true };
        let text = of_series(&results, "live/", "theirs", &[column]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["live", "x", "x", "theirs"]);
        assert!(lines[2].starts_with("ours") && lines[2].ends_with("1.50"), "{text}");
        assert!(lines[3].starts_with("theirs") && lines[3].ends_with("1.00"), "{text}");
        assert_eq!(lines[4], "theirs: 1 of 2 rounds failed: broke");
        assert_eq!(lines[5..], [""]);
        assert_eq!(of_series(&results, "absent/", "theirs", &[]), "");
    }
}
