//! Checks of Rust syntax: function lengths, and lints disabled without a reason.
//!
//! `tidy` runs it on every Rust file. Expanded macros are not checked.

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Signature};

use crate::problem::Problem;
use crate::source::File;

/// Limit of a function's lines, including signature and braces.
const FUNCTION_LINES_MAX: usize = 70;

/// Returns every problem in the syntax of `file`.
pub(crate) fn check(file: &File) -> Vec<Problem> {
    let mut visitor = Visitor { file, problems: Vec::new() };
    match syn::parse_file(&file.text) {
        Ok(parsed) => visitor.visit_file(&parsed),
        Err(error) => visitor.report(error.span(), format!("does not parse: {error}")),
    }
    visitor.problems
}

struct Visitor<'a> {
    file: &'a File,
    problems: Vec<Problem>,
}

impl Visitor<'_> {
    fn report(&mut self, at: Span, what: String) {
        self.problems.push(Problem::new(&self.file.path, at.start().line, what));
    }

    fn function(&mut self, signature: &Signature, body: &Block) {
        let (start, end) = (signature.span().start().line, body.span().end().line);
        let lines = end + 1 - start;
        if lines > FUNCTION_LINES_MAX {
            let what =
                format!("fn {} has {lines} lines; at most {FUNCTION_LINES_MAX} are allowed", signature.ident);
            self.report(signature.span(), what);
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let switches_off = attribute.path().is_ident("allow") || attribute.path().is_ident("expect");
        if let (true, syn::Meta::List(list)) = (switches_off, &attribute.meta)
            && !list.tokens.clone().into_iter().any(|token| token.to_string() == "reason")
        {
            self.report(attribute.span(), "a lint is disabled without a reason = \"...\"".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        check(&File { path: "a.rs".into(), text: text.into() }).iter().map(ToString::to_string).collect()
    }

    /// Returns a function of `lines` lines, braces included.
    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn function_of_71_lines_is_reported_everywhere() {
        let message = |line| vec![format!("a.rs:{line}: fn long has 71 lines; at most 70 are allowed")];
        assert!(problems(&function(70)).is_empty());
        assert_eq!(problems(&function(71)), message(1));
        assert_eq!(problems(&format!("impl A {{\n{}}}\n", function(71))), message(2));
        assert_eq!(problems(&format!("trait A {{\n{}}}\n", function(71))), message(2));
        assert_eq!(problems(&format!("mod a {{\n\n{}}}\n", function(71))), message(3));
    }

    #[test]
    fn attributes_and_comments_above_a_function_do_not_count() {
        assert!(problems(&format!("/// What it does.\n#[inline]\n{}", function(70))).is_empty());
    }

    #[test]
    fn disabled_lint_needs_a_reason() {
        let message = "a lint is disabled without a reason = \"...\"";
        assert_eq!(problems("#[allow(dead_code)]\nfn f() {}\n"), [format!("a.rs:1: {message}")]);
        assert_eq!(problems("//! h\n#![expect(dead_code)]\n"), [format!("a.rs:2: {message}")]);
        assert!(problems("#[allow(dead_code, reason = \"for later\")]\nfn f() {}\n").is_empty());
    }

    #[test]
    fn unparsable_file_is_reported() {
        assert!(problems("fn {\n")[0].starts_with("a.rs:1: does not parse"));
    }
}
