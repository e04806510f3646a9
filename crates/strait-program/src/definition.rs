//! Definition of a command line as JSON.
//!
//! Completion scripts of `strait` also complete the options of the programs that it starts:
//! `strait` runs each program to get its definition. This contains only the parts that completion
//! needs.

use clap::{Arg, ArgAction, Command};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::output::print_line;

/// Argument that makes a program print its definition. It must be the only one.
pub const ARGUMENT: &str = "--print-definition";

#[derive(Serialize, Deserialize)]
struct Definition {
    name: String,
    about: String,
    arguments: Vec<Argument>,
    commands: Vec<Definition>,
}

#[derive(Serialize, Deserialize)]
struct Argument {
    name: String,
    help: String,
    long: Option<String>,
    short: Option<char>,
    takes_value: bool,
    /// Possible values, if they are few.
    values: Vec<String>,
}

/// Prints the definition of a program.
pub(crate) fn print(command: &Command) -> Result<(), Error> {
    let mut command = command.clone();
    // Adds the options of help and version, and global options to each command.
    command.build();
    let text = serde_json::to_string(&Definition::of(&command));
    print_line(&text.map_err(|error| Error::Failed(error.to_string()))?)
}

/// Parses the definition that a program has printed. Its texts live as long as this process.
pub fn parse(text: &str) -> Option<Command> {
    serde_json::from_str::<Definition>(text).ok().map(Definition::into_command)
}

impl Definition {
    fn of(command: &Command) -> Self {
        let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
        Self {
            name: command.get_name().to_owned(),
            about: command.get_about().map(ToString::to_string).unwrap_or_default(),
            arguments: arguments.map(Argument::of).collect(),
            commands: commands.filter(|command| command.get_name() != "help").map(Self::of).collect(),
        }
    }

    fn into_command(self) -> Command {
        let command = Command::new(&*self.name.leak()).about(&*self.about.leak());
        let command = command.disable_help_flag(true).disable_version_flag(true);
        let command = command.args(self.arguments.into_iter().map(Argument::into_arg));
        command.subcommands(self.commands.into_iter().map(Self::into_command))
    }
}

impl Argument {
    fn of(argument: &Arg) -> Self {
        let values = argument.get_possible_values();
        Self {
            name: argument.get_id().to_string(),
            help: argument.get_help().map(ToString::to_string).unwrap_or_default(),
            long: argument.get_long().map(str::to_owned),
            short: argument.get_short(),
            takes_value: argument.get_action().takes_values(),
            values: values.iter().map(|value| value.get_name().to_owned()).collect(),
        }
    }

    fn into_arg(self) -> Arg {
        let mut argument = Arg::new(&*self.name.leak()).help(&*self.help.leak());
        if let Some(long) = self.long {
            argument = argument.long(&*long.leak());
        }
        if let Some(short) = self.short {
            argument = argument.short(short);
        }
        if !self.takes_value {
            return argument.action(ArgAction::SetTrue);
        }
        if self.values.is_empty() {
            return argument;
        }
        argument
            .value_parser(self.values.into_iter().map(|value| &*value.leak()).collect::<Vec<&'static str>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_is_printed_and_parsed_completes_the_same_words() {
        let path = Arg::new("path").long("path").short('p').help("Kernel path").value_parser(["v2", "v3"]);
        let json = Arg::new("json").long("json").action(ArgAction::SetTrue).global(true);
        let inner = Command::new("ls").about("List").arg(Arg::new("pattern"));
        let mut command = Command::new("strait-x").arg(path).arg(json).subcommand(inner);
        command.build();
        let text = serde_json::to_string(&Definition::of(&command)).unwrap();
        let mut parsed = parse(&text).unwrap();
        parsed.build();
        parsed.clone().debug_assert();
        assert_eq!(serde_json::to_string(&Definition::of(&parsed)).unwrap(), text);
        assert!(text.contains("\"long\":\"json\"") && text.contains("\"values\":[\"v2\",\"v3\"]"), "{text}");
        assert!(parse("no definition").is_none());
    }
}
