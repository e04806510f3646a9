//! Line plots in SVG: D3's form, a figure against the axis, one line a contestant, the spread as a bar.

use std::fmt::Write as _;

use crate::results::Results;
use crate::stats::Summary;
use crate::table::{Shown, is_bound};

/// Size of a plot, and the room around its frame, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 176.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;
/// Lines are told apart by colour and by mark; so many colours has the style sheet.
const COLOURS: usize = 8;
/// Where the largest value is so many times the smallest, the axis is logarithmic.
const DECADES_MIN: f64 = 30.0;

/// How values stand on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear { most: f64 },
    Logarithmic { least: f64, most: f64 },
}

impl Scale {
    fn of(values: &[Summary]) -> Self {
        let most = values.iter().map(|value| value.max).fold(0.0, f64::max);
        let least =
            values.iter().map(|value| value.min).filter(|&value| value > 0.0).fold(f64::MAX, f64::min);
        if most > least * DECADES_MIN {
            Self::Logarithmic {
                least: 10_f64.powf(least.log10().floor()),
                most: 10_f64.powf(most.log10().ceil()),
            }
        } else {
            Self::Linear { most: step(most) * (most / step(most)).ceil().max(1.0) }
        }
    }

    /// 0 at the bottom, 1 at the top.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear { most } => value / most,
            Self::Logarithmic { least, most } => (value.max(least) / least).ln() / (most / least).ln(),
        }
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { most } => {
                let step = step(most);
                (0..=(most / step).round() as u32).map(|i| f64::from(i) * step).collect()
            }
            Self::Logarithmic { least, most } => {
                let decades = (most / least).log10().round() as i32;
                (0..=decades).map(|decade| least * 10_f64.powi(decade)).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that some five steps reach `most`.
fn step(most: f64) -> f64 {
    let raw = if most > 0.0 { most / 5.0 } else { 1.0 };
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= raw).unwrap_or(10.0);
    factor * power
}

/// The plot of a figure; nothing where none was measured.
pub(crate) fn svg(results: &Results, shown: &Shown) -> Option<String> {
    let plot = Plot::new(results, shown)?;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" xmlns=\"http://www.w3.org/2000/svg\">\n",
        escape(shown.title)
    );
    plot.axes(&mut svg);
    for (i, contestant) in results.contestants().into_iter().enumerate() {
        plot.line(&mut svg, i, contestant);
    }
    plot.legend(&mut svg);
    svg += "</svg>\n";
    Some(svg)
}

struct Plot<'a> {
    results: &'a Results,
    shown: &'a Shown,
    places: Vec<f64>,
    scale: Scale,
}

impl<'a> Plot<'a> {
    fn new(results: &'a Results, shown: &'a Shown) -> Option<Self> {
        let summary =
            |series: &crate::results::Series| Some(series.summary.get(shown.figure)?.scaled(shown.scale));
        let values: Vec<Summary> = results.series.iter().filter_map(summary).collect();
        if values.is_empty() {
            return None;
        }
        Some(Self { results, shown, places: results.places(), scale: Scale::of(&values) })
    }

    /// Places stand at equal distances: each is about twice, or ten times, the one before.
    fn x(&self, place: usize) -> f64 {
        let steps = (self.places.len().max(2) - 1) as f64;
        let margin = 24.0;
        LEFT + margin + place as f64 * (WIDTH - LEFT - RIGHT - 2.0 * margin) / steps
    }

    fn place_name(&self, place: f64) -> String {
        if self.results.labels.is_empty() { number(place) } else { self.results.place_name(place) }
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.scale.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    // Writing to a String cannot fail.
    fn axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in self.scale.ticks() {
            let y = self.y(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                number(tick)
            );
        }
        // Names are longer than numbers: every other one stands on a line of its own.
        let lines = if self.results.labels.is_empty() { 0.0 } else { 12.0 };
        for (i, place) in self.places.iter().enumerate() {
            let x = self.x(i);
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 14.0 + lines * (i % 2) as f64,
                escape(&self.place_name(*place))
            );
        }
        let middle = f64::midpoint(LEFT, right);
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 10.0,
            escape(&self.results.axis)
        );
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
    }

    fn line(&self, svg: &mut String, index: usize, contestant: &str) {
        let mut points = Vec::new();
        for (i, &place) in self.places.iter().enumerate() {
            if let Some(summary) = self.results.summary(contestant, place, self.shown.figure) {
                points.push((self.x(i), place, summary.scaled(self.shown.scale)));
            }
        }
        let path: Vec<String> =
            points.iter().map(|(x, _, value)| format!("{x:.1},{:.1}", self.y(value.median))).collect();
        let _ = writeln!(svg, "<g class=\"c{}\">", index % COLOURS);
        if self.results.labels.is_empty() {
            let _ = writeln!(svg, "<polyline points=\"{}\"/>", path.join(" "));
        }
        for (x, place, value) in points {
            let (low, high) = (self.y(value.min), self.y(value.max));
            let _ = writeln!(svg, "<path class=\"spread\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
            let title =
                format!("{contestant}, {}: {}", self.place_name(place), value.text(self.shown.decimals));
            let mark = mark(index, x, self.y(value.median), &escape(&title));
            let open = is_bound(self.results, contestant, place, self.shown);
            let _ =
                if open { writeln!(svg, "<g class=\"open\">{mark}</g>") } else { writeln!(svg, "{mark}") };
        }
        *svg += "</g>\n";
    }

    fn legend(&self, svg: &mut String) {
        let x = WIDTH - RIGHT + 20.0;
        for (i, contestant) in self.results.contestants().into_iter().enumerate() {
            let y = TOP + 12.0 + i as f64 * 20.0;
            let _ = writeln!(
                svg,
                "<g class=\"c{}\">{}<text class=\"legend\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
                i % COLOURS,
                mark(i, x, y - 4.0, ""),
                x + 12.0,
                y,
                escape(contestant)
            );
        }
    }
}

/// A disc, a square, a diamond or a triangle around a point, with a text that a pointer shows.
fn mark(index: usize, x: f64, y: f64, title: &str) -> String {
    let title = if title.is_empty() { String::new() } else { format!("<title>{title}</title>") };
    let path = match (index / COLOURS + index) % 4 {
        0 => return format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\">{title}</circle>"),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
        _ => format!("M{x:.1} {:.1}l5 8h-10z", y - 5.0),
    };
    format!("<path class=\"mark\" d=\"{path}\">{title}</path>")
}

/// A tick's number, in thousands and millions where it is large.
fn number(value: f64) -> String {
    let text = |value: f64, unit: &str| format!("{}{unit}", trimmed(value));
    match value {
        value if value >= 1e6 => text(value / 1e6, "M"),
        value if value >= 10_000.0 => text(value / 1e3, "k"),
        value => text(value, ""),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text for XML and HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;
    use crate::table::CAPTURE;

    #[test]
    fn a_plot_has_a_line_a_contestant_and_a_mark_a_place() {
        let results = results(&[("v3", 64.0, &[1e6, 2e6]), ("v3", 128.0, &[1e6]), ("<b>", 64.0, &[3e6])]);
        let svg = svg(&results, &CAPTURE[0]).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("&lt;b&gt;, 64: 3.000") && !svg.contains("<b>"));
        assert!(super::svg(&results, &CAPTURE[3]).is_none());
    }

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        let summary = |value| Summary { median: value, min: value, max: value, rounds: 1 };
        assert_eq!(Scale::of(&[summary(2.4), summary(0.9)]).ticks(), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        let scale = Scale::of(&[summary(7.0), summary(95_000.0)]);
        assert_eq!(scale, Scale::Logarithmic { least: 1.0, most: 100_000.0 });
        assert_eq!(scale.ticks().len(), 6);
        assert!((scale.place(1.0)).abs() < 1e-12 && (scale.place(100_000.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!([64.0, 1518.0, 100_000.0, 2.5e6].map(number), ["64", "1518", "100k", "2.5M"]);
    }
}
