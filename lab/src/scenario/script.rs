//! Splits the text of scenarios into steps; `steps` interprets them.

/// Scenario for one behaviour.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    /// Text after the word `scenario`.
    pub(super) name: String,
    /// Steps, in order.
    pub(super) steps: Vec<Step>,
}

/// Step: a line with the more indented lines below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Line number, from 1.
    pub(super) line: usize,
    /// Text without indentation.
    pub(super) text: String,
    /// Lines below it: numbers and texts.
    pub(super) below: Vec<(usize, String)>,
}

impl Step {
    /// Returns its words.
    pub(super) fn words(&self) -> Vec<&str> {
        self.text.split_whitespace().collect()
    }
}

/// Parses the scenarios of a file. An error has the line and a message.
pub(super) fn parse(text: &str) -> Result<Vec<Scenario>, (usize, String)> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let trimmed = text.trim_start();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        add(&mut scenarios, line, text.len() - trimmed.len(), trimmed)
            .map_err(|what| (line, what.to_owned()))?;
    }
    let empty = scenarios.iter().find(|scenario| scenario.steps.is_empty());
    match empty {
        Some(scenario) => Err((1, format!("{} has no steps", scenario.name))),
        None => Ok(scenarios),
    }
}

fn add(scenarios: &mut Vec<Scenario>, line: usize, indent: usize, text: &str) -> Result<(), &'static str> {
    let text = text.to_owned();
    match indent {
        0 => {
            let name = text.strip_prefix("scenario ").ok_or("not the start of a scenario")?.to_owned();
            if scenarios.iter().any(|other| other.name == name) {
                return Err("another scenario has this name");
            }
            scenarios.push(Scenario { name, steps: Vec::new() });
        }
        2 => {
            let scenario = scenarios.last_mut().ok_or("a step before the first scenario")?;
            scenario.steps.push(Step { line, text, below: Vec::new() });
        }
        4 => {
            let step = scenarios.last_mut().and_then(|scenario| scenario.steps.last_mut());
            step.ok_or("an indented line without a step above")?.below.push((line, text));
        }
        _ => return Err("indent lines by 0, 2 or 4 blanks"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_belong_to_the_less_indented_line_above() {
        let text = "# c\nscenario one\n  a sends GET /\n    A: b\n    = c\n\n  a gets 200\nscenario two\n  clock +1\n";
        let scenarios = parse(text).unwrap();
        let names: Vec<_> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let step = &scenarios[0].steps[0];
        assert_eq!((step.line, step.words()), (3, vec!["a", "sends", "GET", "/"]));
        assert_eq!(step.below, [(4, "A: b".to_owned()), (5, "= c".to_owned())]);
    }

    #[test]
    fn syntax_errors_are_reported_with_their_line() {
        for (text, line) in [
            ("scenery\n", 1),
            ("  a gets 200\n", 1),
            ("scenario a\n   a gets 200\n", 2),
            ("scenario a\n    = b\n", 2),
            ("scenario a\n  b\nscenario a\n  b\n", 3),
            ("scenario a\n", 1),
        ] {
            assert_eq!(parse(text).map_err(|(line, _)| line), Err(line), "{text}");
        }
    }
}
