//! Functions of the kernel by address, from `/proc/kallsyms`.
//!
//! The kernel shows addresses to processes with `CAP_SYSLOG`, or to all with
//! `kernel.kptr_restrict=0`. Otherwise all of them are 0, and no function is found.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};

const PATH: &str = "/proc/kallsyms";
/// Maximum number of functions. Kernels have about 100,000.
const FUNCTIONS_MAX: usize = 1 << 21;
/// Maximum size of the file; it has about 10 MB.
const BYTES_MAX: u64 = 1 << 28;
/// Maximum distance from the start of a function. A greater one is of code without a symbol.
const FUNCTION_BYTES_MAX: u64 = 1 << 18;

/// Function, and the distance of an address from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Name.
    pub name: &'a str,
    /// Distance in bytes.
    pub offset: u64,
}

/// Functions in the order of their addresses.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// Address, and start and end of the name in `names`.
    functions: Vec<(u64, usize, usize)>,
    names: String,
}

impl Symbols {
    /// Reads the functions of the running kernel; none if they are not shown.
    pub(super) fn of_kernel() -> Self {
        File::open(PATH)
            .map_or_else(|_| Self::default(), |file| Self::read(BufReader::new(file.take(BYTES_MAX))))
    }

    fn read(lines: impl BufRead) -> Self {
        let mut symbols = Self::default();
        for line in lines.lines().map_while(Result::ok) {
            if let Some((address, name)) = function(&line) {
                let start = symbols.names.len();
                symbols.names.push_str(name);
                symbols.functions.push((address, start, symbols.names.len()));
            }
            if symbols.functions.len() >= FUNCTIONS_MAX {
                break;
            }
        }
        symbols.functions.sort_by_key(|(address, ..)| *address);
        symbols
    }

    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the address of the function with this name, and the next one of another function.
    /// The compiler may append a suffix to the name, as in `name.isra.0`.
    pub(super) fn range(&self, name: &str) -> Option<(u64, u64)> {
        let is_named = |(_, start, end): &(u64, usize, usize)| {
            let rest = self.names[*start..*end].strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && !rest.contains("cold")))
        };
        let (start, ..) = *self.functions.iter().find(|function| is_named(function))?;
        let after = self.functions.partition_point(|(address, ..)| *address <= start);
        Some((start, self.functions.get(after)?.0))
    }

    /// Returns the function with this address.
    pub(super) fn find(&self, location: u64) -> Option<Function<'_>> {
        let after = self.functions.partition_point(|(address, ..)| *address <= location);
        let (address, start, end) = *self.functions.get(after.checked_sub(1)?)?;
        let offset = location - address;
        (offset < FUNCTION_BYTES_MAX).then_some(Function { name: &self.names[start..end], offset })
    }
}

/// Returns address and name if the line is of a function with a shown address:
/// `ffffffff81000000 T name`, and a module after a tab.
fn function(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
    let address = u64::from_str_radix(address, 16).ok()?;
    (address != 0 && matches!(kind, "t" | "T" | "w" | "W")).then_some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "ffffffff81000100 T second\nffffffff81000000 t first\t[module]\n\
        ffffffff81000180 D data\nnonsense\n\nffffffff81000200 W third\n";

    #[test]
    fn address_is_found_in_its_function() {
        let symbols = Symbols::read(LINES.as_bytes());
        let find = |address| symbols.find(address).map(|found| (found.name, found.offset));
        assert_eq!(find(0xffff_ffff_8100_00ff), Some(("first", 0xff)));
        assert_eq!(find(0xffff_ffff_8100_0100), Some(("second", 0)));
        assert_eq!(find(0xffff_ffff_8100_0190), Some(("second", 0x90)));
        assert_eq!(find(0xffff_ffff_80ff_ffff), None);
        assert_eq!(find(0xffff_ffff_8100_0200 + FUNCTION_BYTES_MAX), None);
    }

    #[test]
    fn range_ends_at_the_next_function() {
        let lines =
            "ffffffff81000300 t third.cold\nffffffff81000310 T last\nffffffff81000280 t fourth.isra.0\n";
        let symbols = Symbols::read([LINES, lines].concat().as_bytes());
        assert_eq!(symbols.range("first"), Some((0xffff_ffff_8100_0000, 0xffff_ffff_8100_0100)));
        assert_eq!(symbols.range("third"), Some((0xffff_ffff_8100_0200, 0xffff_ffff_8100_0280)));
        assert_eq!(symbols.range("fourth"), Some((0xffff_ffff_8100_0280, 0xffff_ffff_8100_0300)));
        assert_eq!([symbols.range("last"), symbols.range("fir"), symbols.range("data")], [None; 3]);
    }

    #[test]
    fn hidden_addresses_are_no_functions() {
        let symbols = Symbols::read("0000000000000000 T first\n".as_bytes());
        assert!(symbols.is_empty() && symbols.find(0xffff_ffff_8100_0000).is_none());
    }
}
