//! `strait bench compare` and `strait bench report`: comparisons and pages of saved results.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use strait_bench::results::{Results, write_file};
use strait_bench::{compare, report};
use strait_program::output::{print_stderr, print_text};

use crate::options::is_svg;
use strait_program::Error;

#[derive(ClapArgs)]
#[command(after_help = "Example:
  strait bench compare before.json after.json

A figure is better or worse if the ranges of the rounds do not overlap; otherwise the change is within the spread. Rates that the
generator limited are not compared.")]
pub(crate) struct CompareArgs {
    /// Results to compare with
    first: PathBuf,
    /// Results to compare
    second: PathBuf,
    /// Print the ratios as a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(ClapArgs)]
pub(crate) struct ReportArgs {
    /// Results, as --save and --json write them; several make one page
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// The page to write, - for standard output; the first plot alone where its name ends with .svg
    page: PathBuf,
}

/// Runs `strait bench compare`.
pub(crate) fn run_compare(args: &CompareArgs) -> Result<(), Error> {
    let (first, second) = (Results::read(&args.first)?, Results::read(&args.second)?);
    let ratios = compare::ratios(&first, &second)?;
    let remarks = compare::remarks(&first, &second);
    if args.json {
        print_stderr(format_args!("{remarks}"));
        return print_text(&format!("{}\n", compare::json(&ratios)));
    }
    print_text(&(compare::text(&ratios, &first.axis) + &remarks))
}

/// Runs `strait bench report`.
pub(crate) fn run_report(args: &ReportArgs) -> Result<(), Error> {
    let results = args.results.iter().map(|path| Results::read(path)).collect::<Result<Vec<_>, _>>()?;
    let page = match &results[..] {
        [results] if is_svg(&args.page) => report::image(results)?,
        _ if is_svg(&args.page) => {
            return Err(Error::usage(
                "a plot shows one file of results: give one, or a page that ends with .html",
            ));
        }
        all => report::html(all),
    };
    if args.page.as_os_str() == "-" {
        return print_text(&page);
    }
    Ok(write_file(&args.page, &page)?)
}
