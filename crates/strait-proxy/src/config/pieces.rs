//! Reading of files with many sites in pieces: a parsed document takes forty times the memory of
//! its text, and the allocator keeps the memory of that peak.
//!
//! [`crate::config::read`] calls this for each file. A piece ends before a line that begins a site.
//! If the pieces before it are complete documents, this line is a header and not part of a string
//! or a list: these would be open at the end of a piece, which is then no document. Each doubt and
//! each mistake is left to the reading of the whole file, with its messages.

use toml::{Table, Value};

use crate::config::edge::Site;
use crate::config::file::Config;
use crate::config::schema;

/// Length in bytes at which a piece may end. A shorter file is read as a whole.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Line that begins a piece.
const HEADER: &str = "\n[[site]]";

/// Reads a file in pieces of at least `piece_bytes`. Returns `None` if it has to be read as a
/// whole: it is short, sections other than sites are spread over it, or it has a mistake.
pub(crate) fn config(text: &str, piece_bytes: usize) -> Option<Config> {
    if text.len() < piece_bytes {
        return None;
    }
    let first = if text.starts_with(HEADER.trim_start()) { 0 } else { text.find(HEADER)? + 1 };
    let (head, sites) = text.split_at(first);
    let mut file: Table = toml::from_str(head).ok()?;
    // Another form of the same list, to which TOML allows no additions.
    if file.contains_key("site") {
        return None;
    }
    let mut all = Vec::new();
    for piece in pieces(sites, piece_bytes) {
        let mut piece: Table = toml::from_str(piece).ok()?;
        all.append(&mut sites_of(piece.remove("site")?)?);
        for (name, value) in piece {
            if file.insert(name, value).is_some() {
                return None;
            }
        }
    }
    all.shrink_to_fit();
    Some(Config { site: all, ..checked(file)? })
}

/// Returns the sites of a piece.
fn sites_of(sites: Value) -> Option<Vec<Site>> {
    Some(checked(Table::from_iter([("site".to_owned(), sites)]))?.site)
}

/// Returns the configuration of a table without a mistake.
fn checked(table: Table) -> Option<Config> {
    if !schema::problems(&table).is_empty() {
        return None;
    }
    schema::with_sizes_in_bytes(table).try_into().ok()
}

/// Divides the text of sites before lines that begin one.
fn pieces(text: &str, piece_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut headers = rest.match_indices(HEADER).map(|(at, _)| at + 1);
        let (piece, behind) = rest.split_at(headers.find(|at| *at >= piece_bytes).unwrap_or(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the configuration in pieces as small as possible, which is that of the whole file.
    fn in_pieces(text: &str) -> Option<Config> {
        let config = config(text, 1)?;
        assert_eq!(Config::from_toml(text).unwrap(), config, "{text}");
        Some(config)
    }

    #[test]
    fn pieces_give_the_configuration_of_the_whole_file() {
        let text = "workers = 2\r\n[cache]\nsize = \"3GiB\"\n\
            [[site]]\nhosts = [\"a\"]\n[[site.route]]\npool = \"p\"\n[[ site ]]\nhosts = [\"b\"]\n\
            [[site]]\n\n# [[site]]\nhttps = true\n[[site.route]]\nrespond.body = \"[[site]]\"\n\
            [[site]]\n[pool.p]\nservers = [\"127.0.0.1:1\"]\n";
        let config = in_pieces(text).unwrap();
        assert_eq!((config.workers, config.site.len(), config.pool.len()), (2, 4, 1));
        assert_eq!(config.cache.size.as_u64(), 3 << 30);
        for piece_bytes in [16, 40, 80] {
            assert_eq!(super::config(text, piece_bytes).as_ref(), Some(&config));
        }
        assert_eq!(in_pieces("[[site]]\n[[site]]\nhttps = true\n").unwrap().site.len(), 2);
        assert_eq!(super::config(text, text.len() + 1), None, "a short file");
    }

    #[test]
    fn pieces_have_at_least_the_length_and_are_the_text() {
        let text = "[[site]]\na = 1\n[[site]]\n[[site]]\nb = 2\n";
        for (piece_bytes, expected) in [(1, 3), (10, 2), (16, 2), (100, 1)] {
            let all: Vec<_> = pieces(text, piece_bytes).collect();
            assert_eq!(all.concat(), text);
            assert_eq!(all.len(), expected, "{piece_bytes}: {all:?}");
            assert!(all.iter().all(|piece| piece.starts_with("[[site]]")));
        }
    }

    /// Lines that begin like a header, and lists that TOML does not let a header continue.
    #[test]
    fn files_in_doubt_are_read_as_a_whole() {
        let header = "\n[[site]]\n";
        for text in [
            // The line is in a string, a literal, or a list.
            format!("name = \"\"\"{header}\"\"\""),
            format!("x = 1{header}hosts = [\"a\"]{header}[[site.route]]\nrespond.body = '''{header}'''\n"),
            format!("{header}[[site.route]]\nmethods = [{header}]\n"),
            // TOML allows no header after these.
            format!("site = []{header}"),
            format!("[site]\nhosts = []{header}"),
            format!("site.hosts = []{header}"),
            // A section occurs twice, or is continued.
            format!("[cache]\nsync = 1{header}[cache]\nsync = 1\n"),
            format!("[pool.a]\nservers = [\"a:1\"]{header}[pool.b]\nservers = [\"b:1\"]\n"),
            // Mistakes.
            format!("[cache]\nsize = \"x\"{header}"),
            format!("{header}host = []\n{header}"),
            format!("{header}hosts = 1\n{header}"),
            format!("{header}hosts = []\nhosts = []\n{header}"),
            // No site.
            "workers = 2\n".to_owned(),
        ] {
            assert_eq!(config(&text, 1), None, "{text}");
        }
    }
}
