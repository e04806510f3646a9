//! HTML report: plots, tables, machine and command in one self-contained file.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::plot::{escape, image_of, legend, svg};
use crate::results::Results;
use crate::table::{self, Shown};

const STYLE: &str = include_str!("report.css");

/// Returns the page of one or several results, with one style sheet and, above the plots of each
/// result, one legend.
pub fn html(all: &[Results]) -> String {
    let title = match all {
        [results] => escape(&title(&results.benchmark)),
        _ => "strait bench: results".to_owned(),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    page += &contents(all);
    for (number, results) in all.iter().enumerate() {
        page += &section(number, results);
    }
    page + "</body>\n</html>\n"
}

/// Returns a list of links to the results, if there are several.
fn contents(all: &[Results]) -> String {
    if all.len() == 1 {
        return String::new();
    }
    let link = |(number, results): (usize, &Results)| {
        format!("<li><a href=\"#r{number}\">{}</a></li>\n", escape(&title(&results.benchmark)))
    };
    format!("<ul>\n{}</ul>\n", all.iter().enumerate().map(link).collect::<String>())
}

/// Returns everything about one result.
fn section(number: usize, results: &Results) -> String {
    let mut text = format!(
        "<h1 id=\"r{number}\">{}</h1>\n<p>{}</p>\n",
        escape(&title(&results.benchmark)),
        escape(&results.about)
    );
    let figures = table::figures(results);
    if !figures.is_empty() {
        let _ = write!(text, "<div class=\"plot\">\n{}</div>\n", legend(results, &figures));
    }
    for shown in &figures {
        let _ = write!(
            text,
            "<section>\n<h2>{}</h2>\n<div class=\"plot\">\n{}</div>\n",
            capitalised(shown.title),
            svg(results, shown).unwrap_or_default()
        );
        text += &values(results, shown);
        text += "</section>\n";
    }
    text += &claims(results);
    text += &remarks(results);
    text + &machine(results)
}

/// Returns the claims with their verdicts as a table.
fn claims(results: &Results) -> String {
    if results.claims.is_empty() {
        return String::new();
    }
    let mut text = "<h2>Claims</h2>\n<div class=\"values\">\n<table class=\"facts\">\n".to_owned();
    for (number, row) in table::claim_rows(&results.claims).iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let cells = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", figure(cell)));
        let _ = writeln!(text, "<tr>{}</tr>", cells.collect::<String>());
    }
    text + "</table>\n</div>\n"
}

/// Returns the plot of the first figure as a self-contained image.
///
/// # Errors
/// No figure was measured.
pub fn image(results: &Results) -> Result<String> {
    let plot = table::figures(results).first().and_then(|shown| image_of(results, shown));
    let plot = plot.ok_or_else(|| Error::Usage("these results have no figure to draw".into()))?;
    let style = format!("<style>\n{STYLE}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n");
    // After the opening tag.
    let (head, body) = plot.split_once('\n').unwrap_or((&plot, ""));
    Ok(format!("{head}\n{style}{body}"))
}

/// Returns the command that measures a benchmark as its title, or a description if there is none.
fn title(benchmark: &str) -> String {
    match benchmark.split_once(' ') {
        None | Some(("send", _)) => format!("strait bench {benchmark}"),
        Some(("proxy", figures)) => {
            let figures = figures.strip_prefix("figures-").unwrap_or(figures);
            format!("strait bench proxy --figures, Figures {figures}")
        }
        Some(("instructions", "tls")) => "Instructions per hit over TLS".to_owned(),
        Some(("instructions", nic)) => format!("Instructions per frame, NIC {nic}"),
        Some(("claims", subject)) => format!("strait bench claims {subject}"),
        Some(_) => benchmark.to_owned(),
    }
}

/// Formats a figure with its spread on a separate line, so that a table of many columns fits the
/// page.
fn figure(cell: &str) -> String {
    match cell.split_once(" (") {
        Some((median, spread)) => format!("{}<br><small>({}</small>", escape(median), escape(spread)),
        None => escape(cell),
    }
}

fn capitalised(title: &str) -> String {
    let mut characters = title.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    escape(&(first + characters.as_str()))
}

/// Formats the values of a figure as a table.
fn values(results: &Results, shown: &Shown) -> String {
    let places = results.places();
    let mut text = format!("<div class=\"values\">\n<table>\n<tr><th>{}</th>", escape(&results.axis));
    for &place in &places {
        let _ = write!(text, "<th>{}</th>", escape(&results.place_name(place)));
    }
    text += "</tr>\n";
    for contestant in results.contestants() {
        let _ = write!(text, "<tr><th>{}</th>", escape(contestant));
        for &place in &places {
            let _ = write!(text, "<td>{}</td>", figure(&table::cell(results, contestant, place, shown)));
        }
        text += "</tr>\n";
    }
    if let Some(row) = table::comparison_row(results, shown) {
        let cells: Vec<String> =
            row.iter().skip(1).map(|cell| format!("<td>{}</td>", figure(cell))).collect();
        let _ = writeln!(text, "<tr><th>{}</th>{}</tr>", escape(&row[0]), cells.concat());
    }
    text + "</table>\n</div>\n"
}

fn remarks(results: &Results) -> String {
    let mut lines: Vec<String> = table::remarks(results).lines().map(escape).collect();
    if results.benchmark == "capture" {
        lines.push(
            "&gt;=, and a hollow mark in a plot, stand for a rate that the generator did not exceed: the receiver may take \
             more."
                .into(),
        );
    }
    if results.rounds > 1 {
        lines.push(format!(
            "Values are medians of up to {} rounds, with minimum and maximum in parentheses; - where nothing was measured.",
            results.rounds
        ));
    }
    let mut text = "<h2>Remarks</h2>\n<ul>\n".to_owned();
    for line in lines {
        let _ = writeln!(text, "<li>{line}</li>");
    }
    text + "</ul>\n"
}

fn machine(results: &Results) -> String {
    let machine = &results.machine;
    let rows = [
        ("command", machine.command.clone()),
        ("program", machine.program.clone()),
        ("commit", machine.commit.clone()),
        ("date", machine.date.clone()),
        ("kernel", machine.kernel.clone()),
        ("processor", format!("{} ({} CPUs)", machine.cpu, machine.cpus)),
        ("memory", format!("{} MiB", machine.memory_kib / 1024)),
        ("load average before", machine.load_average.clone()),
        ("libpcap", machine.libpcap.clone()),
    ];
    let mut text = "<h2>Machine and command</h2>\n<table class=\"facts\">\n".to_owned();
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "<tr><th>{name}</th><td>{}</td></tr>", escape(value));
    }
    for (contestant, got) in got(results) {
        let _ = writeln!(text, "<tr><th>{}</th><td>{}</td></tr>", escape(&contestant), escape(&got));
    }
    text + "</table>\n"
}

/// Returns the path and mode that each contestant got.
fn got(results: &Results) -> Vec<(String, String)> {
    let first = |contestant: &str| {
        let mut series = results.series.iter().filter(|series| series.contestant == contestant);
        series.find(|series| !series.got.is_empty()).map(|series| (contestant.to_owned(), series.got.clone()))
    };
    results.contestants().into_iter().filter_map(first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn image_includes_its_style() {
        let image = image(&results(&[("v3", 64.0, &[1e6])])).unwrap();
        assert!(image.starts_with("<svg ") && image.contains("<style>") && image.ends_with("</svg>\n"));
        assert!(super::image(&results(&[])).is_err());
    }

    #[test]
    fn page_of_several_results_has_one_style_and_one_legend_of_each() {
        let results = results(&[("v3", 64.0, &[1e6, 2e6]), ("libpcap", 64.0, &[1e6])]);
        let page = html(&[results.clone(), results]);
        assert_eq!((page.matches("<style>").count(), page.matches("<h1 id=").count()), (1, 2));
        assert_eq!(
            (page.matches("aria-label=\"legend\"").count(), page.matches(">v3</text>").count()),
            (2, 2)
        );
    }

    #[test]
    fn title_names_an_existing_command() {
        assert_eq!(title("capture"), "strait bench capture");
        assert_eq!(title("send buffer"), "strait bench send buffer");
        assert_eq!(title("instructions e1000"), "Instructions per frame, NIC e1000");
        assert_eq!(title("instructions tls"), "Instructions per hit over TLS");
        assert_eq!(title("proxy figures-6-7"), "strait bench proxy --figures, Figures 6-7");
    }

    #[test]
    fn page_is_self_contained_and_escaped() {
        let mut results = results(&[("v3", 64.0, &[1e6, 2e6]), ("libpcap", 64.0, &[1e6])]);
        results.machine.command = "strait bench capture --sizes '64' <&>".into();
        let page = html(std::slice::from_ref(&results));
        // The legend and one plot.
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("&lt;&amp;&gt;"));
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["http:", "https:", "<script", "src=", "url("] {
            assert!(!outside.contains(reference), "{reference}");
        }
    }
}
