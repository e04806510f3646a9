//! Name of the running program in its messages.
//!
//! `strait proxy` executes the program `strait-proxy` with `strait proxy`, as typed by the user, as
//! its argument 0. So messages name a command that the user can type, even if the program is not on
//! the PATH.

use std::ffi::OsString;
use std::path::Path;
use std::sync::LazyLock;

/// Name of the program that starts the others.
const STRAIT: &str = "strait";

static NAME: LazyLock<String> = LazyLock::new(|| of_argument(std::env::args_os().next()));

/// Returns the words that call this program: `strait`, `strait-proxy` or `strait proxy`.
pub fn name() -> &'static str {
    &NAME
}

/// Returns the first word of a message: `strait` or `strait-proxy`.
pub fn prefix() -> &'static str {
    NAME.split(' ').next().unwrap_or(STRAIT)
}

/// Returns the file name of argument 0, or `strait` for another name, such as that of a copy.
fn of_argument(argument: Option<OsString>) -> String {
    let argument = argument.unwrap_or_default();
    let name = Path::new(&argument).file_name().and_then(|name| name.to_str()).unwrap_or(STRAIT);
    let is_ours =
        name.strip_prefix(STRAIT).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '-']));
    if is_ours { name.to_owned() } else { STRAIT.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_command_that_the_user_typed() {
        for (argument, name) in [
            ("strait", "strait"),
            ("/usr/bin/strait-proxy", "strait-proxy"),
            ("strait proxy", "strait proxy"),
            ("./copy", "strait"),
            ("", "strait"),
        ] {
            assert_eq!(of_argument(Some(argument.into())), name, "{argument}");
        }
        assert_eq!(of_argument(None), "strait");
    }
}
