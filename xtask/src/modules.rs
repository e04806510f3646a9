//! Import graph of the files of one crate.
//!
//! `layers` builds it from the sources. A node is a file; an edge is a path that begins with
//! `crate`, `self`, `super` or a child module, outside tests. A re-export (`pub use`) is not an
//! edge: imports of the re-exported item are edges to the file that defines it. Paths in macro
//! calls are not seen.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

use crate::source::File;

/// Maximum number of re-exports that are followed for one path.
const REEXPORTS_MAX: usize = 8;

/// Path of a module from the crate's root, without `crate`.
type Name = Vec<String>;

/// Files of one crate, and the imports between them.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// Modules with a separate file, in the order of declaration; the root is the first.
    modules: Vec<Module>,
    /// Pairs of indices: the importing file and the imported file.
    edges: BTreeSet<(usize, usize)>,
}

/// Module with a separate file.
#[derive(Debug)]
struct Module {
    name: Name,
    file: PathBuf,
    /// Paths that the file mentions, absolute, and its re-exports.
    paths: Vec<Name>,
    reexports: HashMap<String, Name>,
}

/// Import from one file to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Import<'a> {
    pub(crate) from: &'a Path,
    pub(crate) to: &'a Path,
}

impl Graph {
    /// Builds the graph of the crate with that root file, for example `src/lib.rs`.
    pub(crate) fn of(root: &Path, files: &[File]) -> Self {
        let texts: HashMap<&Path, &str> =
            files.iter().map(|file| (file.path.as_path(), file.text.as_str())).collect();
        let mut graph = Self::default();
        let mut open = vec![(Name::new(), root.to_owned())];
        while let Some((name, file)) = open.pop() {
            let Some(parsed) = texts.get(&*file).and_then(|text| syn::parse_file(text).ok()) else {
                continue;
            };
            let mut reader = Reader::new(name.clone());
            reader.visit_file(&parsed);
            let folder = folder_of(&file, name.is_empty());
            open.extend(reader.children.iter().filter_map(|child| {
                let path = [format!("{child}.rs"), format!("{child}/mod.rs")].map(|path| folder.join(path));
                let path = path.into_iter().find(|path| texts.contains_key(&**path))?;
                Some(([&name[..], std::slice::from_ref(child)].concat(), path))
            }));
            let Reader { paths, reexports, .. } = reader;
            graph.modules.push(Module { name, file, paths, reexports });
        }
        graph.link();
        graph
    }

    fn link(&mut self) {
        let by_name: HashMap<&[String], usize> =
            self.modules.iter().enumerate().map(|(index, module)| (&*module.name, index)).collect();
        let mut edges = BTreeSet::new();
        for (from, module) in self.modules.iter().enumerate() {
            let targets = module.paths.iter().map(|path| self.resolve(&by_name, path, REEXPORTS_MAX));
            edges.extend(targets.filter(|to| *to != from).map(|to| (from, to)));
        }
        self.edges = edges;
    }

    /// Returns the module that defines an item, as far as re-exports show it.
    fn resolve(&self, by_name: &HashMap<&[String], usize>, path: &[String], most: usize) -> usize {
        let prefixes = (0..=path.len()).rev().map(|len| path.split_at(len));
        let mut found = prefixes.filter_map(|(module, rest)| Some((*by_name.get(module)?, rest)));
        let Some((index, rest)) = found.next() else { return 0 };
        match rest
            .split_first()
            .and_then(|(item, rest)| Some((self.modules[index].reexports.get(item)?, rest)))
        {
            Some((target, rest)) if most > 0 => self.resolve(by_name, &[target, rest].concat(), most - 1),
            _ => index,
        }
    }

    /// Returns all imports.
    pub(crate) fn imports(&self) -> impl Iterator<Item = Import<'_>> {
        self.edges
            .iter()
            .map(|(from, to)| Import { from: &self.modules[*from].file, to: &self.modules[*to].file })
    }

    /// Returns the files other than the root.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.modules.iter().filter(|module| !module.name.is_empty()).map(|module| &*module.file)
    }

    /// Returns the files of the largest cycle of imports; none if there is no cycle.
    pub(crate) fn largest_cycle(&self) -> Vec<&Path> {
        let components = self.components();
        let largest = components.iter().filter(|files| files.len() > 1).max_by_key(|files| files.len());
        let mut files: Vec<_> =
            largest.into_iter().flatten().map(|index| &*self.modules[*index].file).collect();
        files.sort();
        files
    }

    /// Returns the strongly connected components, each after the components that it imports
    /// (Tarjan's algorithm).
    fn components(&self) -> Vec<Vec<usize>> {
        let mut search = Search::new(self);
        for index in 0..self.modules.len() {
            if search.order[index].is_none() {
                search.visit(index);
            }
        }
        search.components
    }
}

/// State of Tarjan's search.
struct Search<'a> {
    graph: &'a Graph,
    /// Number of each visited node in the order of visits.
    order: Vec<Option<usize>>,
    visited: usize,
    stack: Vec<usize>,
    components: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph) -> Self {
        let order = vec![None; graph.modules.len()];
        Self { graph, order, visited: 0, stack: Vec::new(), components: Vec::new() }
    }

    /// Returns the lowest number that the node reaches among nodes on the stack.
    fn visit(&mut self, node: usize) -> usize {
        let own = self.visited;
        self.visited += 1;
        self.order[node] = Some(own);
        self.stack.push(node);
        let mut lowest = own;
        let graph = self.graph;
        for (_, to) in graph.edges.range((node, 0)..(node + 1, 0)) {
            match self.order[*to] {
                None => lowest = lowest.min(self.visit(*to)),
                Some(number) if self.stack.contains(to) => lowest = lowest.min(number),
                Some(_) => {}
            }
        }
        if lowest == own {
            let at = self.stack.iter().rposition(|other| *other == node).unwrap_or(0);
            self.components.push(self.stack.split_off(at));
        }
        lowest
    }
}

/// Returns the folder of a file's child modules.
fn folder_of(file: &Path, is_root: bool) -> PathBuf {
    let parent = file.parent().unwrap_or(Path::new(""));
    let is_folder = is_root || file.file_name().is_some_and(|name| name == "mod.rs");
    if is_folder { parent.to_owned() } else { parent.join(file.file_stem().unwrap_or_default()) }
}

/// Reads the paths of one file.
struct Reader {
    /// Module at the current place: the file's, and inline modules below it.
    at: Name,
    /// Child modules of the file.
    children: Vec<String>,
    paths: Vec<Name>,
    reexports: HashMap<String, Name>,
    /// Number of inline modules around the current place.
    depth: usize,
}

impl Reader {
    fn new(at: Name) -> Self {
        Self { at, children: Vec::new(), paths: Vec::new(), reexports: HashMap::new(), depth: 0 }
    }

    /// Returns the absolute form of a path, or `None` for a path into another crate or to a local
    /// item.
    fn absolute(&self, path: &[String]) -> Option<Name> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&self.at[..], rest].concat()),
            "super" => {
                let supers = path.iter().take_while(|part| *part == "super").count();
                let parent = &self.at[..self.at.len().checked_sub(supers)?];
                Some([parent, &path[supers..]].concat())
            }
            _ if self.depth == 0 && self.children.contains(first) => Some([&self.at[..], path].concat()),
            _ => None,
        }
    }

    /// Notes the leaves of a `use` tree.
    fn note_use(&mut self, tree: &UseTree, prefix: &[String], is_reexport: bool) {
        match tree {
            UseTree::Path(path) => {
                let prefix = [prefix, &[path.ident.to_string()]].concat();
                self.note_use(&path.tree, &prefix, is_reexport);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_use(tree, prefix, is_reexport));
            }
            UseTree::Name(name) => self.note_leaf(prefix, &name.ident, &name.ident, is_reexport),
            UseTree::Rename(name) => self.note_leaf(prefix, &name.ident, &name.rename, is_reexport),
            UseTree::Glob(_) => self.paths.extend(self.absolute(prefix)),
        }
    }

    fn note_leaf(&mut self, prefix: &[String], item: &syn::Ident, name: &syn::Ident, is_reexport: bool) {
        let own = if item == "self" { prefix.to_vec() } else { [prefix, &[item.to_string()]].concat() };
        let Some(path) = self.absolute(&own) else { return };
        if is_reexport && self.depth == 0 {
            self.reexports.insert(name.to_string(), path);
        } else {
            self.paths.push(path);
        }
    }
}

/// Returns true for `#[cfg(test)]`, also combined with other conditions.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list().ok().filter(|_| attribute.path().is_ident("cfg"));
        list.is_some_and(|list| list.tokens.clone().into_iter().any(|token| token.to_string() == "test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_file(&mut self, file: &'ast syn::File) {
        // A path may name a child module above its declaration.
        let children = file.items.iter().filter_map(|item| match item {
            Item::Mod(item) if item.content.is_none() && !is_for_tests(&item.attrs) => Some(item),
            _ => None,
        });
        self.children = children.map(|item| item.ident.to_string()).collect();
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() {
            self.at.push(item.ident.to_string());
            self.depth += 1;
            visit::visit_item_mod(self, item);
            self.depth -= 1;
            self.at.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        self.note_use(&item.tree, &[], is_reexport);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.paths.extend(self.absolute(&parts));
        }
        visit::visit_path(self, path);
    }

    // `pub(in crate::io)` and attributes import nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let attributes = match statement {
            syn::Stmt::Expr(expression, _) => expression_attributes(expression),
            syn::Stmt::Local(local) => &local.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_stmt(self, statement);
        }
    }
}

fn expression_attributes(expression: &syn::Expr) -> &[Attribute] {
    match expression {
        syn::Expr::If(expression) => &expression.attrs,
        syn::Expr::Block(expression) => &expression.attrs,
        syn::Expr::Call(expression) => &expression.attrs,
        syn::Expr::MethodCall(expression) => &expression.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let files: Vec<_> =
            files.iter().map(|(path, text)| File { path: path.into(), text: (*text).into() }).collect();
        Graph::of(Path::new("lib.rs"), &files)
    }

    fn imports(graph: &Graph) -> Vec<String> {
        let mut all: Vec<_> =
            graph.imports().map(|it| format!("{} {}", it.from.display(), it.to.display())).collect();
        all.sort();
        all
    }

    #[test]
    fn paths_of_every_form_are_imports() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nfn f() { a::g() }"),
            ("a.rs", "use crate::b::{self, d::D};"),
            ("b/mod.rs", "mod d;\nuse d::D;\nmod inner { fn f(x: crate::c::C) {} }"),
            ("b/d.rs", "fn f() -> super::B { super::super::c::g() }"),
            ("c.rs", "use std::fmt; use strait_http::head;"),
        ]);
        assert_eq!(
            imports(&graph),
            [
                "a.rs b/d.rs",
                "a.rs b/mod.rs",
                "b/d.rs b/mod.rs",
                "b/d.rs c.rs",
                "b/mod.rs b/d.rs",
                "b/mod.rs c.rs",
                "lib.rs a.rs"
            ]
        );
        assert_eq!(graph.largest_cycle(), [Path::new("b/d.rs"), Path::new("b/mod.rs")]);
    }

    #[test]
    fn reexports_are_followed_and_are_no_imports() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub(crate) use b::*;"),
            ("a.rs", "use crate::b::C as D;"),
            ("b.rs", "pub use crate::a::A as C;\nuse crate::A;"),
        ]);
        assert_eq!(imports(&graph), ["b.rs a.rs", "lib.rs b.rs"]);
        assert!(graph.largest_cycle().is_empty());
    }

    #[test]
    fn imports_of_tests_are_ignored() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "use crate::b::B;\n#[cfg(test)]\nmod tests;"),
            ("a/tests.rs", "use crate::b::B;"),
            (
                "b.rs",
                "#[cfg(test)]\nmod tests { use crate::a::A; }\nfn f() { #[cfg(test)]\nif crate::a::f() {} }",
            ),
        ]);
        assert_eq!(imports(&graph), ["a.rs b.rs"]);
        assert_eq!(graph.modules.len(), 3);
    }
}
