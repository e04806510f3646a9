//! Re-exports of the unsafe layer: a crate above that publishes an item of `strait-sys` gives
//! programs a way around the engines, which the dependencies of the crates do not show.
//!
//! `layers` calls it. It sees `pub use strait_sys::...` in the sources of every crate but
//! `strait-os`, which gives the kernel's services to all layers above. It does not see aliases
//! (`use strait_sys::tls as other`), and types of `strait-sys` in signatures.

use std::path::Path;

use syn::visit::{self, Visit};
use syn::{ItemUse, UseTree, Visibility};

use crate::problem::Problem;
use crate::source::File;

/// Crate that only some layers may import.
const UNSAFE_CRATE: &str = "strait_sys";
/// Crates that may re-export all of it: itself, and its safe interface for all layers.
const EXEMPT: [&str; 2] = ["strait-sys", "strait-os"];

/// Permitted re-exports: the crate, the items and the reason. Each is safe, and has no policy that
/// the crate could add.
const PERMITTED: &[(&str, &[&str], &str)] = &[
    ("strait-capture", &["Kind"], "kind of the errors that a capture passes on"),
    ("strait-capture", &["packet::Fanout"], "setting of a session, passed to the socket unchanged"),
    ("strait-capture", &["xdp::ENOTSUPP"], "error number that rustix has not, for reports of a failed probe"),
    (
        "strait-capture",
        &["libpcap::Counts", "libpcap::Options", "libpcap::Packet", "libpcap::Reader", "libpcap::version"],
        "the system's libpcap is what captures are compared with, so nothing is added to it",
    ),
    ("strait-transfer", &["buffer::BufMut", "buffer::Frozen"], "buffers that the engine lends to the kernel"),
    ("strait-transfer", &["uring::Operations", "zerocopy::Sent"], "results of its probes"),
    (
        "strait-transfer",
        &[
            "tls::Direction",
            "tls::Key",
            "tls::Keys",
            "tls::Record",
            "tls::attach",
            "tls::probe",
            "tls::receive_record",
            "tls::send_end",
            "tls::set_keys",
        ],
        "kTLS on the caller's socket; the engine only sends on it afterwards",
    ),
];

/// Returns every re-export that is not permitted.
pub(crate) fn check(files: &[File]) -> Vec<Problem> {
    let sources = files.iter().filter_map(|file| Some((crate_of(&file.path)?, file)));
    let sources = sources.filter(|(name, _)| !EXEMPT.contains(name));
    sources.flat_map(|(name, file)| problems(name, file)).collect()
}

/// Returns the crate of a source file outside tests.
fn crate_of(path: &Path) -> Option<&str> {
    let mut parts = path.iter().map(|part| part.to_str().unwrap_or_default());
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    match (parts.next()?, parts.next()?, parts.next()?) {
        ("crates", name, "src") if is_source => Some(name),
        _ => None,
    }
}

fn problems(name: &str, file: &File) -> Vec<Problem> {
    let mut reader = Reader::default();
    // `tidy` reports a file that does not parse.
    if let Ok(parsed) = syn::parse_file(&file.text) {
        reader.visit_file(&parsed);
    }
    let is_permitted = |item: &str| PERMITTED.iter().any(|it| it.0 == name && it.1.contains(&item));
    let items = reader.items.into_iter().filter(|(_, item)| !is_permitted(item));
    items
        .map(|(line, item)| {
            let what = format!(
                "{name} must not publish {UNSAFE_CRATE}::{item}: wrap it, or add it to the table in xtask/src/reexports.rs"
            );
            Problem::new(&file.path, line, what)
        })
        .collect()
}

/// Items of the unsafe crate that a file re-exports, with their lines.
#[derive(Default)]
struct Reader {
    items: Vec<(usize, String)>,
}

impl Reader {
    /// Notes the leaves of a `use` tree below `prefix`, a path that ends in `::` or is empty.
    fn note(&mut self, tree: &UseTree, prefix: &str, line: usize) {
        match tree {
            UseTree::Path(path) => self.note(&path.tree, &format!("{prefix}{}::", path.ident), line),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.note(tree, prefix, line)),
            UseTree::Name(leaf) => self.note_leaf(&format!("{prefix}{}", leaf.ident), line),
            UseTree::Rename(leaf) => self.note_leaf(&format!("{prefix}{}", leaf.ident), line),
            UseTree::Glob(_) => self.note_leaf(&format!("{prefix}*"), line),
        }
    }

    fn note_leaf(&mut self, path: &str, line: usize) {
        let (first, item) = path.split_once("::").unwrap_or((path, "self"));
        if first == UNSAFE_CRATE {
            self.items.push((line, item.to_owned()));
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.note(&item.tree, "", item.use_token.span.start().line);
        }
        visit::visit_item_use(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.into(), text: text.into() };
        check(&[file]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reexports_are_reported_unless_they_are_permitted() {
        let text = "pub use strait_sys::{Error, tls::{self, probe}};\nmod a { pub use strait_sys::uring::*; }\n\
                    pub use strait_sys as sys;";
        let found = messages("crates/strait-transfer/src/tls.rs", text);
        let of = |line, item| {
            format!(
                "crates/strait-transfer/src/tls.rs:{line}: strait-transfer must not publish strait_sys::{item}: \
                 wrap it, or add it to the table in xtask/src/reexports.rs"
            )
        };
        assert_eq!(found, [of(1, "Error"), of(1, "tls::self"), of(2, "uring::*"), of(3, "self")]);
    }

    #[test]
    fn private_imports_tests_and_the_safe_interface_are_not_reported() {
        let reexport = "pub use strait_sys::tls;";
        for (path, text) in [
            ("crates/strait-proxy/src/lib.rs", "use strait_sys::tls;\npub(crate) use strait_sys::uring;"),
            ("crates/strait-proxy/tests/tls.rs", reexport),
            ("crates/strait-os/src/lib.rs", reexport),
            ("lab/src/lib.rs", reexport),
        ] {
            assert_eq!(messages(path, text), [""; 0], "{path}");
        }
        assert_eq!(messages("crates/strait-proxy/src/lib.rs", reexport).len(), 1);
    }

    #[test]
    fn every_permitted_reexport_exists() {
        let files = source::files(&source::root()).unwrap();
        let mut found = Vec::new();
        for file in &files {
            let Some(name) = crate_of(&file.path) else { continue };
            let mut reader = Reader::default();
            reader.visit_file(&syn::parse_file(&file.text).unwrap());
            found.extend(reader.items.into_iter().map(|(_, item)| (name.to_owned(), item)));
        }
        for (name, items, _) in PERMITTED {
            for item in *items {
                assert!(found.contains(&((*name).to_owned(), (*item).to_owned())), "{name}: {item}");
            }
        }
    }
}
